"""One cell through one method."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tta_pipeline.adaptation import build
from tta_pipeline.adaptation.method import Method
from tta_pipeline.benchmarks.spec import Experiment
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.calibration import calibration_bins
from tta_pipeline.evaluation.feeding import Feed, feed
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.machine import load_average, machine_facts
from tta_pipeline.evaluation.models import LoadedModel
from tta_pipeline.evaluation.one_pass import BatchTiming, Pass, Precision, run_pass
from tta_pipeline.evaluation.opening import Opened
from tta_pipeline.evaluation.ranks import ALONE, Ranks
from tta_pipeline.evaluation.record import METRICS_VERSION, NO_BATCHES, Batches, Evaluation, FirstSamples
from tta_pipeline.evaluation.samples import SamplePredictions
from tta_pipeline.evaluation.scores import TOP, class_counts, finite_mean
from tta_pipeline.evaluation.timing import Clock, peak_cuda_gib, peak_rss_gib, reset_peak_memory, timed
from tta_pipeline.shards.manifest import Manifest, ShardSet
from tta_pipeline.streaming.device import as_floats, on_device
from tta_pipeline.streaming.joined import JoinedPixels
from tta_pipeline.streaming.order import StreamOrder
from tta_pipeline.streaming.pixels import Pixels, StoredPixels
from tta_pipeline.streaming.reader import Stream

_MIN_COLLAPSED, _COLLAPSED, _VARIED = 10, 0.95, 0.6
"""A collapse: of so many samples one class has more than this share of the predictions, but none of the labels."""
NUM_PREVIEWED = 10
"""Samples shown with their predictions."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Which visit of which stream, and what decides its predictions."""

    stream: str
    position: int
    seed: int
    fingerprint: Fingerprint
    code_sha256: str
    """Of the method's source."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one cell."""

    row: Evaluation
    samples: SamplePredictions


@dataclass(frozen=True, kw_only=True)
class CleanBatches:
    """Clean images and their labels, for methods that look at some before the stream; can be iterated again."""

    stream: Stream
    device: torch.device

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images, float32 (B, 3, H, W) in [0, 1], and labels, int64 (B,), on the device."""
        for batch in on_device(self.stream, self.device):
            yield as_floats(batch.images), batch.labels.to(self.device)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One pass, and what the method counted in it."""

    collected: Pass
    counters: Mapping[str, int]


