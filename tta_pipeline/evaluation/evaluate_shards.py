"""Evaluation of one method on one shard set without a benchmark file, for notebooks and authors of methods."""

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tta_pipeline.benchmarks.protocol import Subset
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.cell_results import cell_results, require_every_sample_once
from tta_pipeline.evaluation.device.arithmetic import Precision, arithmetic, arithmetic_flags
from tta_pipeline.evaluation.evaluator import measure_pass
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.frozen_layers import describe_frozen_layers
from tta_pipeline.evaluation.machine import default_decode_threads, load_average, machine_facts
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.evaluation.protocol_driver import ProtocolDriver
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.loading import stream_order, subset
from tta_pipeline.loading.dataset import Shards, open_shards
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.loading.joined_sets import JoinedSets
from tta_pipeline.loading.reader import Stream
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.methods.method import Method
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.models.weights import state_sha256
from tta_pipeline.results.evaluation_record import BY_HAND, PUBLISHED, WITHOUT_FILE, Evaluation
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.progress import Reporter, quiet_reporter
from tta_pipeline.util.source_code import find_module, source_sha256

_NO_SET = "own"
"""Shift set of such an evaluation, since a manifest names none."""


def evaluate(
    method: Method,
    shards: Shards | Path | str,
    *,
    batch_size: int = 64,
    limit: int | None = None,
    name: str | None = None,
    precision: Precision = "fp32",
    num_threads: int | None = None,
    progress: Reporter = quiet_reporter,
) -> Evaluation:
    """Run *method* once over every sample of *shards*, and return the results; nothing is recorded.

    The method continues from its current state: call `method.reset()` first to start from the source model.

    Args:
        method: A method from `build`, on the device of its model.
        shards: The result of `open_shards`, or the folder.
        batch_size: Samples in a batch; the last may have fewer.
        limit: Number of samples to evaluate, in stored order; None: all.
        name: Name of the experiment; None: the method's name.
        precision: Precision of the forward pass; fp16 only for methods without gradients.
        num_threads: Decoding threads; None: one per core, at most 8.
        progress: Reporter of the evaluated images.

    Returns:
        The same record that the pipeline writes: `.error`, `.ece`, `.images_per_s`, `.order_hash` and so on.

    Raises:
        ManifestError: the shards do not match the manifest.
        StreamError: a sample cannot be read or decoded.
        EvaluationError: not every sample was seen exactly once, the device is out of memory, or the method's code was
            edited after its import.
    """
    if precision == "fp16" and method.hyperparameters.takes_gradients:
        raise EvaluationError(
            f"found precision fp16 with {method.name}, whose gradients would underflow; expected bf16, tf32 or fp32"
        )
    with arithmetic(method.device.type, precision):
        found = shards if isinstance(shards, Shards) else open_shards(shards)
        threads = num_threads or default_decode_threads()
        opened = _open_shards_as_stream(found, limit)
        about = _Description(
            method=method, name=name or method.name, batch_size=batch_size, precision=precision, num_threads=threads,
            limit=limit, image_size=found.image_size,
        )  # fmt: skip
        what_was_evaluated = about.partial_record(found.manifest)  # the model before it adapts
        load = load_average()
        with timed() as setup:
            stream = Stream(
                shard_set=found.shard_set,
                order=opened.order,
                batch_size=batch_size,
                image_size=about.image_size,
                num_threads=threads,
                pin_memory=pins_memory(method.device),
            )
        told = progress(found.manifest.cell.key, len(opened.order))
        measured = measure_pass(
            ProtocolDriver(method), stream, device=method.device, precision=precision, advance=told.advance
        )
        require_every_sample_once(measured.collected.samples.indices, opened)
        (result,) = cell_results(
            opened,
            measured,
            device=method.device,
            pipeline_setup_s=setup.wall_s,
            load=load,
            describe=lambda _: what_was_evaluated,
        )
        result.row.require_consistent()
        return result.row


