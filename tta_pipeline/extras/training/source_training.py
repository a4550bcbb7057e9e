"""Trains a source model of a benchmark: from its training shards to weights with the facts that verify them."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from tta_pipeline.benchmarks.model_specs import TrainedModel
from tta_pipeline.benchmarks.open_source import open_source
from tta_pipeline.benchmarks.training_input import TrainingInputSettings
from tta_pipeline.domain import ordering
from tta_pipeline.domain.cells import CLEAN, TRAIN
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.device.devices import require_float64
from tta_pipeline.evaluation.device.leases import leased_device
from tta_pipeline.evaluation.machine import Machine, machine_facts
from tta_pipeline.extras.training.checkpoints import Checkpoints
from tta_pipeline.extras.training.initial_network import make_initial_network
from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.extras.training.learner import Weights
from tta_pipeline.extras.training.listed_files import find_loose_files
from tta_pipeline.extras.training.loop import Trained, Training
from tta_pipeline.extras.training.ranks import SINGLE_RANK, Ranks
from tta_pipeline.extras.training.training_on_disk import TrainingOnDisk
from tta_pipeline.loading.device import pins_memory
from tta_pipeline.models.model_kind import kind_of
from tta_pipeline.models.normalized import Normalized
from tta_pipeline.models.trained_models import (
    SourceModelFacts,
    encode_weights,
    write_source_model,
)
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import locked, make_cache_folder, write_atomically


@dataclass(frozen=True, kw_only=True)
class SourceTraining(TrainingOnDisk):
    """The training of one model of a benchmark, and the locations of its files."""

    def train(self, *, machine: Machine, ranks: Ranks = SINGLE_RANK, say: Callable[[str], None]) -> None:
        """Train the model, or resume its training, unless the same training has ended; the first process saves it."""
        shard_set = self.shard_set(TRAIN)
        if self._find_finished(shard_set) is None:
            self.locations.require_own(self.path)
        with self._alone(ranks):
            ranks.wait_for_all()  # the first process has waited until no other run trains this model
            if self._find_finished(shard_set) is None:
                self._train(shard_set, machine, ranks, say)

    @contextmanager
    def _alone(self, ranks: Ranks) -> Iterator[None]:
        """Keep other runs from training the same model at the same time."""
        if not ranks.is_first:
            yield
            return
        make_cache_folder(self.folder)
        with locked(self.folder / ".lock"):
            yield

    def _train(self, shard_set: ShardSet, machine: Machine, ranks: Ranks, say: Callable[[str], None]) -> None:
        settings = self.settings
        learnt, validating = self._split(shard_set)
        with ExitStack() as stack:
            device = ranks.device or stack.enter_context(leased_device(machine.device, say))
            require_float64(device)
            inputs = _Inputs(
                image_size=self.benchmark.image_size, settings=settings, machine=machine, ranks=ranks, device=device,
            )  # fmt: skip
            num_classes = len(shard_set.manifest.classes)
            network = make_initial_network(settings, inputs.mixed(learnt), num_classes=num_classes)
            images = inputs.training(learnt, self._loose_files(learnt))
            checkpoints = Checkpoints(folder=self.folder, fingerprint=self.fingerprint(shard_set))
            trained = Training(
                network,
                settings,
                num_classes=num_classes,
                images=images,
                validation=inputs.plain(validating, ranks) if validating else None,
                device=device,
                ranks=ranks,
                checkpoints=checkpoints,
                say=say,
            ).run()
            if not ranks.is_first:
                return
            run = self._training_run(shard_set, images, network, trained, num_ranks=ranks.num_ranks, device=device)
            self._save(self._facts(shard_set, network, run), trained)
        checkpoints.remove()

    def _loose_files(self, shard_set: ShardSet) -> tuple[Path, ...] | None:
        """Return the files from which *shard_set* was made, if the training reads them."""
        if self.settings.loader != "imagefolder":
            return None
        return find_loose_files(shard_set, open_source(self.benchmark, self.locations).listing(TRAIN))

    def _split(self, shard_set: ShardSet) -> tuple[ShardSet, ShardSet | None]:
        """Return the images to learn from, and the images for validation or None.

        Validation uses a share held out by the seed, or else the clean test images.
        """
        share, num_samples = self.settings.held_out, len(shard_set.index)
        if not share:
            return shard_set, self.shard_set(CLEAN) if self.benchmark.has_clean else None
        num_held_out = round(share * num_samples)
        if not 0 < num_held_out < num_samples:
            raise EvaluationError(
                f"held_out is {share} of {num_samples} images, which is {num_held_out}; expected at least one, and one "
                "to learn: correct held_out"
            )
        ranked = ordering.permuted(shard_set.index.keys, seed=self.settings.seed)
        held_out, learnt = np.sort(ranked[:num_held_out]), np.sort(ranked[num_held_out:])
        return shard_set.select_samples(learnt), shard_set.select_samples(held_out)

    def _save(self, facts: SourceModelFacts, trained: Trained) -> None:
        """Write the last and the best weights, then the weights to evaluate with the facts that verify them."""
        for name, weights in (("last", trained.last), ("best", trained.best)):
            if weights is not None:
                write_atomically(self.folder / f"{name}.safetensors", _encoded(weights))
        write_source_model(self.path, _encoded(self._selected_weights(trained)), facts)

    def _selected_weights(self, trained: Trained) -> Weights:
        return trained.best if self.settings.select == "best" and trained.best is not None else trained.last

    def _training_run(
        self,
        shard_set: ShardSet,
        images: TrainingInput,
        network: Normalized,
        trained: Trained,
        *,
        num_ranks: int,
        device: torch.device,
    ) -> TrainingRun:
        """Return the record of the training."""
        settings, totals = self.settings, trained.totals
        validated_on = "held_out" if settings.held_out else "clean" if self.benchmark.has_clean else None
        same = ("accumulate", "batch_size", "optimizer", "lr", "weight_decay", "schedule", "loader", "shuffle",
                "precision", "compile", "seed")  # fmt: skip
        return TrainingRun.from_epochs(
            trained.epochs,
            selected=settings.select,
            benchmark=self.benchmark.file,
            shift_set=self.benchmark.shift_set.name,
            model=self.model,
            architecture=kind_of(settings.network).architecture().name,
            num_parameters=sum(weights.numel() for weights in network.parameters()),
            fine_tuned=settings.fine_tune,
            fingerprint=self.fingerprint(shard_set),
            weights_sha256=hashlib.sha256(_encoded(self._selected_weights(trained))).hexdigest(),
            manifest_sha256=shard_set.manifest.sha256,
            num_samples=sum(images.batch_sizes(0)),
            settings=settings.model_dump_json(),
            num_epochs=settings.epochs,
            augmentation=_augmentation(settings),
            **{name: getattr(settings, name) for name in same},
            **machine_facts(device),
            num_ranks=num_ranks,
            torch_version=torch.__version__,
            validated_on=validated_on,
            wall_s=totals.wall_s,
            time_to_first_batch_s=totals.time_to_first_batch_s,
            checkpoint_s=totals.checkpoint_s,
            num_checkpoints=totals.num_checkpoints,
            num_resumed=totals.num_resumed,
            num_inodes=images.num_inodes,
        )

    def _facts(self, shard_set: ShardSet, network: Normalized, run: TrainingRun) -> SourceModelFacts:
        return SourceModelFacts(
            fingerprint=run.fingerprint,
            weights_sha256=run.weights_sha256,
            network=self.settings.network,
            classes=shard_set.manifest.classes,
            mean=_triple(network.mean),
            std=_triple(network.std),
            num_samples=run.num_samples,
            train_error=run.train_error,
            validation_error=run.validation_error,
            wall_s=run.wall_s,
            run=json.loads(json.dumps(run.facts())),  # tuples become lists
        )


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """Makes the inputs of a training."""

    image_size: int
    settings: TrainedModel
    machine: Machine
    ranks: Ranks
    device: torch.device

    def training(self, shard_set: ShardSet, loose: tuple[Path, ...] | None) -> TrainingInput:
        """Return the images to learn from, shuffled and augmented."""
        return self._input(shard_set, self.settings, self.ranks, loose)

    def plain(self, shard_set: ShardSet, ranks: Ranks) -> TrainingInput:
        """Return images as they are evaluated."""
        return self._input(shard_set, TrainingInputSettings(augmentation="none", shuffle="stored"), ranks)

    def mixed(self, shard_set: ShardSet) -> TrainingInput:
        """Return images as they are evaluated, in random order."""
        return self._input(shard_set, TrainingInputSettings(augmentation="none"), SINGLE_RANK)

    def _input(
        self, shard_set: ShardSet, settings: TrainingInputSettings, ranks: Ranks, loose: tuple[Path, ...] | None = None
    ) -> TrainingInput:
        return TrainingInput(
            shard_set=shard_set,
            settings=settings,
            image_size=self.image_size,
            batch_size=self.settings.batch_size,
            seed=self.settings.seed,
            num_threads=self.machine.num_threads,
            rank=ranks.rank,
            num_ranks=ranks.num_ranks,
            pin_memory=pins_memory(self.device),
            loose=loose,
        )


def _encoded(weights: Weights) -> bytes:
    """Return the content of the weight file, without the normalisation around the network, which is in the facts."""
    own = "network."
    return encode_weights({name.removeprefix(own): value for name, value in weights.items() if name.startswith(own)})


def _triple(channels: torch.Tensor) -> tuple[float, float, float]:
    first, second, third = channels.flatten().tolist()
    return first, second, third


def _augmentation(settings: TrainedModel) -> str:
    """Return the augmentations in the words of the benchmark file, such as `full + augmix + mixup`."""
    more = [name for name in ("randaugment", "augmix", "mixup", "cutmix") if getattr(settings, name)]
    return " + ".join([settings.augmentation, *more])
