"""One cell through one method."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tta_pipeline.adaptation import build
from tta_pipeline.adaptation.method import Method
from tta_pipeline.benchmarks.spec import Experiment
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.calibration import CalibrationBins, calibration_bins
from tta_pipeline.evaluation.models import LoadedModel
from tta_pipeline.evaluation.one_pass import BatchTiming, Pass, run_pass
from tta_pipeline.evaluation.ranks import ALONE, Ranks
from tta_pipeline.evaluation.timing import Lap, peak_cuda_gib, peak_rss_gib, reset_peak_memory, timed
from tta_pipeline.shards.manifest import Manifest, ShardSet
from tta_pipeline.streaming.device import as_floats, on_device
from tta_pipeline.streaming.order import StreamOrder, as_stored
from tta_pipeline.streaming.pixels import Pixels, StoredPixels
from tta_pipeline.streaming.reader import Stream

EVALUATION_VERSION = "1"
NUM_PREVIEWED = 10
"""Samples shown with their predictions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What one pass over one cell gave. Durations are defined as in the project's first system."""

    benchmark: str
    experiment: str
    model: str
    weights: str
    weights_sha256: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    method: str
    protocol: str
    corruption: str
    severity: int
    generated: bool
    seed: int
    fingerprint: str
    """Of everything that decides the predictions; equal means that there is nothing to evaluate."""
    num_samples: int
    num_correct: int
    error: float
    """Top-1 error in [0, 1]."""
    ece: float
    calibration: CalibrationBins
    order_hash: str
    """sha256 of the samples' keys in stream order."""
    predictions_sha256: str
    """Of the predicted labels in stream order, int64 little-endian."""
    manifest_sha256: str
    device: str
    batch_size: int
    precision: str
    """Of the forward pass: fp32, or what it is cast to where that is safe."""
    compile: str
    """Mode of `torch.compile`, or off."""
    num_batches: int
    metadata_scan_s: float
    """Reading the manifest and making sure that the shards are the ones it describes."""
    pipeline_setup_s: float
    """Constructing the stream."""
    time_to_first_batch_s: float
    """From the start of the pass until the first batch is there."""
    first_batch_compute_s: float
    """Computation of the first batch, cold caches included."""
    wall_s: float
    """The whole pass: fetching and computing, from before the first batch to after the last."""
    images_per_s: float
    """num_samples / wall_s."""
    data_wait_s: float
    """Sum over the batches."""
    host_to_device_s: float
    """Sum over the batches; 0 on a CPU."""
    compute_s: float
    """Sum over the batches."""
    peak_cuda_gib: float | None
    peak_rss_gib: float
    num_forwards: int
    """Samples, as are backwards."""
    num_backwards: int
    num_updates: int
    num_resets: int
    num_nonfinite_batches: int
    diverged: bool
    """Whether a batch had a logit that is no finite number: the error is then that of a broken model."""
    config: str
    """Experiment as JSON, with all hyperparameters."""
    batches: tuple[BatchTiming, ...]
    first_predictions: tuple[int, ...]
    """Predicted labels of the first samples of the stream, for a picture of them."""
    first_confidences: tuple[float, ...]
    """Top-1 confidence of each."""


@dataclass(frozen=True, kw_only=True)
class OpenedCell:
    """A shard set that was looked at and found to be what its manifest says, in the order it is streamed."""

    shard_set: ShardSet
    order: StreamOrder
    metadata_scan_s: float


def open_cell(folder: Path) -> OpenedCell:
    """Read manifest and index in *folder*, make sure of the shards, and plan the stream; another thread may do it.

    Raises:
        ManifestError: manifest and shards disagree.
    """
    with timed() as scan:
        shard_set = ShardSet.open(folder)
        shard_set.require_intact()
        order = as_stored(shard_set.index)
    return OpenedCell(shard_set=shard_set, order=order, metadata_scan_s=scan.wall_s)


