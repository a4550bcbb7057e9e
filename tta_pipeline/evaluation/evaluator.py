"""Evaluation of one experiment, loaded once, over the segments of its streams."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypedDict

import torch
from torch import nn

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.build_records import (
    MeasuredPass,
    Measurement,
    merge_parts,
    require_every_sample_once,
)
from tta_pipeline.evaluation.device.arithmetic import Precision, arithmetic, arithmetic_flags
from tta_pipeline.evaluation.device.clock import Clock
from tta_pipeline.evaluation.device.memory import out_of_memory_error, reset_peak_memory
from tta_pipeline.evaluation.feature_cache import (
    FeatureCacheEntry,
    FeatureLoader,
    capturing,
    find_head,
    reading_features,
)
from tta_pipeline.evaluation.fingerprint import EVALUATION_VERSION, NETWORK_CODE
from tta_pipeline.evaluation.frozen_layers import describe_frozen_layers
from tta_pipeline.evaluation.machine import load_average, machine_facts
from tta_pipeline.evaluation.one_pass import run_pass
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.evaluation.protocol_driver import ProtocolDriver, make_driver
from tta_pipeline.evaluation.ranks import SINGLE_RANK, Ranks
from tta_pipeline.evaluation.timing import timed
from tta_pipeline.loading.batch_loader import BatchLoader
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.loading.device import as_floats, move_to_device, pins_memory
from tta_pipeline.loading.joined_sets import JoinedPixels
from tta_pipeline.loading.loose_files import LooseFileLoader
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import Pixels, StoredPixels
from tta_pipeline.loading.stream_order import StreamOrder
from tta_pipeline.methods import build
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.stateful import StateDict
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.source_code import source_sha256


@dataclass(frozen=True, kw_only=True)
class CleanBatches:
    """Clean images with labels, for methods that need source data before the stream; can be iterated repeatedly."""

    stream: Stream
    device: torch.device

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images, float32 (B, 3, H, W) in [0, 1], and labels, int64 (B,), on the device."""
        for batch in move_to_device(self.stream, self.device):
            yield as_floats(batch.images), batch.labels.to(self.device, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Schedule on which the evaluation of a segment saves its state."""

    every: int
    """Number of samples between two checkpoints; rounded up to whole batches, so that it changes no prediction."""
    save: Callable[[int, MeasuredPass], None]
    """Called with the number of finished parts and the last of these parts."""


class _LoaderSettings(TypedDict):
    order: StreamOrder
    batch_size: int
    image_size: int
    num_threads: int
    pin_memory: bool


class Evaluator:
    """One experiment with its model loaded once, for any number of cells."""

    def __init__(
        self,
        *,
        experiment: Experiment,
        model: LoadedModel,
        image_size: int,
        device: torch.device,
        num_threads: int,
        open_pixels: Callable[[ShardSet, int], Pixels] = StoredPixels,
        kept_in: DecodedCache | None = None,
        ranks: Ranks = SINGLE_RANK,
        source: OpenStream | None = None,
    ) -> None:
        self._source = source
        self._experiment = experiment
        self._model = model
        self._image_size = image_size
        self._device = device
        self._num_threads = num_threads
        self._open_pixels = open_pixels
        self._kept_in = kept_in
        self._ranks = ranks
        self._method: Method | None = None
        self._driver: ProtocolDriver | None = None

    def start(self, manifest: Manifest, *, seed: int) -> None:
        """Start a stream: reset the method to the source model, and seed all randomness with *seed*.

        Args:
            manifest: Manifest of the stream's first cell, which has the classes of all cells.
            seed: Seed of the stream.

        Raises:
            AdaptationError: the method does not fit the model, or lacks source data.
            EvaluationError: the device is out of memory.
        """
        torch.manual_seed(seed)
        with self._arithmetic():
            try:
                self._start(manifest, seed)
            except torch.OutOfMemoryError as error:
                raise out_of_memory_error(error, self._device, batch_size=self._experiment.batch_size) from None

    def _start(self, manifest: Manifest, seed: int) -> None:
        if self._method is None or self._method.seed != seed:
            self._method = build(
                self._experiment.method,
                self._make_network(),
                num_classes=len(manifest.classes),
                preset=self._experiment.preset,
                source_data=self._source_data(manifest),
                seed=seed,
                batch_size=self._experiment.method_batch_size,
                **self._experiment.hyperparameters,
            )
            self._compile_copies(self._method)
            if self._experiment.compile == "step":
                self._method.compile_step()
        else:
            self._method.reset()
        self._driver = make_driver(
            self._experiment.protocol,
            self._method,
            make_source=self._make_network,
            synchronize=Clock(self._device).synchronize,
        )

    def evaluate(
        self,
        opened: OpenStream,
        advance: Callable[[int], None],
        *,
        segment: tuple[str, int] = ("", 0),
        done: Sequence[MeasuredPass] = (),
        checkpoint: Checkpoint | None = None,
    ) -> Measurement:
        """Evaluate an opened stream, and return the measurements. Call *advance* with each batch's size.

        The method continues from its current state; call `start` before the first segment of a stream.

        Args:
            opened: The stream.
            advance: Called with the size of each batch.
            segment: Stream and position of the segment: features are cached for each, since a network may draw.
            done: Parts of the stream that were evaluated before an interruption; only the rest is evaluated now.
            checkpoint: When and how to save finished parts; None: the stream is one part.

        Raises:
            StreamError: a sample cannot be read or decoded, or its loose file does not match the manifest.
            ManifestError: a shard was changed while webdataset read it.
            EvaluationError: not every sample was seen exactly once, or the device is out of memory.
        """
        assert self._driver is not None, "call start before a stream"
        load = load_average()
        with timed() as setup:
            order = self._ranks.take_share(opened.order, self._experiment.batch_size)
            with self._arithmetic():
                kept = self._feature_cache(self._driver, opened, segment)
            features = kept.read() if kept else None
            num_done = sum(len(part.collected.samples.indices) for part in done)
            parts = self._part_slices(order, num_done, checkpoint)
            stream = self._make_loader(opened, order, features, next(parts))
        self._ranks.require_stateless(self._driver)
        if num_done:
            advance(num_done)
        measured = list(done)
        # Features that an earlier process captured are lost, so a resumed pass cannot capture all of them.
        with self._arithmetic(), _sharing(self._driver.method, None if done and features is None else kept, features):
            while True:
                measured.append(self._measure_part(self._driver, stream, advance))
                part = next(parts, None)
                if part is None or checkpoint is None:
                    break
                checkpoint.save(len(measured), measured[-1])
                stream = self._make_loader(opened, order, features, part)
        whole = merge_parts(measured)
        self._require_unchanged(opened, order)
        if self._ranks.is_first:
            require_every_sample_once(whole.collected.samples.indices, opened)
        return Measurement(
            opened=opened,
            measured=whole,
            device=self._device,
            loader=self._experiment.loader if features is None else "features",
            frozen_layers=describe_frozen_layers(self._driver.method),
            num_threads=self._num_threads,
            num_processes=self._ranks.num_ranks,
            pipeline_setup_s=setup.wall_s,
            load_average=load,
        )

    def _measure_part(
        self, driver: ProtocolDriver, stream: Stream | BatchLoader, advance: Callable[[int], None]
    ) -> MeasuredPass:
        return measure_pass(
            driver,
            stream,
            device=self._device,
            precision=self._experiment.precision,
            advance=advance,
            ranks=self._ranks,
        )

    def _part_slices(self, order: StreamOrder, num_done: int, checkpoint: Checkpoint | None) -> Iterator[slice]:
        """Return the parts of *order* that follow its first *num_done* samples, each made of whole batches."""
        batch_size = self._experiment.batch_size
        step = len(order) if checkpoint is None else -(-checkpoint.every // batch_size) * batch_size
        return (slice(start, min(start + step, len(order))) for start in range(num_done, len(order), step))

    def state_dict(self) -> StateDict:
        """Return a copy of the state for the next segment of the stream, for `torch.save`."""
        assert self._driver is not None, "call start before a stream"
        return self._driver.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`; call `start` first.

        Raises:
            AdaptationError: *state* belongs to another method or model.
        """
        assert self._driver is not None, "call start before a stream"
        self._driver.load_state_dict(state)

    def _arithmetic(self) -> AbstractContextManager[None]:
        experiment = self._experiment
        return arithmetic(self._device.type, experiment.precision, deterministic=experiment.deterministic)

    @cached_property
    def _network_code_sha256(self) -> str:
        """Hash of the code around the network, computed once, so that later edits do not change it."""
        return source_sha256(NETWORK_CODE)

    def _feature_cache(
        self, driver: ProtocolDriver, opened: OpenStream, segment: tuple[str, int]
    ) -> FeatureCacheEntry | None:
        """Return the cache for the features of the stream; None if the method reads more than features.

        A user's own method has none: its base class does not tell what it does to the network.
        """
        experiment = self._experiment
        is_plain = (
            ":" not in experiment.method
            and experiment.loader == "indexed"
            and experiment.compile == "off"
            and self._ranks.num_ranks == 1
        )
        if self._kept_in is None or not is_plain or not driver.gives_whole_batches or find_head(driver.method) is None:
            return None
        return FeatureCacheEntry(
            self._kept_in,
            determined_by={
                "version": EVALUATION_VERSION, "code": self._network_code_sha256,
                "model": self._model.identity,
                "stream": [*segment, driver.method.seed],  # of a network that draws
                "arithmetic": arithmetic_flags(),
                "machine": dict[str, Any](machine_facts(self._device)), "image_size": self._image_size,
                "batch_size": experiment.batch_size, "precision": experiment.precision,
                "manifests": [manifest.sha256 for manifest in opened.manifests],
                "order": hashlib.sha256(opened.order.indices.astype("<i8").tobytes()).hexdigest(),
            },
            manifest_sha256=opened.manifests[0].sha256,
            num_samples=len(opened.order),
        )  # fmt: skip

    def _make_loader(
        self, opened: OpenStream, whole: StreamOrder, features: torch.Tensor | None, part: slice
    ) -> Stream | BatchLoader:
        """Return the samples of *part* of the order *whole*, from *features* or by the experiment's loader."""
        order = whole if part == slice(0, len(whole)) else replace(whole, indices=whole.indices[part])
        settings = _LoaderSettings(
            order=order,
            batch_size=self._experiment.batch_size,
            image_size=self._image_size,
            num_threads=self._num_threads,
            pin_memory=pins_memory(self._device),
        )
        if features is not None:
            return FeatureLoader(shard_set=opened.joined, features=features[part], **settings)
        if opened.loose_files:
            return LooseFileLoader(shard_set=opened.joined, files=opened.loose_files, **settings)
        if self._experiment.loader == "webdataset":
            (shard_set,) = opened.joined.sets  # an order as stored has one shard set
            from tta_pipeline.loading.front_to_back import FrontToBackLoader  # imports webdataset

            return FrontToBackLoader(shard_set=shard_set, **settings)
        return self._make_stream(opened, order)

    def _require_unchanged(self, opened: OpenStream, order: StreamOrder) -> None:
        """Check that loaders without a check of their own have read the bytes in the manifests.

        This runs after the pass, so that it does not count as the loader's time.
        """
        if opened.loose_files:
            opened.loose_files.require_unchanged(order.indices)
        elif self._experiment.loader == "webdataset":
            for shard_set in opened.joined.sets:
                shard_set.require_intact()

    def _make_stream(self, opened: OpenStream, order: StreamOrder) -> Stream:
        return Stream(
            shard_set=opened.joined,
            order=order,
            batch_size=self._experiment.batch_size,
            image_size=self._image_size,
            num_threads=self._num_threads,
            pin_memory=pins_memory(self._device),
            open_pixels=partial(JoinedPixels, open_pixels=self._open_pixels),
        )

    def _source_data(self, manifest: Manifest) -> "CleanBatches | None":
        """Return the clean images for the method; None if it uses none."""
        if self._source is None:
            return None
        if self._source.manifests[0].class_map_sha256 != manifest.class_map_sha256:
            raise EvaluationError(
                f"{self._source.name} has other classes than {manifest.corruption} {manifest.severity}; "
                "expected the same class map: materialize both shard_manifests again"
            )
        return CleanBatches(stream=self._make_stream(self._source, self._source.order), device=self._device)

    def _make_network(self) -> nn.Module:
        """Return the model on the device, in the memory layout of the images."""
        network: nn.Module = self._model.make().to(self._device).to(memory_format=torch.channels_last)
        self._compile(network)
        return network

    def _compile(self, network: nn.Module) -> None:
        mode = self._experiment.compile
        if mode != "off":
            network.compile(mode="reduce-overhead" if mode == "step" else mode, dynamic=False)

    def _compile_copies(self, method: Method) -> None:
        """Compile the copies of the network in *method*, such as a teacher: copying a network drops its compilation."""
        for own in vars(method).values():
            if type(own) is type(method.model) and own is not method.model:
                self._compile(own)


@contextmanager
def _sharing(method: Method, kept: FeatureCacheEntry | None, features: torch.Tensor | None) -> Iterator[None]:
    """Let *method* read *features* if they are given; else write the features that it computes to *kept*, if any."""
    head = find_head(method) if kept else None
    if kept is None or head is None:
        yield
        return
    if features is not None:
        with reading_features(method, head):
            yield
        return
    with capturing(method, head, limit_bytes=kept.cells.limit_bytes) as capture:
        yield
    found = capture.features()
    if found is not None:
        kept.write(found)


def measure_pass(
    driver: ProtocolDriver,
    stream: Stream | BatchLoader,
    *,
    device: torch.device,
    precision: Precision,
    advance: Callable[[int], None],
    ranks: Ranks = SINGLE_RANK,
) -> MeasuredPass:
    """Run the pass and count the method's forwards, backwards, updates and resets, over all ranks.

    Raises:
        StreamError: a sample cannot be read or decoded.
        EvaluationError: the device is out of memory.
    """
    before = _counters(driver)
    reset_peak_memory(device)
    collected = run_pass(driver, stream, device=device, precision=precision, advance=advance)
    counters = {name: count - before[name] for name, count in _counters(driver).items()}
    collected, counters = ranks.gather(collected, counters)
    return MeasuredPass(collected=collected, counters=counters)


def _counters(driver: ProtocolDriver) -> dict[str, int]:
    names = (
        "num_forwards", "num_backwards", "num_adapted_samples", "num_updates", "num_resets", "num_nonfinite_batches",
    )  # fmt: skip
    return {**{name: getattr(driver.method, name) for name in names}, "num_unadapted": driver.num_unadapted}
