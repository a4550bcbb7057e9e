"""The training loop: epochs, validation and checkpoints.

All random numbers of a batch are drawn after seeding with (seed, process, batch), and the images of an epoch are a
function of (seed, epoch). A training that resumes from a checkpoint therefore continues exactly as without a stop.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from tta_pipeline.benchmarks.training_recipe import Recipe
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.device.arithmetic import arithmetic
from tta_pipeline.evaluation.device.devices import devices_with_random_state
from tta_pipeline.evaluation.device.memory import out_of_memory_error, peak_memory_gib, reset_peak_memory
from tta_pipeline.evaluation.timing import peak_rss_gib, timed
from tta_pipeline.extras.training.checkpoints import Checkpoints
from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.extras.training.learner import Learner, Weights
from tta_pipeline.extras.training.ranks import SINGLE_RANK, Ranks
from tta_pipeline.loading.device import DeviceBatch, as_floats, move_to_device
from tta_pipeline.results.training_record import TrainingEpoch
from tta_pipeline.util.files import advice
from tta_pipeline.util.progress import Progress

_MIB_PER_GIB = 1024


@dataclass(kw_only=True)
class Totals:
    """Times and counts over the whole training, across interruptions."""

    wall_s: float = 0.0
    checkpoint_s: float = 0.0
    num_checkpoints: int = 0
    num_resumed: int = 0
    time_to_first_batch_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Weights and history of a training that has ended."""

    last: Weights
    """Weights after the last epoch, of the moving average if there is one."""
    best: Weights | None
    """Weights of the epoch with the lowest validation error; None: no epoch was validated."""
    epochs: tuple[TrainingEpoch, ...]
    totals: Totals


@dataclass(kw_only=True)
class _Sums:
    """Sums over the present epoch: times of this process; losses and wrong predictions of all processes."""

    wall_s: float = 0.0
    data_wait_s: float = 0.0
    loss: float = 0.0
    num_wrong: float = 0.0
    lr: float = 0.0
    """Learning rate of the newest step."""


@dataclass(kw_only=True)
class _Position:
    """Progress of the training, as saved in checkpoints."""

    epoch: int = 0
    """Number of finished epochs."""
    batch: int = 0
    """Number of finished batches in the present epoch."""
    sums: _Sums = field(default_factory=_Sums)
    totals: Totals = field(default_factory=Totals)
    epochs: list[TrainingEpoch] = field(default_factory=list)
    best: Weights | None = None
    best_epoch: int | None = None


class Validation(NamedTuple):
    """Result of one validation, over all processes."""

    loss: float
    error: float
    """Top-1 error in [0, 1]."""
    wall_s: float


