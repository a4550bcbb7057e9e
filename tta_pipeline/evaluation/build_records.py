"""The one place where evaluations become records: what was evaluated, the results and the cost of each cell."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from tta_pipeline.data.shifts.shift_set import ShiftSet
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.calibration import calibration_bins
from tta_pipeline.evaluation.device.arithmetic import Precision
from tta_pipeline.evaluation.device.memory import peak_memory_gib
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.machine import machine_facts
from tta_pipeline.evaluation.one_pass import Pass
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.evaluation.scores import (
    TOP,
    SampleScores,
    concatenate_scores,
    count_classes,
    finite_mean,
    select_samples,
)
from tta_pipeline.evaluation.timing import peak_rss_gib
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.results.evaluation_record import METRICS_VERSION, NO_BATCHES, Batches, Evaluation, FirstSamples
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.json_values import JsonObject

_MIN_COLLAPSED, _COLLAPSED, _VARIED = 10, 0.95, 0.6
"""Limits of a collapse: minimum number of samples, minimum share of the most common prediction, maximum share of the
most common label."""
_NO_SET = "own"
"""Shift set in the record of shards that no benchmark file names."""
NUM_PREVIEWED = 10
"""Number of samples shown with their predictions."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """Result of one cell."""

    row: Evaluation
    samples: SamplePredictions


@dataclass(frozen=True, kw_only=True)
class MeasuredPass:
    """One pass with the method's counters."""

    collected: Pass
    counters: Mapping[str, int]


