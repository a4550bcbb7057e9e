"""Evaluation of one method on one shard set without a benchmark file, for notebooks and authors of methods."""

from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, overload

import pyarrow as pa
from torch import nn

from tta_pipeline.benchmarks.protocol import Subset
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.benchmarks.resolved_experiment import origin_of_settings
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.build_records import build_records
from tta_pipeline.evaluation.device.arithmetic import Precision, arithmetic, arithmetic_flags
from tta_pipeline.evaluation.evaluate_segment import SampleLoaders, evaluate_segment
from tta_pipeline.evaluation.fingerprint import fingerprint
from tta_pipeline.evaluation.machine import default_decode_threads
from tta_pipeline.evaluation.open_stream import order_sets
from tta_pipeline.evaluation.subject import ModelFacts, Subject
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.loading.dataset import Shards, open_shards
from tta_pipeline.methods.method import Method
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.models.weights import state_sha256
from tta_pipeline.results.evaluation_parts import WITHOUT_FILE
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.plans import Labels
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.progress import Reporter, quiet_reporter
from tta_pipeline.util.source_code import find_module, source_sha256

_NO_SET = "own"
"""Dataset of shards that no benchmark file names."""
_ALL = "all"
"""Name of the subset with every sample."""


@dataclass(frozen=True, kw_only=True)
class KeptEvaluation(Evaluation):
    """The result of one pass, with the prediction for each sample."""

    predictions: pa.Table = field(compare=False, repr=False)
    """A row for each sample in stream order: `key`, `label`, `prediction`, `confidence` and `correct`."""

    def facts(self) -> JsonObject:
        """Return the facts as they are written into a result file, without the predictions."""
        return {name: value for name, value in asdict(self).items() if name != "predictions"}


@overload
def evaluate(
    method: Method,
    shards: Shards | Path | str,
    *,
    batch_size: int = 64,
    limit: int | None = None,
    name: str | None = None,
    precision: Precision = "fp32",
    num_threads: int | None = None,
    keep: Literal[False] = False,
    progress: Reporter = quiet_reporter,
) -> Evaluation: ...
@overload
def evaluate(
    method: Method,
    shards: Shards | Path | str,
    *,
    batch_size: int = 64,
    limit: int | None = None,
    name: str | None = None,
    precision: Precision = "fp32",
    num_threads: int | None = None,
    keep: Literal[True],
    progress: Reporter = quiet_reporter,
) -> KeptEvaluation: ...
def evaluate(
    method: Method,
    shards: Shards | Path | str,
    *,
    batch_size: int = 64,
    limit: int | None = None,
    name: str | None = None,
    precision: Precision = "fp32",
    num_threads: int | None = None,
    keep: bool = False,
    progress: Reporter = quiet_reporter,
) -> Evaluation:
    """Run *method* once over every sample of *shards*, and return the results; nothing is written.

    The method continues from its current state: call `method.reset()` first to start from the source model.

    Args:
        method: A method from `build`, on the device of its model.
        shards: The result of `open_shards`, or the folder or URL.
        batch_size: Samples in a batch; the last may have fewer.
        limit: Number of samples to evaluate, in stored order; None: all.
        name: Name of the experiment; None: the method's name.
        precision: Precision of the forward pass; fp16 only for methods without gradients.
        num_threads: Decoding threads; None: one per core, at most 8.
        keep: Whether the result has `.predictions`, a table of key, label, prediction, confidence and correct.
        progress: Reports the evaluated images.

    Returns:
        The same evaluation that the pipeline stores: `.error`, `.ece`, `.images_per_s`, `.order_hash` and so on.

    Raises:
        ManifestError: the shards do not match the manifest.
        ImagesError, StreamError: a sample cannot be read or decoded, or the URL has no shards.
        EvaluationError: the method has not one output for each class of the shards, not every sample was seen exactly
            once, the device is out of memory, or the method's code was edited after its import.
    """
    if precision == "fp16" and method.hyperparameters.takes_gradients:
        raise EvaluationError(
            f"precision is fp16, in which the gradients of {method.name} underflow; expected bf16, tf32 or fp32: "
            "choose one"
        )
    with arithmetic(method.device.type, precision):
        found = shards if isinstance(shards, Shards) else open_shards(shards)
        _require_same_classes(method, found)
        threads = num_threads or default_decode_threads()
        subset_name = _subset_name(found, limit)
        with timed() as scan:
            subset = None if subset_name == _ALL else Subset(first=limit or len(found))
            ordered = order_sets((found.shard_set,), subset=subset)
        opened = replace(ordered, metadata_scan_s=scan.wall_s)
        subject = _subject(  # the model before it adapts
            method,
            found,
            name=name or _method_name(method),
            batch_size=batch_size,
            precision=precision,
            subset_name=subset_name,
            num_threads=threads,
        )
        loaders = SampleLoaders(
            batch_size=batch_size, image_size=found.image_size, device=method.device, num_threads=threads
        )
        told = progress(found.manifest.cell.key, len(opened.order))
        measurement = evaluate_segment(
            ProtocolDriver(method), opened, loaders, precision=precision, advance=told.advance
        )
        (result,) = build_records(subject, measurement)
        result.row.require_consistent()
        if not keep:
            return result.row
        facts = {each.name: getattr(result.row, each.name) for each in fields(result.row)}
        return KeptEvaluation(**facts, predictions=result.samples.to_table(found.shard_set.index))


