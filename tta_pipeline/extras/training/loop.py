"""The training loop: epochs, validation and checkpoints.

All random numbers of a batch are drawn after seeding with (seed, process, batch), and the images of an epoch are a
function of (seed, epoch). So a training that resumes from a checkpoint continues exactly as if it had not stopped.
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

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
from tta_pipeline.evaluation.timing import peak_rss_gib
from tta_pipeline.extras.training.checkpoints import Checkpoints
from tta_pipeline.extras.training.input import TrainingInput
from tta_pipeline.extras.training.learner import Learner, Weights
from tta_pipeline.loading.device import as_floats, move_to_device
from tta_pipeline.results.training_record import TrainingEpoch
from tta_pipeline.util.files import advice
from tta_pipeline.util.progress import Progress

_MIB_PER_GIB = 1024


@dataclass(kw_only=True)
class Course:
    """Progress of a training, across interruptions, since checkpoints include it."""

    epochs: list[TrainingEpoch] = field(default_factory=list)
    """The finished epochs."""
    best: Weights | None = None
    """Weights of the epoch with the lowest validation error; None: no epoch was validated."""
    wall_s: float = 0.0
    time_to_first_batch_s: float = 0.0
    num_resumed: int = 0

    # For the current epoch; losses and wrong predictions are summed over all processes.
    num_batches: int = 0
    loss: float = 0.0
    num_wrong: float = 0.0
    lr: float = 0.0
    """Learning rate of the newest step."""
    train_s: float = 0.0
    data_wait_s: float = 0.0


class Training:
    """A training in progress."""

    def __init__(
        self,
        learner: Learner,
        settings: Recipe,
        *,
        images: TrainingInput,
        validation: TrainingInput | None,
        device: torch.device,
        checkpoints: Checkpoints,
        say: Callable[[str], None],
    ) -> None:
        """Prepare the training of *learner*'s network.

        Args:
            learner: The network, on *device*, with its optimiser.
            settings: Recipe.
            images: Training images, of this process.
            validation: Images for the validation after each epoch; None: no validation.
            device: Device to train on.
            checkpoints: Checkpoints of this training.
            say: Called with messages about progress.
        """
        self._learner = learner
        self._settings = settings
        self._images = images
        self._validation = validation
        self._device = device
        self._checkpoints = checkpoints
        self._say = say
        self._course = Course()
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)
        """Losses and wrong predictions since the last fetch from the device."""
        self._lap_began = self._saved_at = time.perf_counter()

    def run(self) -> Course:
        """Train from the newest checkpoint to the last epoch."""
        self._resume()
        with (
            torch.random.fork_rng(devices=devices_with_random_state(self._device), device_type=self._device.type),
            arithmetic(self._device.type, self._settings.precision),
        ):
            while len(self._course.epochs) < self._settings.epochs:
                try:
                    self._train_epoch()
                except torch.OutOfMemoryError as error:
                    size = self._settings.batch_size
                    raise out_of_memory_error(error, self._device, batch_size=size) from None
                self._end_epoch()
        return self._course

    def _train_epoch(self) -> None:
        course, number, sizes = self._course, len(self._course.epochs), self._images.batch_sizes
        what = f"epoch {number + 1} of {self._settings.epochs}"
        progress = Progress(self._say, what=what, total=sum(sizes[course.num_batches :]), interval_s=10.0)
        reset_peak_memory(self._device)
        self._learner.network.train()
        for batch in move_to_device(self._images.epoch(number, skip_batches=course.num_batches), self._device):
            course.data_wait_s += batch.data_wait_s
            course.time_to_first_batch_s = course.time_to_first_batch_s or batch.data_wait_s
            course.lr = self._learner.lr
            num_samples = sizes[course.num_batches]
            course.num_batches += 1
            seed = self._seed(number * len(sizes) + course.num_batches)
            counted = self._learner.learn(batch.images, batch.labels, seed=seed, num_samples=num_samples)
            # After each batch, since only the first process writes checkpoints.
            self._sums += self._sum_over_ranks(counted)
            progress.advance(num_samples)
            if time.perf_counter() - self._saved_at >= self._settings.checkpoint_s:
                self._save()

    def _end_epoch(self) -> None:
        course, num_samples = self._course, sum(self._images.batch_sizes)
        self._fetch_sums()
        if not math.isfinite(course.loss):
            raise EvaluationError(
                f"The loss is {course.loss} in epoch {len(course.epochs) + 1}; expected a finite number: lower lr, "
                "set clip_norm, or raise warmup_epochs"
            )
        loss, error = self._validate()
        of_device_gib = peak_memory_gib(self._device)
        epoch = TrainingEpoch(
            epoch=len(course.epochs) + 1,
            num_samples=num_samples,
            train_loss=course.loss / num_samples,
            train_error=None if self._settings.mixup or self._settings.cutmix else course.num_wrong / num_samples,
            validation_loss=loss,
            validation_error=error,
            lr=course.lr,
            wall_s=course.train_s,
            images_per_s=num_samples / course.train_s,
            data_wait_s=self._mean_over_ranks(course.data_wait_s),
            validation_s=0.0 if self._validation is None else self._lap(),
            peak_memory_mib=(peak_rss_gib() if of_device_gib is None else of_device_gib) * _MIB_PER_GIB,
        )
        lowest = min((each.validation_error for each in course.epochs if each.validation_error is not None), default=2)
        if error is not None and error < lowest:
            course.best = self._learner.weights()
        course.epochs.append(epoch)
        course.num_batches, course.loss, course.num_wrong, course.train_s, course.data_wait_s = 0, 0.0, 0.0, 0.0, 0.0
        self._tell(epoch)

    def _tell(self, epoch: TrainingEpoch) -> None:
        epochs, num_epochs = self._course.epochs, self._settings.epochs
        learnt = "" if epoch.train_error is None else f", training error {epoch.train_error:.1%}"
        against = "" if epoch.validation_error is None else f", validation error {epoch.validation_error:.1%}"
        left_s = sum(each.wall_s + each.validation_s for each in epochs) * (num_epochs / len(epochs) - 1)
        self._say(
            f"epoch {epoch.epoch} of {num_epochs}: loss {epoch.train_loss:.4f}{learnt}{against}, "
            f"{epoch.images_per_s:,.0f} images/s, {left_s:,.0f} s left"
        )

    def _validate(self) -> tuple[float | None, float | None]:
        """Return mean loss, None if not finite, and top-1 error over all processes; None without validation."""
        if self._validation is None:
            return None, None
        network = self._learner.saved_network
        if self._images.num_ranks > 1:  # batch norm's statistics differ by process: keep the first process's
            for buffer in network.buffers():
                dist.broadcast(buffer, src=0)
        sums = self._sum_over_ranks(evaluate(network, self._validation, self._device))
        loss, num_wrong = (sums / len(self._validation.shard_set.index)).tolist()
        return loss if math.isfinite(loss) else None, num_wrong

    def _sum_over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        if self._images.num_ranks > 1:
            dist.all_reduce(sums)
        return sums

    def _mean_over_ranks(self, value: float) -> float:
        sums = torch.tensor([value], dtype=torch.float64, device=self._device)
        return float(self._sum_over_ranks(sums)) / self._images.num_ranks

    def _seed(self, batch: int) -> int:
        """Return the seed of this process's batch number *batch*, counted over all epochs."""
        sequence = np.random.SeedSequence([self._settings.seed, self._images.rank, batch])
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))

    def _fetch_sums(self) -> None:
        """Fetch the sums from the device, which synchronizes with it, and add them and the time to the epoch's."""
        loss, num_wrong = self._sums.tolist()
        self._sums.zero_()
        self._course.loss += loss
        self._course.num_wrong += num_wrong
        self._course.train_s += self._lap()

    def _lap(self) -> float:
        """Return the seconds since the last call, and add them to the time of the whole training."""
        began, self._lap_began = self._lap_began, time.perf_counter()
        self._course.wall_s += self._lap_began - began
        return self._lap_began - began

    def _save(self) -> None:
        self._fetch_sums()
        if self._images.rank == 0:
            self._write_checkpoint()
        self._lap()
        self._saved_at = time.perf_counter()

    def _write_checkpoint(self) -> None:
        course = {**vars(self._course), "epochs": [asdict(epoch) for epoch in self._course.epochs]}
        state = {"course": course, "learner": self._learner.state(), "num_readers": self._images.num_readers}
        try:
            self._checkpoints.save(state)
        except OSError as error:  # such as a full disk: continuing is better than losing the training
            self._say(
                f"no checkpoint could be written to {self._checkpoints.folder} ({error.strerror}); expected space for "
                f"one: {advice(error)}; training continues, and tries again in {self._settings.checkpoint_s:,.0f} s"
            )

    def _resume(self) -> None:
        state = self._checkpoints.load(self._say)
        if state is None:
            return
        epochs = [TrainingEpoch(**epoch) for epoch in state["course"]["epochs"]]
        course, num_readers = Course(**{**state["course"], "epochs": epochs}), state["num_readers"]
        if course.num_batches and num_readers != self._images.num_readers:
            raise EvaluationError(
                f"The checkpoint is from the middle of an epoch that webdataset read with {num_readers} processes; "
                f"expected the same number, not {self._images.num_readers}, since the order depends on it: set "
                f"num_threads to {num_readers}, or remove {self._checkpoints.folder} to start over"
            )
        course.num_resumed += 1
        self._course = course
        self._learner.load_state(state["learner"])
        self._say(f"continues after epoch {len(epochs)} and {course.num_batches} batches, from a checkpoint")


@torch.no_grad()
def evaluate(network: nn.Module, images: TrainingInput, device: torch.device) -> torch.Tensor:
    """Return the sum of the losses and the number of wrong predictions of this process, float64 (2,).

    Args:
        network: Classifier of images (B, 3, H, W) in [0, 1]; it is left in evaluation mode.
        images: Images of this process.
        device: Device of the network.
    """
    network.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in move_to_device(images.epoch(0), device):
        labels = batch.labels.to(device, non_blocking=True)
        logits = network(as_floats(batch.images)).float()
        sums[0] += cross_entropy(logits, labels, reduction="sum")
        sums[1] += (logits.argmax(1) != labels).sum()
    return sums
