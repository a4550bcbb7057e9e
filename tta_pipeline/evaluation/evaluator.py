"""Evaluation of one experiment over the segments of its streams, with its networks and loaders."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, cast

import torch
from torch import nn

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver, SourceModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.device.arithmetic import arithmetic
from tta_pipeline.evaluation.device.clock import Clock
from tta_pipeline.evaluation.device.memory import out_of_memory_error
from tta_pipeline.evaluation.evaluate_segment import Checkpoint, SampleLoaders, evaluate_segment
from tta_pipeline.evaluation.feature_cache import FeatureCacheEntry
from tta_pipeline.evaluation.feature_sharing import FeatureSharing
from tta_pipeline.evaluation.measured_pass import MeasuredPass, Measurement
from tta_pipeline.evaluation.open_set import threshold_of_clean
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.evaluation.probing_driver import ProbingDriver
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.loading.device import as_floats, move_to_device
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import Pixels, StoredPixels
from tta_pipeline.methods import build
from tta_pipeline.methods.method import Method
from tta_pipeline.methods.own_methods import naming_own_code, say_origin
from tta_pipeline.methods.stateful import StateDict
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.results.tuning_criteria import Probe
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.shards.shard_set import ShardSet


@dataclass(frozen=True, kw_only=True, eq=False)
class _HiddenLabels:
    """Labels that no method may read, since a class is not one of the outputs that the method adapts."""

    method: str

    def __getattr__(self, name: str) -> NoReturn:
        self._refuse()

    def __eq__(self, other: object) -> NoReturn:
        self._refuse()  # otherwise no label would equal any class, and a method would go on without source images

    __hash__ = None  # type: ignore[assignment]

    def _refuse(self) -> NoReturn:
        raise EvaluationError(
            f"{self.method} reads the labels of clean images, but here several outputs of the model stand for a class; "
            "expected a method that reads no labels: choose another one, or a model with one output for each class"
        )


@dataclass(frozen=True, kw_only=True)
class CleanBatches:
    """Clean images with labels, for methods that need source data before the stream; can be iterated repeatedly."""

    stream: Stream
    device: torch.device
    hidden: _HiddenLabels | None = None
    """Replaces the labels if they are not numbers of the model's outputs."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images, float32 (B, 3, H, W) in [0, 1], and labels, int64 (B,), on the device."""
        for batch in move_to_device(self.stream, self.device):
            hidden = cast("torch.Tensor | None", self.hidden)
            labels = batch.labels.to(self.device, non_blocking=True) if hidden is None else hidden
            yield as_floats(batch.images), labels