@dataclass(frozen=True, kw_only=True)
class CleanBatches:
    """Clean images and their labels, for methods that look at some before the stream; can be iterated again."""

    stream: Stream
    device: torch.device

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images, float32 (B, 3, H, W) in [0, 1], and labels, int64 (B,), on the device."""
        for batch in on_device(self.stream, self.device):
            yield as_floats(batch.images), batch.labels.to(self.device)


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
        source: OpenedCell | None = None,
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

    def evaluate(self, cell: OpenedCell, advance: Callable[[int], None]) -> Evaluation:
        """Evaluate *cell* from the source model on; call *advance* with each batch's size.

        Raises:
            StreamError: a sample cannot be read or decoded.
            EvaluationError: not every sample of the manifest was seen exactly once, or the device is out of memory.
        """
        with timed() as setup:
            stream = Stream(
                shard_set=cell.shard_set,
                order=self._ranks.share(cell.order, self._experiment.batch_size),
                batch_size=self._experiment.batch_size,
                image_size=self._image_size,
                num_threads=self._num_threads,
                pin_memory=self._device.type == "cuda",
                open_pixels=self._open_pixels,
            )
        method = self._fresh_method(cell.shard_set.manifest)
        self._ranks.require_stateless(method)
        before = _counters(method)
        reset_peak_memory(self._device)
        collected = run_pass(method, stream, device=self._device, precision=self._experiment.precision, advance=advance)
        counters = {name: count - before[name] for name, count in _counters(method).items()}
        collected, counters = self._ranks.gathered(collected, counters)
        if self._ranks.is_first:
            _require_every_sample_once(collected.indices, cell.shard_set, cell.order)
        return self._evaluation(cell, collected, counters, setup=setup)

    def _fresh_method(self, manifest: Manifest) -> Method:
        """Return the method at the source model, with every source of randomness at the experiment's seed."""
        torch.manual_seed(self._experiment.seed)
        if self._method is None:
            self._method = build(
                self._experiment.method,
                self._network(),
                num_classes=len(manifest.classes),
                preset=self._experiment.preset,
                source_data=self._source_data(manifest),
                seed=self._experiment.seed,
                batch_size=self._experiment.batch_size,
                **self._experiment.hyperparameters,
            )
        else:
            self._method.reset()
        return self._method

    def _source_data(self, manifest: Manifest) -> "CleanBatches | None":
        """Return the clean images for a method that uses some."""
        if self._source is None:
            return None
        if self._source.shard_set.manifest.class_map_sha256 != manifest.class_map_sha256:
            raise EvaluationError(
                f"{self._source.shard_set.folder} has other classes than {manifest.corruption} {manifest.severity}; "
                "expected one class map: materialize both shard_manifests again"
            )
        return CleanBatches(
            stream=Stream(
                shard_set=self._source.shard_set,
                order=self._source.order,
                batch_size=self._experiment.batch_size,
                image_size=self._image_size,
                num_threads=self._num_threads,
            ),
            device=self._device,
        )

    def _network(self) -> nn.Module:
        """Return the model on the device, in the memory layout that images come in."""
        network: nn.Module = self._model.make().to(self._device).to(memory_format=torch.channels_last)
        if self._experiment.compile != "off":
            network.compile(mode=self._experiment.compile, dynamic=False)
        return network

    def _evaluation(self, cell: OpenedCell, collected: Pass, counters: dict[str, Any], *, setup: Lap) -> Evaluation:
        return Evaluation(
            **self._what_was_evaluated(cell.shard_set.manifest),
            **_outcome(collected),
            **_timing(collected),
            **counters,
            order_hash=cell.order.sha256,
            metadata_scan_s=cell.metadata_scan_s,
            pipeline_setup_s=setup.wall_s,
            peak_cuda_gib=peak_cuda_gib(self._device),
            peak_rss_gib=peak_rss_gib(),
            diverged=counters["num_nonfinite_batches"] > 0,
        )

    def _what_was_evaluated(self, manifest: Manifest) -> dict[str, Any]:
        return {
            "benchmark": self._benchmark,
            "experiment": self._name,
            "model": self._model.name,
            "weights": self._model.weights,
            "weights_sha256": self._model.weights_sha256,
            "mean": self._model.mean,
            "std": self._model.std,
            "method": self._experiment.method,
            "protocol": self._experiment.protocol,
            "corruption": manifest.corruption,
            "severity": manifest.severity,
            "generated": manifest.source.generated,
            "seed": self._experiment.seed,
            "fingerprint": fingerprint(
                self._experiment,
                weights_sha256=self._model.weights_sha256,
                device=self._device.type,
                manifest=manifest,
                source=self._source.shard_set.manifest if self._source else None,
            ),
            "manifest_sha256": manifest.sha256,
            "device": _device_name(self._device),
            "batch_size": self._experiment.batch_size,
            "precision": self._experiment.precision,
            "compile": self._experiment.compile,
            "config": json.dumps(_config(self._experiment), sort_keys=True),
        }


