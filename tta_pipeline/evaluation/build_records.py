"""The one place where evaluations become records: what was evaluated, the results and the cost of each cell."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.calibration import (
    adaptive_calibration_error,
    area_under_risk_coverage,
    calibration_bins,
    class_wise_calibration_error,
)
from tta_pipeline.evaluation.cells_of_pass import CellOfPass, CellShare, cells_of_pass
from tta_pipeline.evaluation.device.memory import peak_memory_gib
from tta_pipeline.evaluation.machine import machine_facts
from tta_pipeline.evaluation.measured_pass import Measurement
from tta_pipeline.evaluation.one_pass import Pass
from tta_pipeline.evaluation.open_set import unknown_scores
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.evaluation.scores import (
    TOP,
    UNKNOWN_PREDICTION,
    SampleScores,
    count_classes,
    finite_mean,
    label_free_scores,
    neighbourhood_density,
)
from tta_pipeline.evaluation.subject import Subject
from tta_pipeline.evaluation.timing import peak_rss_gib
from tta_pipeline.loading.joined_sets import UNKNOWN_LABEL
from tta_pipeline.results.evaluation_parts import (
    NO_BATCHES,
    Batches,
    Calibration,
    CellInStream,
    Cost,
    FirstSamples,
    LabelFreeScores,
    MachineUse,
    Predicted,
    Scores,
    Setup,
    Timing,
)
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.set_facts import Manifest

_MIN_COLLAPSED, _COLLAPSED, _VARIED = 10, 0.95, 0.6
"""Limits of a collapse: minimum number of samples, minimum share of the most common prediction, maximum share of the
most common label."""
NUM_PREVIEWED = 10
"""Number of samples shown with their predictions."""


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """Result of one cell."""

    row: Evaluation
    samples: SamplePredictions


def build_records(subject: Subject, measurement: Measurement) -> Iterator[CellResult]:
    """Yield the result of each cell; a stream's cost is divided among its cells in proportion to their samples."""
    for cell in cells_of_pass(measurement):
        samples = SamplePredictions(
            positions=cell.positions,
            predictions=cell.scores.predictions,
            confidences=cell.scores.confidences.astype(np.float32),
        )
        yield CellResult(row=_build_record(subject, measurement, cell), samples=samples)


def _build_record(subject: Subject, measurement: Measurement, cell: CellOfPass) -> Evaluation:
    manifest = measurement.opened.manifests[cell.number]
    return Evaluation(
        labels=subject.labels.of_shift(manifest.corruption),
        cell=_cell(subject, measurement.opened, manifest),
        setup=_setup(subject, measurement),
        scores=_scores(cell, measurement.measured.counters, num_classes=len(manifest.classes)),
        calibration=_calibration(cell),
        label_free=_label_free(cell.scores),
        unknown=unknown_scores(cell.scores, cell.unknown, measurement.known_threshold) if cell.unknown else None,
        predicted=_predicted(cell),
        cost=_cost(measurement, cell.share),
        machine=_machine(subject, measurement),
        time=_time(measurement, cell.share),
    )


def _cell(subject: Subject, opened: OpenStream, manifest: Manifest) -> CellInStream:
    return CellInStream(
        benchmark=subject.benchmark,
        stream=subject.stream,
        position=subject.position,
        visit=subject.visit,
        corruption=manifest.corruption,
        severity=manifest.severity,
        seed=subject.seed,
        subset=subject.subset,
        generated=manifest.source.generated,
        manifest_sha256=manifest.sha256,
        stream_order=opened.order_name,
        order_hash=opened.order.sha256,
    )


def _setup(subject: Subject, measurement: Measurement) -> Setup:
    return Setup(
        **asdict(subject.model),
        method=subject.method,
        protocol=subject.protocol,
        config=json.dumps(subject.settings, sort_keys=True),
        frozen_layers=measurement.frozen_layers,
        num_adapted_parameters=measurement.num_adapted_parameters,
        fingerprint=subject.fingerprint.sha256,
        fingerprint_parts=subject.fingerprint.text,
    )


def _machine(subject: Subject, measurement: Measurement) -> MachineUse:
    is_shared = subject.streams_per_device > 1 and measurement.device.type != "cpu"
    return MachineUse(
        **machine_facts(measurement.device),
        decode_threads=subject.num_threads,
        streams_per_device=subject.streams_per_device if is_shared else None,
        batch_size=subject.batch_size,
        precision=subject.precision,
        compile=subject.compile,
        from_features=measurement.from_features,
        other_load=measurement.other_load,
    )


def _predicted(cell: CellOfPass) -> Predicted:
    samples = cell.scores
    confidences = np.nan_to_num(samples.confidences[:NUM_PREVIEWED])
    return Predicted(
        predictions_sha256=hashlib.sha256(samples.predictions.astype("<i8").tobytes()).hexdigest(),
        samples_sha256=None,
        first_samples=FirstSamples(
            positions=tuple(cell.positions[:NUM_PREVIEWED].tolist()),
            predictions=tuple(samples.predictions[:NUM_PREVIEWED].tolist()),
            confidences=tuple(confidences.tolist()),
        ),
    )


def _scores(cell: CellOfPass, counters: Mapping[str, int], *, num_classes: int) -> Scores:
    samples = cell.scores
    correct = samples.predictions == samples.labels
    # For NaN logits the label has the last rank, but it can still be the prediction.
    top5 = correct | (samples.label_ranks < min(TOP, num_classes))
    return Scores(
        num_samples=len(correct),
        num_correct=int(correct.sum()),
        error=1 - float(correct.mean()),
        top5_error=1 - float(top5.mean()),
        nll=finite_mean(-samples.log_likelihoods),
        brier=finite_mean(samples.brier_scores),
        diverged=counters["num_nonfinite_batches"] > 0 or (counters["num_updates"] > 0 and _has_collapsed(samples)),
        class_counts=count_classes(samples.labels, correct, num_classes=num_classes),
    )