def _require_same_classes(method: Method, shards: Shards) -> None:
    """Refuse a method whose outputs are not the classes of *shards*: a label would be another class of the model."""
    num_classes = len(shards.classes)
    if method.num_classes != num_classes:
        raise EvaluationError(
            f"{method.name} has {method.num_classes:,} outputs, but {shards.manifest.cell.key} has "
            f"{count_of(num_classes, 'class')}; expected one output for each class: build the method with "
            f"num_classes={num_classes} on a model with these outputs, or make the shards with the class map of the "
            "model"
        )


def _subject(
    method: Method,
    shards: Shards,
    *,
    name: str,
    batch_size: int,
    precision: Precision,
    subset_name: str,
    num_threads: int,
) -> Subject:
    """Return what is evaluated: *method* in its current state, on *shards*."""
    manifest = shards.manifest
    settings: JsonObject = {
        "method": _method_name(method), "hyperparameters": method.hyperparameters.model_dump(mode="json"),
        "batch_size": batch_size, "precision": precision, "subset": subset_name,
    }  # fmt: skip
    model = _model_facts(method.model)
    # The images belong to no benchmark file, which would name their dataset.
    origin = origin_of_settings(
        _method_name(method), method.hyperparameters, batch_size=batch_size, architecture=model.architecture
    )
    own_fingerprint = fingerprint(
        version=WITHOUT_FILE,
        code=_code_sha256(method),
        model={**asdict(model), **_normalisation(method.model)},
        device=method.device.type,
        arithmetic=arithmetic_flags(),
        image_size=shards.image_size,
        manifests=[manifest],
        before=None,
        seed=method.seed,
        num_forwards_before=method.num_forwards,
        **settings,
    )
    return Subject(
        benchmark=manifest.benchmark,
        labels=Labels(
            experiment=name, model=model.architecture, dataset=_NO_SET, hyperparameters_origin=origin, shifts={}
        ),
        stream=manifest.cell.key,
        seed=method.seed,
        fingerprint=own_fingerprint,
        model=model,
        method=_method_name(method),
        protocol=WITHOUT_FILE,
        subset=subset_name,
        settings=settings,
        batch_size=batch_size,
        precision=precision,
        num_threads=num_threads,
    )


def _subset_name(shards: Shards, limit: int | None) -> str:
    """Return the name of the evaluated samples: a rank's share, the first samples, both, or all."""
    named = (shards.share, Subset(first=limit).name if limit else "")
    return ", ".join(filter(None, named)) or _ALL


def _normalisation(model: nn.Module) -> JsonObject:
    """Return mean and standard deviation of each channel; empty lists if the model's are not known."""
    is_known = isinstance(model, Normalized)
    # float32 holds only seven digits.
    return {
        name: [round(value, 7) for value in getattr(model, name).flatten().tolist()] if is_known else []
        for name in ("mean", "std")
    }


def _model_facts(model: nn.Module) -> ModelFacts:
    architecture, loaded = getattr(model, "architecture", type(model).__name__), getattr(model, "weights", None)
    return ModelFacts(
        architecture=architecture,
        # The user may have trained the model since; the hash is of its current weights.
        weights=f"{loaded} when loaded" if isinstance(loaded, str) else "as they were given",
        weights_sha256=state_sha256(model.state_dict()),
    )


def _method_name(method: Method) -> str:
    """Return the name of *method*: its own, or its import path, since an inherited name belongs to another method."""
    kind = type(method)
    return method.name if "name" in {**vars(kind), **vars(method)} else f"{kind.__module__}:{kind.__qualname__}"


def _code_sha256(method: Method) -> str | None:
    """Return the hash of the method's source; None if it has no file, as in a notebook.

    Raises:
        EvaluationError: a file of the source was edited after its import, or cannot be hashed.
    """
    kind = type(method)
    found = find_module(kind.__module__)
    if found is None or not found.has_location:
        return None
    try:
        return source_sha256(f"{kind.__module__}:{kind.__qualname__}", *method.hyperparameters.chosen_code().values())
    except ValueError as error:
        raise EvaluationError(f"method {method.name}: {error}") from error