def _outcome(collected: Pass) -> dict[str, Any]:
    correct = collected.predictions == collected.labels
    # A broken model's confidence is no number; it counts as none.
    confidences = np.nan_to_num(collected.confidences)
    calibration = calibration_bins(confidences, correct)
    return {
        "num_samples": len(correct),
        "num_correct": int(correct.sum()),
        "error": 1 - float(correct.mean()),
        "ece": calibration.ece,
        "calibration": calibration,
        "predictions_sha256": hashlib.sha256(collected.predictions.astype("<i8").tobytes()).hexdigest(),
        "first_predictions": tuple(collected.predictions[:NUM_PREVIEWED].tolist()),
        "first_confidences": tuple(confidences[:NUM_PREVIEWED].tolist()),
    }


def _timing(collected: Pass) -> dict[str, Any]:
    first = collected.batches[0]
    return {
        "num_batches": len(collected.batches),
        "time_to_first_batch_s": first.data_wait_s,
        "first_batch_compute_s": first.compute_s,
        "wall_s": collected.wall_s,
        "images_per_s": len(collected.labels) / collected.wall_s,
        "data_wait_s": sum(batch.data_wait_s for batch in collected.batches),
        "host_to_device_s": sum(batch.host_to_device_s for batch in collected.batches),
        "compute_s": sum(batch.compute_s for batch in collected.batches),
        "batches": collected.batches,
    }


def fingerprint(
    experiment: Experiment, *, weights_sha256: str, device: str, manifest: Manifest, source: Manifest | None
) -> str:
    """Return the hash of everything that decides the predictions; *source* is what the method sees of clean images."""
    decisive = [EVALUATION_VERSION, _config(experiment), weights_sha256, device, manifest.sha256]
    with_source = [*decisive, source.sha256] if source else decisive
    return hashlib.sha256(json.dumps(with_source, sort_keys=True).encode()).hexdigest()


def _config(experiment: Experiment) -> dict[str, object]:
    return {
        **experiment.model_dump(mode="json"),
        "hyperparameters": experiment.configured().model_dump(mode="json"),
    }


def _counters(method: Method) -> dict[str, int]:
    names = ("num_forwards", "num_backwards", "num_updates", "num_resets", "num_nonfinite_batches")
    return {name: getattr(method, name) for name in names}


def _require_every_sample_once(seen: npt.NDArray[np.int64], shard_set: ShardSet, order: StreamOrder) -> None:
    expected = shard_set.manifest.num_samples
    if len(seen) != expected or len(np.unique(seen)) != expected or not np.array_equal(seen, order.indices):
        raise EvaluationError(
            f"{shard_set.folder}: saw {len(seen)} samples, {len(np.unique(seen))} of them different; expected the "
            f"manifest's {expected}, each once: this is a fault of the stream, and no result was recorded"
        )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