def _open_shards_as_stream(shards: Shards, limit: int | None) -> OpenStream:
    with timed() as scan:
        shards.shard_set.require_intact()
        joined = JoinedSets(sets=(shards.shard_set,))
        index = joined.index
        positions = subset.first_positions(index, limit) if limit else None
        found = (
            stream_order.stored_order(index)
            if positions is None
            else stream_order.order_among(positions, index, stream_order.stored_order)
        )
        sha256 = None if positions is None else subset.subset_sha256(index, positions)
    return OpenStream(joined=joined, order=found, subset_sha256s=(sha256,), metadata_scan_s=scan.wall_s)


@dataclass(frozen=True, kw_only=True)
class _Description:
    """The evaluation's settings: the part of a record that is known before the evaluation."""

    method: Method
    name: str
    batch_size: int
    precision: Precision
    num_threads: int
    limit: int | None
    image_size: int

    def partial_record(self, manifest: Manifest) -> partial[Evaluation]:
        method, code_sha256 = self.method, self._code_sha256()
        subset_name = Subset(first=self.limit).name if self.limit else "all"
        settings: JsonObject = {
            "method": method.name, "hyperparameters": method.hyperparameters.model_dump(mode="json"),
            "batch_size": self.batch_size, "precision": self.precision, "subset": subset_name,
        }  # fmt: skip
        model = self._model()
        parts: JsonObject = {
            **settings, "version": WITHOUT_FILE, "code": code_sha256, "model": model, "seed": method.seed,
            "arithmetic": {**arithmetic_flags(), "device": method.device.type}, "image_size": self.image_size,
            "data": [[manifest.cell.key, manifest.sha256]], "num_forwards_before": method.num_forwards,
        }  # fmt: skip
        identity = Fingerprint(parts=parts)
        return partial(
            Evaluation,
            benchmark=manifest.benchmark,
            shift_set=_NO_SET,
            experiment=self.name,
            stream=manifest.cell.key,
            position=0,
            corruption=manifest.corruption,
            severity=manifest.severity,
            seed=method.seed,
            subset=subset_name,
            model=model["architecture"],
            method=method.name,
            frozen_layers=describe_frozen_layers(method),
            protocol=WITHOUT_FILE,
            generated=manifest.source.generated,
            config=json.dumps(settings, sort_keys=True),
            hyperparameters_origin=self._origin(),
            code_sha256=code_sha256,
            fingerprint=identity.sha256,
            fingerprint_parts=identity.text,
            decode_threads=self.num_threads,
            num_processes=1,
            batch_size=self.batch_size,
            precision=self.precision,
            compile="off",
            loader="indexed",
            pinned_memory=pins_memory(method.device),
            **model,
            **machine_facts(method.device),
        )

    def _model(self) -> dict[str, Any]:
        model = self.method.model
        mean, std = (
            # float32 holds only seven digits.
            tuple(round(value, 7) for value in getattr(model, name).flatten().tolist())
            if isinstance(model, Normalized)
            else ()
            for name in ("mean", "std")
        )
        loaded = getattr(model, "weights", None)
        return {
            "architecture": getattr(model, "architecture", type(model).__name__),
            # The user may have trained the model since; the hash is of its current weights.
            "weights": f"{loaded} when loaded" if isinstance(loaded, str) else "as they were given",
            "weights_sha256": state_sha256(model.state_dict()),
            "mean": mean,
            "std": std,
        }

    def _origin(self) -> str | None:
        """Return the origin of the hyperparameters; None for a user's own method, which has no catalogue entry."""
        entry = METHODS.get(self.method.name.partition("+")[0])
        if entry is None:
            return None
        return PUBLISHED if entry.is_published(self.method.hyperparameters, batch_size=self.batch_size) else BY_HAND

    def _code_sha256(self) -> str | None:
        """Return the hash of the method's source; None if it has no file, as in a notebook.

        Raises:
            EvaluationError: a file of the source was edited after its import, or cannot be hashed.
        """
        kind = type(self.method)
        found = find_module(kind.__module__)
        if found is None or not found.has_location:
            return None
        try:
            return source_sha256(f"{kind.__module__}:{kind.__qualname__}")
        except ValueError as error:
            raise EvaluationError(f"method {self.method.name}: {error}") from error
