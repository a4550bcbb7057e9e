"""Small evaluations for any device: each method and each protocol, over a few images and cells."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.protocol import SHIFTS
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.benchmarks.stream_plans import partition_keys, stream_plans
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.domain.streams import Segment, StreamPlan
from tta_pipeline.evaluation.build_records import CellResult, build_records
from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.open_stream import OpenStream, open_stream
from tta_pipeline.evaluation.subject import ModelFacts, Subject
from tta_pipeline.methods import METHODS
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.results.plans import Labels
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import Conversion, convert
from tta_pipeline.util.progress import Progress, quiet_reporter
from tta_pipeline_tests.conftest import write_tree
from tta_pipeline_tests.methods.models import ADDED, NUM_CLASSES, suited, vit_model
from tta_pipeline_tests.methods.test_contract import EAGER, QUICK

IMAGE_SIZE, BATCH_SIZE = 16, 6
_CORRUPTIONS, _SEVERITIES = ("fog", "contrast"), (3, 5)
_CLASSES = tuple(f"n{number:02d}" for number in range(NUM_CLASSES))
_IMAGES_PER_CLASS = 3
_LOADED_CELLS = (*(Cell(corruption=name, severity=at) for name in _CORRUPTIONS for at in _SEVERITIES), CLEAN)

PROTOCOLS: dict[str, dict[str, Any]] = {
    **{shift: {"protocol": shift} for shift in SHIFTS},
    "correlated": {"protocol": "correlated"},
    "shuffled": {"protocol": {"order": "shuffled"}},
    "dirichlet": {"protocol": {"shift": "mixed", "order": "dirichlet", "delta": 0.1}},
    "clean": {"protocol": {"shift": "continual", "clean": "after_each"}},
    "window": {"protocol": {"sliding_window": 4}, "batch_size": 1},
    "real_time": {"protocol": {"stream_speed": 1e-6}},
}
"""Settings of experiments, one for each protocol; the last one's stream is so slow that no sample is missed."""


def experiment(method: str, protocol: str = "reset_each_shift", **changes: object) -> Experiment:
    """Return the experiment of *method* under *protocol*, a name in `PROTOCOLS`, with *changes*.

    `cotta+batch` is a method whose views are drawn once for a batch; `tent+lora` and `tent+adapters` adapt parameters
    that are added to a ViT.
    """
    method, _, choice = method.partition("+")
    chosen = {"params" if choice in ADDED else "augment_per": choice} if choice else {}
    hyperparameters = {**QUICK.get(method, {}), **EAGER.get(method, {}), **chosen}
    settings = {"batch_size": BATCH_SIZE, **PROTOCOLS[protocol], **changes}
    return Experiment(model="small", method=method, preset="cifar", hyperparameters=hyperparameters, **settings)


def make_shards(root: Path) -> None:
    """Write shards of every cell below *root*."""
    images = root / "images"
    for cell in _LOADED_CELLS:
        write_tree(images / cell.path, classes=dict.fromkeys(_CLASSES, _IMAGES_PER_CLASS), size=IMAGE_SIZE)
    class_map = ClassMap(classes=_CLASSES)
    conversion = Conversion(
        source=FolderTree(root=images, cells=_LOADED_CELLS),
        source_kind="folder",
        generated=False,
        benchmark_name="test",
        class_map=class_map,
        settings=lambda _: ShardSettings(num_shards=2, seed=7),
        folder=partial(_folder, root),
        progress=quiet_reporter,
    )
    with conversion.session(_LOADED_CELLS) as session:
        for cell in _LOADED_CELLS:
            convert(session.task(cell), conversion.progress)
            publish_shard_set(_folder(root, cell), class_map, Progress(lambda _: None, what="test", total=0))


def _folder(root: Path, cell: Cell) -> Path:
    return root / "shards" / cell.path


class Case(NamedTuple):
    """An experiment over the shards below a folder, on a device."""

    root: Path
    device: torch.device
    experiment: Experiment

    def evaluator(self) -> Evaluator:
        """Return the evaluator of the experiment."""
        has_source = METHODS[self.experiment.method].source_data != "unused"
        return Evaluator(
            experiment=self.experiment,
            model=_model(self.experiment),
            image_size=IMAGE_SIZE,
            device=self.device,
            num_threads=1,
            source=open_stream([_folder(self.root, CLEAN)]) if has_source else None,
        )

    def plan(self) -> StreamPlan:
        """Return the first stream of the experiment."""
        benchmark = _benchmark(self.experiment)
        return stream_plans(benchmark, "own", partition_keys(benchmark, "own")[0])[0]

    def opened(self, segment: Segment) -> OpenStream:
        """Return the samples of *segment*."""
        return open_stream([_folder(self.root, cell) for cell in segment.cells], experiment=self.experiment)

    def results(self, advance: Callable[[int], None] = lambda _: None) -> Iterator[CellResult]:
        """Yield the result of each cell of the first stream; *advance* is called with the size of each batch."""
        evaluator = self.evaluator()
        plan = self.plan()
        for segment in plan.segments:
            yield from self.evaluated(evaluator, segment, advance)

    def evaluated(
        self, evaluator: Evaluator, segment: Segment, advance: Callable[[int], None] = lambda _: None
    ) -> Sequence[CellResult]:
        """Return the result of each cell of *segment*; the first segment starts from the source model."""
        opened = self.opened(segment)
        if segment.position == 0:
            evaluator.start(opened.manifests[0], seed=0)
        measurement = evaluator.evaluate(opened, advance, segment=("test", segment.position))
        return tuple(build_records(_subject(self.experiment, segment), measurement))


_LABELS = Labels(experiment="own", model="small", dataset="own", hyperparameters_origin="preset", shifts={})


def _subject(own: Experiment, segment: Segment) -> Subject:
    return Subject(
        benchmark="test", labels=_LABELS, stream="test",
        position=segment.position, seed=0, num_threads=1,
        fingerprint=Fingerprint(parts={}), model=ModelFacts.of(_model(own)), method=own.method,
        protocol=own.protocol.name, subset="all", settings={}, batch_size=own.batch_size, precision=own.precision,
    )  # fmt: skip


def _model(own: Experiment) -> LoadedModel:
    """Return a model that suits the method, confident on some images and not on others."""
    needs_vit = own.hyperparameters.get("params") in ADDED
    return LoadedModel(
        name="small",
        make_network=vit_model if needs_vit else partial(suited, own.method),
        num_classes=NUM_CLASSES,
        weights="random",
        weights_sha256="0" * 64,
        mean=(0, 0, 0),
        std=(1, 1, 1),
        architecture="small",
    )


def _benchmark(own: Experiment) -> Benchmark:
    return Benchmark.model_validate(
        {
            "name": "test",
            "title": "Few images, few cells",
            "images": {"kind": "digits"},
            "corruptions": _CORRUPTIONS,
            "severities": _SEVERITIES,
            "image_size": IMAGE_SIZE,
            "shards": {"num_shards": 2},
            "models": {"small": {"kind": "trained"}},
            "experiments": {"own": own.model_dump()},
        }
    )