class Evaluator:
    """One experiment with its model loaded once, for any number of cells."""

    def __init__(
        self,
        *,
        benchmark: str,
        name: str,
        experiment: Experiment,
        model: LoadedModel,
        image_size: int,
        device: torch.device,
        num_threads: int,
        open_pixels: Callable[[ShardSet, int], Pixels] = StoredPixels,
        ranks: Ranks = ALONE,
        source: Opened | None = None,
    ) -> None:
        self._source = source
        self._benchmark = benchmark
        self._name = name
        self._experiment = experiment
        self._model = model
        self._image_size = image_size
        self._device = device
        self._num_threads = num_threads
        self._open_pixels = open_pixels
        self._ranks = ranks
        self._method: Method | None = None
        self._feed: Feed | None = None

    def evaluate(self, opened: Opened, identity: Identity, advance: Callable[[int], None]) -> tuple["Result", ...]:
        """Evaluate what was opened, a result for each of its cells; call *advance* with each batch's size.

        At position 0 of a stream the method starts from the source model, later it goes on from where it is.

        Raises:
            StreamError: a sample cannot be read or decoded.
            EvaluationError: not every sample was seen exactly once, or the device is out of memory.
        """
        load = load_average()
        with timed() as setup:
            stream = self._stream(opened, self._ranks.share(opened.order, self._experiment.batch_size))
        feed = self._fed(opened.manifests[0], identity)
        self._ranks.require_stateless(feed)
        measured = measure(
            feed, stream, device=self._device, precision=self._experiment.precision, advance=advance, ranks=self._ranks
        )
        if self._ranks.is_first:
            require_every_sample_once(measured.collected.indices, opened)
        return tuple(
            results(
                opened,
                measured,
                device=self._device,
                pipeline_setup_s=setup.wall_s,
                load=load,
                facts=lambda manifest: self._what_was_evaluated(manifest, identity) | self._machine_facts(),
            )
        )

    def state(self) -> dict[str, Any]:
        """Return a copy of what the next visit of the stream depends on, as `torch.save` writes it."""
        assert self._feed is not None
        return self._feed.state()

    def resume(self, state: dict[str, Any], manifest: Manifest, *, seed: int) -> None:
        """Go on where the evaluator was that gave *state*, in a stream of *seed* whose classes *manifest* has.

        Raises:
            AdaptationError: *state* is that of another method or model.
        """
        self._start(manifest, seed).load_state(state)

    @property
    def device(self) -> torch.device:
        """What it computes on."""
        return self._device

    def _stream(self, opened: Opened, order: StreamOrder) -> Stream:
        return Stream(
            shard_set=opened.joined,
            order=order,
            batch_size=self._experiment.batch_size,
            image_size=self._image_size,
            num_threads=self._num_threads,
            pin_memory=self._device.type == "cuda",
            open_pixels=partial(JoinedPixels, open_pixels=self._open_pixels),
        )

    def _fed(self, manifest: Manifest, identity: Identity) -> Feed:
        if identity.position == 0 or self._feed is None:
            return self._start(manifest, identity.seed)
        return self._feed

    def _start(self, manifest: Manifest, seed: int) -> Feed:
        """Return the method at the source model, with every source of randomness at *seed*."""
        torch.manual_seed(seed)
        if self._method is None or self._method.seed != seed:
            self._method = build(
                self._experiment.method,
                self._network(),
                num_classes=len(manifest.classes),
                preset=self._experiment.preset,
                source_data=self._source_data(manifest),
                seed=seed,
                batch_size=max(self._experiment.batch_size, self._experiment.protocol.window),
                **self._experiment.hyperparameters,
            )
        else:
            self._method.reset()
        self._feed = feed(
            self._experiment.protocol,
            self._method,
            make_source=self._network,
            synchronize=Clock(self._device).synchronize,
        )
        return self._feed

    def _source_data(self, manifest: Manifest) -> "CleanBatches | None":
        """Return the clean images for a method that uses some."""
        if self._source is None:
            return None
        if self._source.manifests[0].class_map_sha256 != manifest.class_map_sha256:
            raise EvaluationError(
                f"{self._source.name} has other classes than {manifest.corruption} {manifest.severity}; "
                "expected one class map: materialize both shard_manifests again"
            )
        return CleanBatches(stream=self._stream(self._source, self._source.order), device=self._device)

    def _network(self) -> nn.Module:
        """Return the model on the device, in the memory layout that images come in."""
        network: nn.Module = self._model.make().to(self._device).to(memory_format=torch.channels_last)
        if self._experiment.compile != "off":
            network.compile(mode=self._experiment.compile, dynamic=False)
        return network

    def _what_was_evaluated(self, manifest: Manifest, identity: Identity) -> dict[str, Any]:
        experiment = self._experiment
        return {
            "stream": identity.stream,
            "position": identity.position,
            "seed": identity.seed,
            "fingerprint": identity.fingerprint.sha256,
            "fingerprint_parts": identity.fingerprint.text,
            "code_sha256": identity.code_sha256,
            "benchmark": self._benchmark,
            "experiment": self._name,
            "model": self._model.name,
            "architecture": self._model.architecture,
            "weights": self._model.weights,
            "weights_sha256": self._model.weights_sha256,
            "mean": self._model.mean,
            "std": self._model.std,
            "method": experiment.method,
            "protocol": experiment.protocol.name,
            "subset": experiment.subset.name if experiment.subset else "all",
            "corruption": manifest.corruption,
            "severity": manifest.severity,
            "generated": manifest.source.generated,
            "config": json.dumps(_config(self._experiment), sort_keys=True),
        }

    def _machine_facts(self) -> dict[str, Any]:
        experiment = self._experiment
        return {
            **machine_facts(self._device),
            "decode_threads": self._num_threads,
            "num_processes": self._ranks.num_ranks,
            "batch_size": experiment.batch_size,
            "precision": experiment.precision,
            "compile": experiment.compile,
            "pinned_memory": self._device.type == "cuda",
        }


