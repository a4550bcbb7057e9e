"""Everything that decides the predictions of an experiment, each part read once: model, data, code, arithmetic."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from tta_pipeline.benchmarks.file_fingerprint import decided_parts
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.streams import Segment, StreamPlan
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.benchmark_model import load_benchmark_model
from tta_pipeline.evaluation.device.arithmetic import arithmetic, arithmetic_flags
from tta_pipeline.evaluation.device.devices import device_type
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.fingerprint import Fingerprint, StreamSoFar, fingerprint, method_code_sha256
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.evaluation.open_stream import OpenStream, open_stream, order_sets
from tta_pipeline.methods import import_implementation
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.results.tuning_criteria import Probe
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.manifest import read_manifest
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.json_values import JsonObject


class SharedCache:
    """Cache shared by the runners of several experiments: the last model, and manifests."""

    def __init__(self) -> None:
        self._manifests: dict[Path, Manifest] = {}
        self._model: tuple[str, LoadedModel] | None = None

    def manifest(self, experiment: ExperimentResults, cell: Cell) -> Manifest:
        """Return `ExperimentResults.manifest`, read once."""
        folder = experiment.folder(cell)
        if folder not in self._manifests:
            self._manifests[folder] = experiment.manifest(cell)
        return self._manifests[folder]

    def unknown_manifest(self, experiment: ExperimentResults, cell: Cell) -> Manifest | None:
        """Return the manifest of the unknown images in the stream of *cell*, read once; None if there are none."""
        folder = experiment.unknown_folder(cell)
        if folder and folder not in self._manifests:
            self._manifests[folder] = read_manifest(folder, experiment.expected_unknown(cell))
        return self._manifests[folder] if folder else None

    def model(self, experiment: ExperimentResults) -> LoadedModel:
        """Return the model of *experiment*; the previous model is dropped to free its memory.

        Raises:
            EvaluationError: see `load_benchmark_model`.
        """
        benchmark, name = experiment.benchmark, experiment.spec.model
        if self._model is None or self._model[0] != name:
            self._model = None
            self._model = name, load_benchmark_model(benchmark, name, experiment.locations)
        return self._model[1]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The inputs of an experiment on a machine; each is read on first use."""

    experiment: ExperimentResults
    machine: Machine
    known: SharedCache
    probes: frozenset[Probe] = frozenset()
    _opened: dict[Cell, Manifest] = field(default_factory=dict, init=False, repr=False)
    """Manifests of the cells that were opened; they count from then on, even if a file changes."""
    _fingerprints: dict[StreamPlan, tuple[Fingerprint, ...]] = field(default_factory=dict, init=False, repr=False)
    _opened_unknown: dict[Cell, Manifest] = field(default_factory=dict, init=False, repr=False)
    """The same for the unknown images in the stream of each cell."""

    @property
    def image_size(self) -> int:
        """Height and width of the images in pixels."""
        return self.experiment.benchmark.image_size

    @cached_property
    def model(self) -> LoadedModel:
        """The model of the experiment.

        Raises:
            EvaluationError: see `load_benchmark_model`.
        """
        return self.known.model(self.experiment)

    @cached_property
    def code_sha256(self) -> str:
        """Hash of the method's code, taken before it is imported.

        Raises:
            EvaluationError: a file of the code was changed after its import, or cannot be hashed.
        """
        try:
            return method_code_sha256(self.experiment.spec)
        except ValueError as error:
            raise EvaluationError(f"method {self.experiment.spec.method}: {error}") from error

    @cached_property
    def arithmetic(self) -> JsonObject:
        """Arithmetic flags after the import of the method, which may set some; its code hash covers later changes."""
        spec = self.experiment.spec
        import_implementation(spec.entry)
        with arithmetic(device_type(self.machine.device), spec.precision, deterministic=spec.deterministic):
            return arithmetic_flags()

    @cached_property
    def source(self) -> OpenStream | None:
        """The clean images that the method sees before the stream; None if it sees none.

        Raises:
            ManifestError: see `open_stream`.
        """
        experiment = self.experiment
        folder = experiment.source_folder
        if folder is None:
            return None
        return open_stream(
            [folder], belonging=[expected_for_benchmark(experiment.benchmark, experiment.locations, CLEAN)]
        )

    @cached_property
    def known_clean(self) -> OpenStream | None:
        """The clean images whose confidences set the threshold for unknown images; None if there is none.

        Raises:
            ManifestError, StreamError: see `open_stream`.
        """
        experiment, folder = self.experiment, self.experiment.clean_folder
        if folder is None:
            return None
        expected = expected_for_benchmark(experiment.benchmark, experiment.locations, CLEAN)
        return order_sets((ShardSet.open(folder, expected),), subset=experiment.spec.subset)

    def manifest(self, cell: Cell) -> Manifest:
        """Return the manifest of *cell*: of the opened shards or, if none were opened, of the shards in the folder.

        Raises:
            ManifestError: the manifest cannot be read, or belongs to another shard set.
        """
        return self._opened.get(cell) or self.known.manifest(self.experiment, cell)

    def stream_fingerprints(self, plan: StreamPlan) -> tuple[Fingerprint, ...]:
        """Return `fingerprints`, computed once while no other shards are opened."""
        if plan not in self._fingerprints:
            self._fingerprints[plan] = tuple(self.fingerprints(plan))
        return self._fingerprints[plan]

    def note_opened(self, cells: Sequence[Cell], opened: OpenStream) -> None:
        """Use the manifests of *opened*, the shards of *cells*, for fingerprints from now on."""
        self._fingerprints.clear()
        self._opened.update(zip(cells, opened.manifests, strict=True))
        self._opened_unknown.update(zip(cells, opened.unknown_manifests, strict=False))

    def fingerprints(self, plan: StreamPlan) -> Iterator[Fingerprint]:
        """Yield the current fingerprint of each segment of *plan*, which covers the stream up to it.

        Manifests are read when their segment is reached.

        Raises:
            ManifestError, EvaluationError: the shards or the model are missing, or the code cannot be hashed.
        """
        resolved = self.experiment.resolved
        self.manifest(plan.segments[0].cells[0])  # without shards, a model's classes may be unknown as well
        parts = decided_parts(
            resolved.experiment, seed=plan.seed, image_size=self.image_size, criterion=resolved.criterion
        )
        present = partial(
            fingerprint,
            method=parts["method"],
            settings=parts["settings"],
            code=self.code_sha256,
            model=self.model.identity,
            device=device_type(self.machine.device),
            arithmetic=self.arithmetic,
            image_size=self.image_size,
            source=self.source.manifests[0].sha256 if self.source else None,
            **self._probes_part,
        )
        before, unknown = StreamSoFar(), StreamSoFar()
        for segment in plan.segments:
            manifests = [self.manifest(cell) for cell in segment.cells]
            unknown = unknown.followed_by(self._unknown_manifests(segment))
            yield present(manifests=manifests, before=before, **self._unknown_part(unknown))
            before = before.followed_by(manifests)

    @property
    def _probes_part(self) -> dict[str, Any]:
        """The part about probes: they change no prediction, but a record without their scores is unfinished."""
        return {"probes": sorted(self.probes)} if self.probes else {}

    def _unknown_manifests(self, segment: Segment) -> Iterator[Manifest]:
        for cell in segment.cells:
            found = self._opened_unknown.get(cell) or self.known.unknown_manifest(self.experiment, cell)
            if found is not None:
                yield found

    def _unknown_part(self, met: StreamSoFar) -> dict[str, Any]:
        """Return the part of a fingerprint about unknown images, if the stream has *met* any."""
        if not met.num_cells:
            return {}
        clean = self.known_clean.manifests[0].sha256 if self.known_clean else None
        return {"unknown": {"data_sha256": met.data_sha256, "clean": clean}}
