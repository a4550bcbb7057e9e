"""Trains a source model of a benchmark: from its training shards to weights with the facts that verify them."""

import hashlib
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.model_specs import TrainedModel
from tta_pipeline.benchmarks.open_images import open_images
from tta_pipeline.benchmarks.training_recipe import TrainingInputSettings
from tta_pipeline.domain import ordering
from tta_pipeline.domain.cells import CLEAN, TRAIN, Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError, RecordError
from tta_pipeline.evaluation.device.devices import require_float64
from tta_pipeline.evaluation.device.leases import leased_device
from tta_pipeline.evaluation.machine import Machine, machine_facts
from tta_pipeline.extras.training.checkpoints import Checkpoints
from tta_pipeline.extras.training.initial_network import make_initial_network
from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.extras.training.learner import Learner, Weights
from tta_pipeline.extras.training.listed_files import find_loose_files
from tta_pipeline.extras.training.loop import Course, Training
from tta_pipeline.extras.training.ranks import own_rank, told_by_first
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.models.model_kind import kind_of
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.models.trained_models import (
    SourceModelFacts,
    find_trained,
    training_fingerprint,
    write_source_model,
)
from tta_pipeline.results.names import find_results
from tta_pipeline.results.result_files import read_result
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import make_cache_folder, write_atomically
from tta_pipeline.util.locks import locked

TRAININGS = "trainings"
"""Folder of trainings in a benchmark's results."""

_IN_RANDOM_ORDER = TrainingInputSettings(augmentation="none")
_IN_ORDER_OF_SHARDS = TrainingInputSettings(augmentation="none", shuffle="buffer", buffer_samples=1)
"""Images as they are evaluated; shard by shard, so that a few large reads suffice."""