def measure(
    feed: Feed,
    stream: Stream,
    *,
    device: torch.device,
    precision: Precision,
    advance: Callable[[int], None],
    ranks: Ranks = ALONE,
) -> Measured:
    """Make the pass, and count what the method does in it; of several processes, all of it together.

    Raises:
        StreamError: a sample cannot be read or decoded.
        EvaluationError: the device is out of memory.
    """
    before = _counters(feed)
    reset_peak_memory(device)
    collected = run_pass(feed, stream, device=device, precision=precision, advance=advance)
    counters = {name: count - before[name] for name, count in _counters(feed).items()}
    collected, counters = ranks.gathered(collected, counters)
    return Measured(collected=collected, counters=counters)


def results(
    opened: Opened,
    measured: Measured,
    *,
    device: torch.device,
    pipeline_setup_s: float,
    load: float | None,
    facts: Callable[[Manifest], Mapping[str, Any]],
) -> Iterator[Result]:
    """Yield what came of each cell; what a stream of several took is divided among them by samples.

    Args:
        opened: What was streamed.
        measured: The pass.
        device: What it was computed on.
        pipeline_setup_s: What the construction of the stream took.
        load: Of the machine before the pass.
        facts: What is known of each cell's evaluation besides: subject, model, method and machine.
    """
    collected, counters = measured.collected, measured.counters
    set_numbers = opened.joined.set_numbers(collected.indices)
    num_before = 0
    for number, manifest in enumerate(opened.manifests):
        is_in = set_numbers == number
        if not is_in.any():
            continue  # a slow stream has not come by
        own = collected.of(is_in)
        part = Share(num_before=num_before, num_own=int(is_in.sum()), num_all=len(is_in))
        num_before += part.num_own
        positions = own.indices - opened.joined.starts[number]
        row = Evaluation(
            **facts(manifest),
            **_data_facts(opened, number),
            **_outcome(own, num_classes=len(manifest.classes)),
            load_average=load,
            first_samples=_first(own, positions),
            **_timing(collected, part),
            **_parts(counters, part),
            samples_sha256=None,
            copied_from=None,
            metadata_scan_s=part.of(opened.metadata_scan_s),
            staging_s=part.of(opened.staging_s),
            pipeline_setup_s=part.of(pipeline_setup_s),
            peak_cuda_gib=peak_cuda_gib(device),
            peak_rss_gib=peak_rss_gib(),
            diverged=counters["num_nonfinite_batches"] > 0 or (counters["num_updates"] > 0 and _collapsed(own)),
        )
        samples = SamplePredictions(
            positions=positions,
            predictions=own.predictions,
            confidences=own.confidences.astype(np.float32),
        )
        yield Result(row=row, samples=samples)


def _data_facts(opened: Opened, number: int) -> dict[str, Any]:
    """Return what was read: the *number*-th set that was opened, and the order of its samples."""
    manifest, stored = opened.manifests[number], opened.manifests[number].order
    return {
        "manifest_sha256": manifest.sha256,
        "num_images": manifest.num_samples,
        "num_classes_found": len(np.unique(opened.joined.sets[number].index.labels)),
        "num_shards": len(manifest.shards),
        "payload_bytes": manifest.payload_bytes,
        "shard_bytes": manifest.shard_bytes,
        "stored_order": f"{stored.name}, seed {stored.seed}",
        "stream_order": opened.order_name,
        "order_hash": opened.order.sha256,
        "subset_sha256": opened.subset_sha256s[number],
    }


def _first(own: Pass, positions: npt.NDArray[np.int64]) -> FirstSamples:
    confidences = np.nan_to_num(own.confidences[:NUM_PREVIEWED])
    return FirstSamples(
        positions=tuple(positions[:NUM_PREVIEWED].tolist()),
        predictions=tuple(own.predictions[:NUM_PREVIEWED].tolist()),
        confidences=tuple(confidences.tolist()),
    )