class Training:
    """A training in progress."""

    def __init__(
        self,
        network: nn.Module,
        settings: Recipe,
        *,
        num_classes: int,
        images: TrainingInput,
        validation: TrainingInput | None,
        device: torch.device,
        ranks: Ranks = SINGLE_RANK,
        checkpoints: Checkpoints,
        say: Callable[[str], None],
    ) -> None:
        """Prepare the training of *network*.

        Args:
            network: Classifier of images (B, 3, H, W) in [0, 1], with logits (B, num_classes).
            settings: Recipe.
            num_classes: Number of classes.
            images: Training images.
            validation: Images for the validation after each epoch; None: no validation.
            device: Device to train on.
            ranks: Processes that train together.
            checkpoints: Checkpoints of this training.
            say: Called with messages about progress.
        """
        self._settings = settings
        self._images = images
        self._validation = validation
        self._device = device
        self._ranks = ranks
        self._checkpoints = checkpoints
        self._say = say
        steps_per_epoch = math.ceil(images.num_batches / settings.accumulate)
        self._learner = Learner(
            network,
            settings,
            num_classes=num_classes,
            steps_per_epoch=steps_per_epoch,
            device=device,
            ranks=ranks,
        )
        self._place = _Position()
        self._sizes: Sequence[int] = ()
        """Samples in each batch of the present epoch."""
        self._counted = torch.zeros(2, device=device)
        self._of_epoch = torch.zeros(2, dtype=torch.float64, device=device)
        self._began = self._lap_began = self._saved_at = self._counted_until = time.perf_counter()

    def run(self) -> Trained:
        """Train from the newest checkpoint to the last epoch, or until `patience` ends the training."""
        self._resume()
        self._began = self._saved_at = self._counted_until = time.perf_counter()
        with (
            torch.random.fork_rng(devices=devices_with_random_state(self._device), device_type=self._device.type),
            arithmetic(self._device.type, self._settings.precision),
        ):
            while self._place.epoch < self._settings.epochs and not self._is_stuck:
                self._train_epoch()
                self._count_time()
        return Trained(
            last=self._learner.weights(),
            best=self._place.best,
            epochs=tuple(self._place.epochs),
            totals=self._place.totals,
        )

    def _train_epoch(self) -> None:
        place, number = self._place, self._place.epoch
        reset_peak_memory(self._device)
        self._learner.train()
        self._sizes = self._images.batch_sizes(number)
        progress = self._progress()
        self._lap_began = time.perf_counter()
        try:
            for batch in move_to_device(self._images.epoch(number, skip_batches=place.batch), self._device):
                place.sums.data_wait_s += batch.data_wait_s
                if not place.totals.time_to_first_batch_s:
                    place.totals.time_to_first_batch_s = time.perf_counter() - self._began
                place.sums.lr = self._learner.lr
                self._learn(batch)
                progress.advance(len(batch.indices) * self._ranks.num_ranks)
        except torch.OutOfMemoryError as error:
            raise out_of_memory_error(error, self._device, batch_size=self._settings.batch_size) from None
        self._end_epoch()

    def _learn(self, batch: DeviceBatch) -> None:
        """Learn from *batch*, and save a checkpoint if one is due."""
        place, each = self._place, self._settings.accumulate
        first = place.batch - place.batch % each
        of_step = self._sizes[first : first + each]
        place.batch += 1
        is_last = place.batch == first + len(of_step)
        self._counted += self._learner.learn(
            batch.images,
            batch.labels,
            seed=self._seed(place.epoch * self._images.num_batches + place.batch),
            step_samples=int(sum(of_step)),
            is_last=is_last,
        )
        if is_last:
            self._count_step()
        if is_last and time.perf_counter() - self._saved_at >= self._settings.checkpoint_s:
            self._save()

    def _count_step(self) -> None:
        """Sum up a step over all processes, since only the first process writes checkpoints."""
        if self._ranks.num_ranks > 1:
            dist.all_reduce(self._counted)
        self._of_epoch += self._counted
        self._counted.zero_()

    def _end_epoch(self) -> None:
        place = self._place
        self._end_lap()
        loss, num_wrong = place.sums.loss, place.sums.num_wrong
        (data_wait_s,) = self._sum_over_ranks(place.sums.data_wait_s)
        found = self._validate()
        num_samples, wall_s = int(sum(self._sizes)), place.sums.wall_s
        of_device_gib = peak_memory_gib(self._device)
        epoch = TrainingEpoch(
            epoch=place.epoch + 1,
            num_samples=num_samples,
            train_loss=loss / num_samples,
            train_error=None if self._settings.mixup or self._settings.cutmix else num_wrong / num_samples,
            validation_loss=found.loss if found and math.isfinite(found.loss) else None,
            validation_error=found.error if found else None,
            lr=place.sums.lr,
            wall_s=wall_s,
            images_per_s=num_samples / wall_s,
            data_wait_s=data_wait_s / self._ranks.num_ranks,
            compute_s=max(wall_s - data_wait_s / self._ranks.num_ranks, 0.0),
            validation_s=found.wall_s if found else 0.0,
            peak_memory_mib=(peak_rss_gib() if of_device_gib is None else of_device_gib) * _MIB_PER_GIB,
        )
        if not math.isfinite(loss):
            raise EvaluationError(
                f"found a loss of {loss} in epoch {epoch.epoch}; expected a number: lower lr, set "
                "clip_norm, or lengthen warmup_epochs"
            )
        self._record_epoch(epoch)
        place.epoch, place.batch, place.sums = epoch.epoch, 0, _Sums()

    def _record_epoch(self, epoch: TrainingEpoch) -> None:
        place = self._place
        lowest = min((each.validation_error for each in place.epochs if each.validation_error is not None), default=2.0)
        place.epochs.append(epoch)
        if epoch.validation_error is not None and epoch.validation_error < lowest:
            place.best, place.best_epoch = self._learner.weights(), epoch.epoch
        learnt = "" if epoch.train_error is None else f", training error {epoch.train_error:.1%}"
        against = "" if epoch.validation_error is None else f", validation error {epoch.validation_error:.1%}"
        spent_s = sum(each.wall_s + each.validation_s for each in place.epochs)
        left_s = spent_s / len(place.epochs) * (self._settings.epochs - len(place.epochs))
        self._say(
            f"epoch {epoch.epoch} of {self._settings.epochs}: loss {epoch.train_loss:.4f}{learnt}{against}, "
            f"{epoch.images_per_s:,.0f} images/s, {left_s:,.0f} s left"
        )

    @property
    def _is_stuck(self) -> bool:
        """Whether validation has not improved for `patience` epochs; all processes have the same answer."""
        place, patience = self._place, self._settings.patience
        return patience is not None and place.epoch - (place.best_epoch or 0) >= patience

    def _validate(self) -> Validation | None:
        if self._validation is None:
            return None
        with timed() as lap:
            self._share_buffers()
            loss, num_wrong, num_samples = self._sum_over_ranks(
                *validate(self._learner.saved_network, self._validation, self._device)
            )
        return Validation(loss=loss / num_samples, error=num_wrong / num_samples, wall_s=lap.wall_s)

    def _share_buffers(self) -> None:
        """Copy the buffers of the saved network from the first process: batch norm's statistics differ by process."""
        if self._ranks.num_ranks > 1:
            for buffer in self._learner.saved_network.buffers():
                dist.broadcast(buffer, src=0)

    def _sum_over_ranks(self, *values: float) -> list[float]:
        """Return the sums of *values* over all processes."""
        if self._ranks.num_ranks == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def _seed(self, batch: int) -> int:
        """Return the seed of this process's batch number *batch*, counted over all epochs."""
        sequence = np.random.SeedSequence([self._settings.seed, self._ranks.rank, batch])
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _progress(self) -> Progress:
        what = f"epoch {self._place.epoch + 1} of {self._settings.epochs}"
        return Progress(self._say, what=what, total=sum(self._sizes[self._place.batch :]), interval_s=10.0)

    def _end_lap(self) -> None:
        """Fetch the counts from the device, which synchronizes with it, and add them and the time to the epoch's."""
        loss, num_wrong = self._of_epoch.tolist()
        self._of_epoch.zero_()
        sums, now = self._place.sums, time.perf_counter()
        sums.loss += loss
        sums.num_wrong += num_wrong
        sums.wall_s += now - self._lap_began
        self._lap_began = now

    def _count_time(self) -> None:
        """Add the time since the last call to the time of the whole training."""
        now = time.perf_counter()
        self._place.totals.wall_s += now - self._counted_until
        self._counted_until = now

    def _save(self) -> None:
        self._end_lap()
        self._count_time()
        if self._ranks.is_first:
            with timed() as lap:
                self._write_checkpoint()
            self._place.totals.checkpoint_s += lap.wall_s
        self._lap_began = self._saved_at = time.perf_counter()

    def _write_checkpoint(self) -> None:
        state = {
            "place": asdict(self._place),
            "learner": self._learner.state(),
            "num_readers": self._images.num_readers,
        }
        steps = self._place.epoch * self._images.num_batches + self._place.batch
        try:
            self._checkpoints.save(state, steps=steps)
        except OSError as error:  # such as a full disk: the training so far is worth more than the checkpoint
            self._say(
                f"no checkpoint could be written to {self._checkpoints.folder} ({error.strerror}); expected room for "
                f"one: {advice(error)}; training continues, and tries again in {self._settings.checkpoint_s:,.0f} s"
            )
        else:
            self._place.totals.num_checkpoints += 1

    def _resume(self) -> None:
        state = self._checkpoints.newest(self._say)
        if state is None:
            return
        place, num_readers = state["place"], state["num_readers"]
        if place["batch"] and num_readers != self._images.num_readers:
            raise EvaluationError(
                f"found a checkpoint in the middle of an epoch that webdataset read with {num_readers} processes; "
                f"expected {self._images.num_readers}, since the order depends on them: set num_threads to "
                f"{num_readers}, or remove {self._checkpoints.folder} to start from the beginning"
            )
        self._place = _Position(
            **{
                **place,
                "sums": _Sums(**place["sums"]),
                "totals": Totals(**place["totals"]),
                "epochs": [TrainingEpoch(**epoch) for epoch in place["epochs"]],
            }
        )
        self._place.totals.num_resumed += 1
        self._learner.load_state(state["learner"])
        self._say(f"continues after epoch {self._place.epoch} and {self._place.batch} batches, from a checkpoint")


@torch.inference_mode()
def validate(network: nn.Module, images: TrainingInput, device: torch.device) -> tuple[float, float, int]:
    """Return the sum of the losses, the number of wrong predictions and the number of samples of this process.

    Args:
        network: Classifier of images (B, 3, H, W) in [0, 1]; its mode is restored afterwards.
        images: Images of this process.
        device: Device of the network.
    """
    was_training = network.training
    network.eval()
    counted, num_samples = torch.zeros(2, dtype=torch.float64, device=device), 0
    for batch in move_to_device(images.epoch(0), device):
        labels = batch.labels.to(device, non_blocking=True)
        logits = network(as_floats(batch.images)).float()
        counted[0] += cross_entropy(logits, labels, reduction="sum")
        counted[1] += (logits.argmax(1) != labels).sum()
        num_samples += len(labels)
    network.train(was_training)
    loss, num_wrong = counted.tolist()
    return loss, num_wrong, num_samples