def _calibration(cell: CellOfPass) -> Calibration:
    correct = cell.scores.predictions == cell.scores.labels
    # A broken model's confidence is NaN; it counts as 0.
    confidences = np.nan_to_num(cell.scores.confidences)
    bins = calibration_bins(confidences, correct)
    return Calibration(
        ece=bins.ece,
        adaptive_ece=adaptive_calibration_error(confidences, correct),
        class_wise_ece=class_wise_calibration_error(cell.class_gaps, len(correct)),
        aurc=area_under_risk_coverage(confidences, correct),
        bins=bins,
    )


def _label_free(samples: SampleScores[npt.NDArray[Any]]) -> LabelFreeScores:
    """Return the scores of one cell that need no labels; scores from probes are None if no probe was requested."""
    found: dict[str, Any] = {
        name: None if values is None else float(values[0])
        for name, values in label_free_scores(samples, [len(samples.labels)]).items()
    }
    has_views = bool((samples.view_predictions != UNKNOWN_PREDICTION).all())
    is_finite = bool(np.isfinite(samples.entropies).all())
    has_probabilities = bool(samples.probabilities.shape[1])
    return LabelFreeScores(
        **found,
        neighbourhood_density=(
            neighbourhood_density(torch.from_numpy(samples.probabilities)) if has_probabilities else None
        ),
        view_agreement=(
            float((samples.predictions == samples.view_predictions).mean()) if has_views and is_finite else None
        ),
    )


def _has_collapsed(own: SampleScores[npt.NDArray[Any]]) -> bool:
    """Return whether nearly all samples of the second half got the same prediction, although their labels vary."""
    later = slice(len(own.labels) // 2, None)
    shares = [
        np.unique(of, return_counts=True)[1].max() / len(of) for of in (own.predictions[later], own.labels[later])
    ]
    return bool(len(own.labels[later]) >= _MIN_COLLAPSED and shares[0] > _COLLAPSED and shares[1] < _VARIED)


def _cost(measurement: Measurement, part: CellShare) -> Cost:
    return Cost(
        **{name: part.of_count(count) for name, count in measurement.measured.counters.items()},
        peak_cuda_gib=peak_memory_gib(measurement.device),
        peak_rss_gib=peak_rss_gib(),
    )


def _time(measurement: Measurement, part: CellShare) -> Timing:
    opened, collected = measurement.opened, measurement.measured.collected
    batches = collected.batches
    return Timing(
        num_batches=len(batches),
        metadata_scan_s=part.of(opened.metadata_scan_s),
        pipeline_setup_s=part.of(measurement.pipeline_setup_s),
        time_to_first_batch_s=batches[0].data_wait_s,
        first_batch_compute_s=batches[0].compute_s,
        wall_s=part.of(collected.wall_s),
        images_per_s=len(collected.samples.labels) / collected.wall_s,
        data_wait_s=part.of(sum(batch.data_wait_s for batch in batches)),
        device_idle_s=part.of(sum(batch.device_idle_s for batch in batches)),
        host_to_device_s=part.of(sum(batch.host_to_device_s for batch in batches)),
        compute_s=part.of(sum(batch.compute_s for batch in batches)),
        batches=NO_BATCHES if part.num_before else _batch_columns(collected),
    )


def _batch_columns(collected: Pass) -> Batches:
    # Rounded to nanoseconds: further digits of a clock are noise, and long numbers are slow to parse.
    times = {
        name: tuple(round(getattr(batch, name), 9) for batch in collected.batches)
        for name in ("data_wait_s", "host_to_device_s", "compute_s")
    }
    sizes = [batch.num_samples for batch in collected.batches]
    correct = (collected.samples.predictions == collected.samples.labels).astype(np.int64)
    starts = np.cumsum([0, *sizes[:-1]])
    num_correct = np.add.reduceat(correct, starts)
    is_unknown = (collected.samples.labels == UNKNOWN_LABEL).astype(np.int64)
    num_unknown = tuple(np.add.reduceat(is_unknown, starts).tolist())
    num_unadapted = tuple(batch.num_unadapted for batch in collected.batches)
    num_resets = tuple(batch.num_resets for batch in collected.batches)
    return Batches(
        num_samples=tuple(sizes), num_correct=tuple(num_correct.tolist()),
        num_unadapted=num_unadapted if any(num_unadapted) else None,
        num_resets=num_resets if any(num_resets) else None,
        num_unknown=num_unknown if any(num_unknown) else None, **times,
        **_label_free_columns(collected, sizes),
    )  # fmt: skip


def _label_free_columns(collected: Pass, sizes: Sequence[int]) -> dict[str, Any]:
    """Return the scores of each batch that need no labels; four decimals of a mean over a batch are enough."""
    found = label_free_scores(collected.samples, sizes)
    return {name: None if values is None else tuple(values.round(4).tolist()) for name, values in found.items()}


def require_every_sample_once(seen: npt.NDArray[np.int64], opened: OpenStream) -> None:
    """Refuse a pass that did not see each sample of the stream once and in order.

    Raises:
        EvaluationError: samples are missing, repeated or out of order.
    """
    expected = len(opened.order)
    if len(seen) != expected or len(np.unique(seen)) != expected or not np.array_equal(seen, opened.order.indices):
        raise EvaluationError(
            f"{opened.name} delivered {len(seen)} samples, {len(np.unique(seen))} of them distinct; expected each of "
            f"the stream's {expected} exactly once: no result was recorded, so report this bug"
        )