@dataclass(frozen=True, kw_only=True)
class NetworkMaker:
    """Makes the networks of one experiment."""

    model: LoadedModel
    device: torch.device
    compile: str
    """Mode of `Experiment.compile`."""

    def make(self) -> nn.Module:
        """Return the model on the device, in the memory layout of the images."""
        network: nn.Module = self.model.make().to(self.device).to(memory_format=torch.channels_last)
        self._compile(network)
        return network

    def compile_copies(self, method: Method) -> None:
        """Compile the copies of the network in *method*, such as a teacher: copying a network drops its compilation."""
        for own in vars(method).values():
            if type(own) is type(method.model) and own is not method.model:
                self._compile(own)

    def _compile(self, network: nn.Module) -> None:
        if self.compile != "off":
            network.compile(mode=self.compile, dynamic=False)


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
        source: OpenStream | None = None,
        known_clean: OpenStream | None = None,
        probes: frozenset[Probe] = frozenset(),
    ) -> None:
        self._probes = probes
        self._source = source
        self._known_clean = known_clean
        self._known_threshold: float | None = None
        self._experiment = experiment
        self._networks = NetworkMaker(model=model, device=device, compile=experiment.compile)
        self._device = device
        self._loaders = SampleLoaders(
            batch_size=experiment.batch_size,
            image_size=image_size,
            device=device,
            num_threads=num_threads,
            open_pixels=open_pixels,
        )
        self._features = (
            None
            if kept_in is None or probes  # features have no second view, and the source model reads images
            else FeatureSharing(
                kept_in=kept_in, experiment=experiment, model=model, image_size=image_size, device=device
            )
        )
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
                self._networks.make(),
                num_classes=self._networks.model.num_classes,
                preset=self._experiment.preset,
                source_data=self._source_data(manifest),
                seed=seed,
                batch_size=self._experiment.method_batch_size,
                **self._experiment.hyperparameters,
            )
            self._networks.compile_copies(self._method)
        else:
            with naming_own_code(self._method.name, type(self._method), "reset", expected="the state after building"):
                self._method.reset()
        source_model = SourceModel(make=self._networks.make, synchronize=Clock(self._device).synchronize)
        self._driver = self._experiment.protocol.drive(self._method, source_model)
        if self._probes:
            source = self._networks.make() if "source" in self._probes else None
            self._driver = ProbingDriver(self._driver, probes=self._probes, source=source)
        self._driver.class_logits = self._networks.model.class_logits

    def evaluate(
        self,
        opened: OpenStream,
        advance: Callable[[int], None],
        *,
        segment: tuple[str, int],
        done: Sequence[MeasuredPass] = (),
        checkpoint: Checkpoint | None = None,
    ) -> Measurement:
        """Evaluate an opened stream, and return the measurements. Call *advance* with each batch's size.

        The method continues from its current state; call `start` before the first segment of a stream.

        Args:
            opened: The stream.
            advance: Called with the size of each batch.
            segment: Stream and position of the segment: features are cached per segment, since a network may be random.
            done: Parts of the stream that were evaluated before an interruption; only the rest is evaluated now.
            checkpoint: When and how to save finished parts; None: the stream is one part.

        Raises:
            StreamError: a sample cannot be read or decoded.
            EvaluationError: not every sample was seen exactly once, or the device is out of memory.
        """
        driver = self._require_driver()
        with self._arithmetic():
            return evaluate_segment(
                driver,
                opened,
                self._loaders,
                precision=self._experiment.precision,
                advance=advance,
                kept=self._find_features(driver, opened, segment),
                done=done,
                checkpoint=checkpoint,
                known_threshold=partial(self._find_known_threshold, driver),
            )

    def _find_known_threshold(self, driver: ProtocolDriver) -> float | None:
        """Return the threshold between known and unknown images, found once; None without clean images."""
        clean = self._known_clean
        if self._known_threshold is None and clean is not None:
            self._known_threshold = threshold_of_clean(
                self._networks.make(),
                self._loaders.stream(clean, clean.order),
                driver,
                device=self._device,
                precision=self._experiment.precision,
            )
        return self._known_threshold

    @property
    def place(self) -> str:
        """Where NaN or infinite logits arise: see `say_origin`."""
        return say_origin(self._require_driver().method)

    def state_dict(self) -> StateDict:
        """Return a copy of the state for the next segment of the stream, for `torch.save`."""
        return self._require_driver().state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Restore *state* from `state_dict`; call `start` first.

        Raises:
            AdaptationError: *state* belongs to another method or model.
        """
        self._require_driver().load_state_dict(state)

    def _require_driver(self) -> ProtocolDriver:
        assert self._driver is not None, "call start before a stream"
        return self._driver

    def _arithmetic(self) -> AbstractContextManager[None]:
        experiment = self._experiment
        return arithmetic(self._device.type, experiment.precision, deterministic=experiment.deterministic)

    def _find_features(
        self, driver: ProtocolDriver, opened: OpenStream, segment: tuple[str, int]
    ) -> FeatureCacheEntry | None:
        if self._features is None:
            return None
        return self._features.find(driver, opened, segment)

    def _source_data(self, manifest: Manifest) -> "CleanBatches | None":
        """Return the clean images for the method; None if it uses none."""
        if self._source is None:
            return None
        if self._source.manifests[0].class_map_sha256 != manifest.class_map_sha256:
            raise EvaluationError(
                f"{self._source.name} has different classes from {manifest.corruption} {manifest.severity}; expected "
                "the same class map: rematerialize both shard manifests"
            )
        stream = self._loaders.stream(self._source, self._source.order)
        hidden = _HiddenLabels(method=self._experiment.method_name) if self._networks.model.class_outputs else None
        return CleanBatches(stream=stream, device=self._device, hidden=hidden)