@dataclass(frozen=True, kw_only=True)
class SourceTraining:
    """The training of one model of a benchmark, finished or not, and the locations of its files."""

    benchmark: Benchmark
    model: str
    locations: Locations

    @property
    def settings(self) -> TrainedModel:
        """Settings of the training in the benchmark file."""
        return self.benchmark.trained_models[self.model]

    @property
    def path(self) -> Path:
        """File of the weights to evaluate."""
        return self.locations.source_model(self.benchmark.name, self.model)

    @property
    def folder(self) -> Path:
        """Folder of the checkpoints, and of the last and the best weights."""
        return self.locations.training(self.benchmark.name, self.model)

    def shard_set(self, cell: Cell) -> ShardSet:
        """Return the verified shard set of *cell*, the training or the clean images.

        Raises:
            ManifestError: the shards are missing, or differ from the manifest.
        """
        belonging = expected_for_benchmark(self.benchmark, self.locations, cell)
        shard_set = ShardSet.open(self.locations.shards(self.benchmark.name, cell), belonging)
        shard_set.require_intact()
        return shard_set

    def find_finished(self, shard_set: ShardSet | None = None) -> TrainingRun | None:
        """Return the training of the model if it used the current shards and settings, otherwise None.

        Args:
            shard_set: The training images; None: they are opened.

        Raises:
            ManifestError: the training shards are missing, or differ from their manifest.
        """
        manifest = (shard_set or self.shard_set(TRAIN)).manifest
        return find_trained(self.path, manifest, self.settings, image_size=self.benchmark.image_size)

    def require_finished(self) -> TrainingRun:
        """Return the training of the model, which must have used the current shards and settings.

        Raises:
            EvaluationError: the model is missing or from another training.
        """
        found = self.find_finished()
        if found is None:
            raise EvaluationError(
                f"{self.path} is missing, or belongs to another training; expected the weights of a finished "
                "training: materialize source_model"
            )
        return found

    def is_recorded(self, run: TrainingRun) -> bool:
        """Return whether there is a result of a training like *run*, with the same weights."""
        for path in find_results(self.locations.results(self.benchmark.name) / TRAININGS, run.fingerprint):
            with suppress(RecordError):  # damaged; it is set aside when results are published
                found = read_result(path).result.training
                if found and (found.weights_sha256, found.model) == (run.weights_sha256, run.model):
                    return True
        return False

    def train(self, *, machine: Machine, say: Callable[[str], None], device: torch.device | None = None) -> None:
        """Train the model, or resume its training, unless the same training has ended; the first process saves it.

        Args:
            machine: Device and threads.
            say: Called with messages about progress.
            device: Device of this one of several processes; None: a free device of *machine*.

        Raises:
            EvaluationError: the network does not suit the benchmark, or the loss is NaN or infinite.
            StreamError: an image cannot be read.
        """
        shard_set = self.shard_set(TRAIN)
        if self.find_finished(shard_set) is None:
            self.locations.require_own(self.path)
        make_cache_folder(self.folder)
        with locked(self.folder / ".lock") if own_rank()[0] == 0 else nullcontext():
            # The first process has waited until no other run trains this model, and checks for all processes.
            if told_by_first(self.find_finished(shard_set) is None):
                self._train(shard_set, machine, say, device)

    def _train(
        self, shard_set: ShardSet, machine: Machine, say: Callable[[str], None], device: torch.device | None
    ) -> None:
        settings, num_classes = self.settings, len(shard_set.manifest.classes)
        learnt, validating = self._split(shard_set)
        checkpoints = Checkpoints(folder=self.folder, fingerprint=self._fingerprint(shard_set))
        with ExitStack() as stack:
            device = device or stack.enter_context(leased_device(machine.device, say))
            rank, num_ranks = own_rank()
            require_float64(device)
            images = TrainingInput(
                shard_set=learnt,
                settings=settings,
                image_size=self.benchmark.image_size,
                batch_size=settings.batch_size,
                seed=settings.seed,
                num_threads=machine.num_threads,
                rank=rank,
                num_ranks=num_ranks,
                pin_memory=pins_memory(device),
                loose=self._loose_files(learnt),
            )
            mixed = replace(images, settings=_IN_RANDOM_ORDER, rank=0, num_ranks=1)
            network = make_initial_network(settings, mixed, num_classes=num_classes)
            learner = Learner(
                network,
                settings,
                num_classes=num_classes,
                steps_per_epoch=len(images.batch_sizes),
                device=device,
                num_ranks=num_ranks,
            )
            course = Training(
                learner,
                settings,
                images=images,
                validation=replace(images, shard_set=validating, settings=_IN_ORDER_OF_SHARDS) if validating else None,
                device=device,
                checkpoints=checkpoints,
                say=say,
            ).run()
            if rank == 0:
                self._save(network, learner.weights(), course, images, device)
                checkpoints.remove()

    def _fingerprint(self, shard_set: ShardSet) -> str:
        return training_fingerprint(self.settings, shard_set.manifest, image_size=self.benchmark.image_size)

    def _loose_files(self, shard_set: ShardSet) -> tuple[Path, ...]:
        """Return the files from which *shard_set* was made, if the training reads them."""
        if self.settings.loader != "imagefolder":
            return ()
        return find_loose_files(shard_set, open_images(self.benchmark, self.locations).listing(TRAIN))

    def _split(self, shard_set: ShardSet) -> tuple[ShardSet, ShardSet | None]:
        """Return the images to learn from, and the images for validation or None.

        Validation uses a share held out by the seed, otherwise the clean test images.
        """
        share, num_samples = self.settings.val_fraction, len(shard_set.index)
        if not share:
            return shard_set, self.shard_set(CLEAN) if self.benchmark.has_clean else None
        num_held_out = round(share * num_samples)
        if not 0 < num_held_out < num_samples:
            raise EvaluationError(
                f"val_fraction is {share} of {num_samples} images, which makes {num_held_out} for validation; "
                "expected at least one image for validation and one for training: correct val_fraction"
            )
        ranked = ordering.permuted(shard_set.index.keys, seed=self.settings.seed)
        held_out, learnt = np.sort(ranked[:num_held_out]), np.sort(ranked[num_held_out:])
        return shard_set.select_samples(learnt), shard_set.select_samples(held_out)

    def _save(
        self, network: Normalized, last: Weights, course: Course, images: TrainingInput, device: torch.device
    ) -> None:
        """Write the last and the best weights, then the weights to evaluate with the facts that verify them."""
        weights = {"last": _encoded(last), **({"best": _encoded(course.best)} if course.best else {})}
        for name, content in weights.items():
            write_atomically(self.folder / f"{name}.safetensors", content)
        kept = weights.get(self.settings.select, weights["last"])
        facts = SourceModelFacts(
            classes=images.shard_set.manifest.classes,
            mean=tuple(network.mean.flatten().tolist()),
            std=tuple(network.std.flatten().tolist()),
            run=self._training_run(network, kept, course, images, device),
        )
        write_source_model(self.path, kept, facts)

    def _training_run(
        self, network: Normalized, weights: bytes, course: Course, images: TrainingInput, device: torch.device
    ) -> TrainingRun:
        settings = self.settings
        return TrainingRun.from_epochs(
            course.epochs,
            selected=settings.select,
            benchmark=self.benchmark.file,
            dataset=self.benchmark.dataset.name,
            model=self.model,
            architecture=kind_of(settings.network).architecture().name,
            num_parameters=sum(parameter.numel() for parameter in network.parameters()),
            fine_tuned=settings.fine_tune,
            fingerprint=self._fingerprint(images.shard_set),
            weights_sha256=hashlib.sha256(weights).hexdigest(),
            manifest_sha256=images.shard_set.manifest.sha256,
            num_samples=sum(images.batch_sizes),
            settings=settings.model_dump_json(),
            num_epochs=settings.epochs,
            augmentation=_augmentation(settings),
            batch_size=settings.batch_size,
            optimizer=settings.optimizer,
            lr=settings.lr,
            loader=settings.loader,
            **machine_facts(device),
            num_ranks=images.num_ranks,
            torch_version=torch.__version__,
            validated_on="held_out" if settings.val_fraction else "clean" if self.benchmark.has_clean else None,
            wall_s=course.wall_s,
            time_to_first_batch_s=course.time_to_first_batch_s,
            num_resumed=course.num_resumed,
            num_inodes=images.num_inodes,
        )


def _encoded(weights: Weights) -> bytes:
    """Return the content of the weight file, without the network's normalisation, which is in the facts."""
    own = "network."
    encoded: bytes = save(
        {name.removeprefix(own): value.contiguous() for name, value in weights.items() if name.startswith(own)}
    )
    return encoded


def _augmentation(settings: TrainedModel) -> str:
    """Return the augmentations as in the benchmark file, such as `full + augmix + mixup`."""
    more = [name for name in ("randaugment", "augmix", "mixup", "cutmix") if getattr(settings, name)]
    return " + ".join([settings.augmentation, *more])