def _outcome(collected: Pass, *, num_classes: int) -> dict[str, Any]:
    correct = collected.predictions == collected.labels
    # A label beside NaN has the last rank, though NaN is also what is predicted.
    top5 = correct | (collected.label_ranks < min(TOP, num_classes))
    # A broken model's confidence is no number; it counts as none.
    confidences = np.nan_to_num(collected.confidences)
    calibration = calibration_bins(confidences, correct)
    return {
        "metrics_version": METRICS_VERSION,
        "num_samples": len(correct),
        "num_correct": int(correct.sum()),
        "num_correct_top5": int(top5.sum()),
        "error": 1 - float(correct.mean()),
        "top5_error": 1 - float(top5.mean()),
        "nll": finite_mean(-collected.log_likelihoods),
        "brier": finite_mean(collected.brier_scores),
        "ece": calibration.ece,
        "max_calibration_error": calibration.max_error,
        "rms_calibration_error": calibration.rms_error,
        "calibration": calibration,
        "num_predicted_classes": len(np.unique(collected.predictions)),
        "class_counts": class_counts(collected.labels, correct, num_classes=num_classes),
        "predictions_sha256": hashlib.sha256(collected.predictions.astype("<i8").tobytes()).hexdigest(),
    }


def _collapsed(own: Pass) -> bool:
    """Return whether nearly all of the later half of the samples, which are of several classes, got one prediction."""
    later = slice(len(own.labels) // 2, None)
    shares = [
        np.unique(of, return_counts=True)[1].max() / len(of) for of in (own.predictions[later], own.labels[later])
    ]
    return bool(len(own.labels[later]) >= _MIN_COLLAPSED and shares[0] > _COLLAPSED and shares[1] < _VARIED)


@dataclass(frozen=True, kw_only=True)
class Share:
    """The part that one cell has in a stream of several, by samples."""

    num_before: int
    """Samples of the cells before it."""
    num_own: int
    num_all: int

    def of(self, total: float) -> float:
        """Return the part of *total*."""
        return total * self.num_own / self.num_all

    def of_count(self, total: int) -> int:
        """Return the part of *total*, a whole number; the parts of all cells add up to it."""
        return total * (self.num_before + self.num_own) // self.num_all - total * self.num_before // self.num_all


def _parts(counters: Mapping[str, int], part: Share) -> dict[str, Any]:
    return {name: part.of_count(count) for name, count in counters.items()}


def _timing(collected: Pass, part: Share) -> dict[str, Any]:
    first = collected.batches[0]
    return {
        "num_batches": len(collected.batches),
        "time_to_first_batch_s": first.data_wait_s,
        "first_batch_compute_s": first.compute_s,
        "wall_s": part.of(collected.wall_s),
        "images_per_s": len(collected.labels) / collected.wall_s,
        "data_wait_s": part.of(sum(batch.data_wait_s for batch in collected.batches)),
        "host_to_device_s": part.of(sum(batch.host_to_device_s for batch in collected.batches)),
        "compute_s": part.of(sum(batch.compute_s for batch in collected.batches)),
        "batches": NO_BATCHES if part.num_before else _in_columns(collected.batches),
    }


def _in_columns(batches: Sequence[BatchTiming]) -> Batches:
    # To the nanosecond: what a clock says beyond it is noise, and long numbers take long to read.
    return Batches(
        **{field.name: tuple(round(getattr(batch, field.name), 9) for batch in batches) for field in fields(Batches)}
    )


def _config(experiment: Experiment) -> dict[str, object]:
    return {
        **experiment.model_dump(mode="json"),
        "hyperparameters": experiment.configured().model_dump(mode="json"),
    }


def _counters(feed: Feed) -> dict[str, int]:
    names = (
        "num_forwards", "num_backwards", "num_adapted_samples", "num_updates", "num_resets", "num_nonfinite_batches",
    )  # fmt: skip
    return {**{name: getattr(feed.method, name) for name in names}, "num_unadapted": feed.num_unadapted}


def require_every_sample_once(seen: npt.NDArray[np.int64], opened: Opened) -> None:
    """Refuse a pass that was not over the samples of the stream, each once and in their order.

    Raises:
        EvaluationError: it was not.
    """
    expected = len(opened.order)
    if len(seen) != expected or len(np.unique(seen)) != expected or not np.array_equal(seen, opened.order.indices):
        raise EvaluationError(
            f"{opened.name}: saw {len(seen)} samples, {len(np.unique(seen))} of them different; expected the "
            f"stream's {expected}, each once: this is a fault of the stream, and no result was recorded"
        )