def merge_parts(parts: Sequence[MeasuredPass]) -> MeasuredPass:
    """Merge consecutive *parts* of a stream into one pass."""
    if len(parts) == 1:
        return parts[0]
    passes = [part.collected for part in parts]
    return MeasuredPass(
        collected=Pass(
            samples=concatenate_scores([each.samples for each in passes]),
            batches=tuple(batch for each in passes for batch in each.batches),
            wall_s=sum(each.wall_s for each in passes),
        ),
        counters={name: sum(part.counters[name] for part in parts) for name in parts[0].counters},
    )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """An evaluated stream: the pass over its samples, and the circumstances of the pass."""

    opened: OpenStream
    measured: MeasuredPass
    device: torch.device
    """The device that computed."""
    loader: str
    """The loader of the samples, or `features` if they were read in place of images."""
    frozen_layers: str | None
    """Description of the norm layers that the method left as they were; see `describe_frozen_layers`."""
    num_threads: int
    """Number of decoding threads."""
    num_processes: int = 1
    pipeline_setup_s: float
    """Seconds that the construction of the stream took."""
    load_average: float | None
    """Load of the machine before the pass."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The facts about a model in a record."""

    model: str
    """Its name in the benchmark file."""
    architecture: str
    weights: str
    weights_sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, model: LoadedModel) -> Self:
        """Return the facts about *model*."""
        return cls(
            model=model.name, architecture=model.architecture, weights=model.weights,
            weights_sha256=model.weights_sha256, mean=model.mean, std=model.std,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is evaluated, known before the pass: a segment of a stream, and all that decides its predictions."""

    benchmark: str
    experiment: str
    stream: str
    position: int = 0
    visit: int | None = None
    """Number of the visit in a recurring stream, from 1; None in other streams."""
    seed: int
    fingerprint: Fingerprint
    code_sha256: str | None
    """sha256 of the method's source; None if it has no file."""
    model: ModelFacts
    method: str
    protocol: str
    subset: str
    settings: JsonObject
    """The experiment as it is recorded, with all hyperparameters."""
    batch_size: int
    precision: Precision
    compile: str = "off"
    origin: str | None
    """Origin of the hyperparameters; None if it is unknown."""
    tuning: str | None = None
    shift_set: ShiftSet | None = None
    """Set of the shift; None if a manifest alone names it."""
    streams_per_device: int = 1
    """Number of runs that could share the device, if it is no CPU."""

    def shift_facts(self, shift: str) -> dict[str, object]:
        """Return the fields of a record that say what *shift* is in its set."""
        if self.shift_set:
            return asdict(self.shift_set.facts_of(shift))
        return {"shift_set": _NO_SET, "shift_position": None, "shift_family": None, "in_mean": None}


@dataclass(frozen=True, kw_only=True)
class CellShare:
    """Share of one cell in a stream of several cells, by number of samples."""

    num_before: int
    """Number of samples in the preceding cells."""
    num_own: int
    num_all: int

    def of(self, total: float) -> float:
        """Return the cell's share of *total*."""
        return total * self.num_own / self.num_all

    def of_count(self, total: int) -> int:
        """Return the cell's share of *total* as a whole number; the shares of all cells add up to *total*."""
        return total * (self.num_before + self.num_own) // self.num_all - total * self.num_before // self.num_all


@dataclass(frozen=True, kw_only=True)
class _CellOfPass:
    """The part of a pass that one cell has."""

    number: int
    """Position of the cell in the stream."""
    scores: SampleScores[npt.NDArray[Any]]
    positions: npt.NDArray[np.int64]
    """Positions of the samples in the cell, shape (M,)."""
    share: CellShare


def build_records(subject: Subject, measurement: Measurement) -> Iterator[CellResult]:
    """Yield the result of each cell; a stream's cost is divided among its cells in proportion to their samples."""
    for cell in _cells_of_pass(measurement):
        samples = SamplePredictions(
            positions=cell.positions,
            predictions=cell.scores.predictions,
            confidences=cell.scores.confidences.astype(np.float32),
        )
        yield CellResult(row=_build_record(subject, measurement, cell), samples=samples)


def _cells_of_pass(measurement: Measurement) -> Iterator[_CellOfPass]:
    opened, scores = measurement.opened, measurement.measured.collected.samples
    set_numbers = opened.joined.set_numbers(scores.indices)
    num_before = 0
    for number in range(len(opened.manifests)):
        is_in = set_numbers == number
        if not is_in.any():
            continue  # a slow stream did not reach the cell
        own = select_samples(scores, is_in)
        share = CellShare(num_before=num_before, num_own=int(is_in.sum()), num_all=len(is_in))
        num_before += share.num_own
        yield _CellOfPass(number=number, scores=own, positions=own.indices - opened.joined.starts[number], share=share)


def _build_record(subject: Subject, measurement: Measurement, cell: _CellOfPass) -> Evaluation:
    opened, counters, own, share = measurement.opened, measurement.measured.counters, cell.scores, cell.share
    manifest = opened.manifests[cell.number]
    has_diverged = counters["num_nonfinite_batches"] > 0 or (counters["num_updates"] > 0 and _has_collapsed(own))
    return Evaluation(
        **_subject_facts(subject, manifest),
        **_machine_facts(measurement),
        streams_per_device=_shared_streams(subject, measurement),
        **_data_facts(opened, cell.number, cell.positions),
        **_metrics(own, num_classes=len(manifest.classes)),
        first_samples=_first_samples(own, cell.positions),
        **_time_facts(measurement.measured.collected, share),
        **_counter_shares(counters, share),
        samples_sha256=None,
        copied_from=None,
        metadata_scan_s=share.of(opened.metadata_scan_s),
        staging_s=share.of(opened.staging_s),
        pipeline_setup_s=share.of(measurement.pipeline_setup_s),
        diverged=has_diverged,
    )


def _subject_facts(subject: Subject, manifest: Manifest) -> dict[str, Any]:
    """Return the facts about what was evaluated on the cell of *manifest*."""
    own = ("benchmark", "experiment", "stream", "position", "visit", "seed", "code_sha256", "method", "protocol",
           "subset", "batch_size", "precision", "compile", "tuning")  # fmt: skip
    return {
        **{name: getattr(subject, name) for name in own},
        **asdict(subject.model),
        **subject.shift_facts(manifest.corruption),
        "fingerprint": subject.fingerprint.sha256,
        "fingerprint_parts": subject.fingerprint.text,
        "config": json.dumps(subject.settings, sort_keys=True),
        "hyperparameters_origin": subject.origin,
        "corruption": manifest.corruption,
        "severity": manifest.severity,
        "generated": manifest.source.generated,
    }


def _shared_streams(subject: Subject, measurement: Measurement) -> int | None:
    """Return the number of runs that could share the device; None if this run had it alone."""
    is_shared = subject.streams_per_device > 1 and measurement.device.type != "cpu"
    return subject.streams_per_device if is_shared else None


def _machine_facts(measurement: Measurement) -> dict[str, Any]:
    """Return the facts about the machine, and about what the pass used of it."""
    device = measurement.device
    return {
        "frozen_layers": measurement.frozen_layers,
        "loader": measurement.loader,
        "decode_threads": measurement.num_threads,
        "num_processes": measurement.num_processes,
        "pinned_memory": pins_memory(device),
        "load_average": measurement.load_average,
        "peak_cuda_gib": peak_memory_gib(device),
        "peak_rss_gib": peak_rss_gib(),
        **machine_facts(device),
    }


def _data_facts(opened: OpenStream, number: int, positions: npt.NDArray[np.int64]) -> dict[str, Any]:
    """Return the facts about the data of the opened set at position *number*, and about the order of its samples.

    *positions*, shape (M,), are the positions of the samples that were read.
    """
    index = opened.joined.sets[number].index
    manifest, stored = opened.manifests[number], opened.manifests[number].order
    return {
        "manifest_sha256": manifest.sha256,
        "num_images": manifest.num_samples,
        "num_classes_found": len(np.unique(index.labels)),
        "num_shards": len(manifest.shards),
        "num_inodes": len(positions) if opened.loose_files else len(np.unique(index.shards[positions])),
        "payload_bytes": manifest.payload_bytes,
        "shard_bytes": manifest.shard_bytes,
        "stored_order": f"{stored.name}, seed {stored.seed}",
        "stream_order": opened.order_name,
        "order_hash": opened.order.sha256,
        "subset_sha256": opened.subset_sha256s[number],
    }


def _first_samples(own: SampleScores[npt.NDArray[Any]], positions: npt.NDArray[np.int64]) -> FirstSamples:
    confidences = np.nan_to_num(own.confidences[:NUM_PREVIEWED])
    return FirstSamples(
        positions=tuple(positions[:NUM_PREVIEWED].tolist()),
        predictions=tuple(own.predictions[:NUM_PREVIEWED].tolist()),
        confidences=tuple(confidences.tolist()),
    )


def _metrics(samples: SampleScores[npt.NDArray[Any]], *, num_classes: int) -> dict[str, Any]:
    correct = samples.predictions == samples.labels
    # For NaN logits the label has the last rank, but it can still be the prediction.
    top5 = correct | (samples.label_ranks < min(TOP, num_classes))
    # A broken model's confidence is NaN; it counts as 0.
    confidences = np.nan_to_num(samples.confidences)
    calibration = calibration_bins(confidences, correct)
    return {
        "metrics_version": METRICS_VERSION,
        "num_samples": len(correct),
        "num_correct": int(correct.sum()),
        "num_correct_top5": int(top5.sum()),
        "error": 1 - float(correct.mean()),
        "top5_error": 1 - float(top5.mean()),
        "nll": finite_mean(-samples.log_likelihoods),
        "brier": finite_mean(samples.brier_scores),
        "ece": calibration.ece,
        "max_calibration_error": calibration.max_error,
        "rms_calibration_error": calibration.rms_error,
        "calibration": calibration,
        "num_predicted_classes": len(np.unique(samples.predictions)),
        "class_counts": count_classes(samples.labels, correct, num_classes=num_classes),
        "predictions_sha256": hashlib.sha256(samples.predictions.astype("<i8").tobytes()).hexdigest(),
    }


def _has_collapsed(own: SampleScores[npt.NDArray[Any]]) -> bool:
    """Return whether nearly all samples of the second half got the same prediction, although their labels vary."""
    later = slice(len(own.labels) // 2, None)
    shares = [
        np.unique(of, return_counts=True)[1].max() / len(of) for of in (own.predictions[later], own.labels[later])
    ]
    return bool(len(own.labels[later]) >= _MIN_COLLAPSED and shares[0] > _COLLAPSED and shares[1] < _VARIED)


def _counter_shares(counters: Mapping[str, int], part: CellShare) -> dict[str, Any]:
    return {name: part.of_count(count) for name, count in counters.items()}


def _time_facts(collected: Pass, part: CellShare) -> dict[str, Any]:
    first = collected.batches[0]
    return {
        "num_batches": len(collected.batches),
        "time_to_first_batch_s": first.data_wait_s,
        "first_batch_compute_s": first.compute_s,
        "wall_s": part.of(collected.wall_s),
        "images_per_s": len(collected.samples.labels) / collected.wall_s,
        "data_wait_s": part.of(sum(batch.data_wait_s for batch in collected.batches)),
        "starved_s": part.of(sum(batch.starved_s for batch in collected.batches)),
        "host_to_device_s": part.of(sum(batch.host_to_device_s for batch in collected.batches)),
        "compute_s": part.of(sum(batch.compute_s for batch in collected.batches)),
        "batches": NO_BATCHES if part.num_before else _batch_columns(collected),
    }


def _batch_columns(collected: Pass) -> Batches:
    # Rounded to nanoseconds: further digits of a clock are noise, and long numbers are slow to parse.
    times = {
        name: tuple(round(getattr(batch, name), 9) for batch in collected.batches)
        for name in ("data_wait_s", "host_to_device_s", "compute_s")
    }
    sizes = [batch.num_samples for batch in collected.batches]
    correct = (collected.samples.predictions == collected.samples.labels).astype(np.int64)
    num_correct = np.add.reduceat(correct, np.cumsum([0, *sizes[:-1]]))
    num_unadapted = tuple(batch.num_unadapted for batch in collected.batches)
    num_resets = tuple(batch.num_resets for batch in collected.batches)
    return Batches(
        num_samples=tuple(sizes), num_correct=tuple(num_correct.tolist()),
        num_unadapted=num_unadapted if any(num_unadapted) else None,
        num_resets=num_resets if any(num_resets) else None, **times,
    )  # fmt: skip


def require_every_sample_once(seen: npt.NDArray[np.int64], opened: OpenStream) -> None:
    """Refuse a pass that did not see each sample of the stream once and in order.

    Raises:
        EvaluationError: samples are missing, repeated or out of order.
    """
    expected = len(opened.order)
    if len(seen) != expected or len(np.unique(seen)) != expected or not np.array_equal(seen, opened.order.indices):
        raise EvaluationError(
            f"{opened.name}: saw {len(seen)} samples, {len(np.unique(seen))} of them different; expected the "
            f"stream's {expected}, each once: this is a bug in the stream, and no result was recorded"
        )
