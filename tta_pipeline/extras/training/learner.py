"""A network with its optimiser, learning-rate schedule and moving average, and one step of training."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tta_pipeline.benchmarks.training_recipe import Recipe
from tta_pipeline.extras.training.checkpoints import State
from tta_pipeline.extras.training.ranks import SINGLE_RANK, Ranks
from tta_pipeline.extras.training.recipe import make_average, make_mixing, make_optimizer, make_schedule
from tta_pipeline.loading.device import as_floats

Weights = dict[str, torch.Tensor]


class Learner:
    """A network in training, alone or together with other processes."""

    def __init__(
        self,
        network: nn.Module,
        settings: Recipe,
        *,
        num_classes: int,
        steps_per_epoch: int,
        device: torch.device,
        ranks: Ranks = SINGLE_RANK,
    ) -> None:
        """Prepare *network*, a classifier of images (B, 3, H, W) in [0, 1] with logits (B, num_classes)."""
        layout = torch.channels_last if settings.channels_last else torch.contiguous_format
        self.network = network.to(device).to(memory_format=layout)
        self._settings = settings
        self._device = device
        self._num_ranks = ranks.num_ranks
        self._optimizer = make_optimizer(self.network, settings)
        self._schedule = make_schedule(self._optimizer, settings, steps_per_epoch=steps_per_epoch)
        self._average = make_average(self.network, settings)
        self._mixing = make_mixing(settings, num_classes=num_classes)
        self._parallel = _parallel(self.network, device) if ranks.num_ranks > 1 else None
        learning = self._parallel or self.network
        self._learning = learning if settings.compile == "off" else torch.compile(learning, mode=settings.compile)

    def learn(
        self, pixels: torch.Tensor, labels: torch.Tensor, *, seed: int, step_samples: int, is_last: bool
    ) -> torch.Tensor:
        """Accumulate the gradients of one batch; the last batch of a step updates the weights.

        Args:
            pixels: Images, uint8 (B, H, W, 3).
            labels: Labels, int64 (B,).
            seed: Seed of all random numbers of the batch.
            step_samples: Number of samples in all batches of the step, over all processes.
            is_last: Whether the batch is the last of the step.

        Returns:
            Sum of the losses and number of wrong predictions, float32 (2,), on the device.
        """
        torch.manual_seed(seed)
        images, targets = as_floats(pixels), labels.to(self._device, non_blocking=True)
        if self._mixing is not None:
            images, targets = self._mixing(images, targets)
        with self._no_gradient_exchange() if not is_last else nullcontext():
            with self._autocast():
                logits = self._learning(images)
            loss = cross_entropy(
                logits.float(), targets, label_smoothing=self._settings.label_smoothing, reduction="sum"
            )
            # Processes average their gradients, but their numbers of samples may differ by one.
            (loss * (self._num_ranks / step_samples)).backward()  # type: ignore[no-untyped-call]
        if is_last:
            self._step()
        with torch.no_grad():
            # For a mixed image, the class with the larger share counts.
            answers = targets if targets.ndim == 1 else targets.argmax(1)
            return torch.stack([loss.detach(), (logits.argmax(1) != answers).sum().float()])

    def train(self) -> None:
        """Set the network, with its norm layers and dropout, to training mode."""
        self.network.train()

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def saved_network(self) -> nn.Module:
        """Network that is validated and saved: the moving average if there is one."""
        return self.network if self._average is None else self._average.module

    def weights(self) -> Weights:
        """Return a copy of the weights of `saved_network`, on the host."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.saved_network.state_dict().items()}

    def state(self) -> State:
        """Return everything that the next step needs."""
        return {
            "network": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "schedule": self._schedule.state_dict(),
            "average": None if self._average is None else self._average.state_dict(),
        }

    def load_state(self, state: State) -> None:
        """Restore *state*."""
        self.network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._schedule.load_state_dict(state["schedule"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])

    def _step(self) -> None:
        if self._settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self._settings.clip_norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._schedule.step()
        if self._average is not None:
            self._average.update_parameters(self.network)

    def _no_gradient_exchange(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._parallel is None else self._parallel.no_sync()

    def _autocast(self) -> AbstractContextManager[None]:
        is_full = self._settings.precision == "fp32"
        return nullcontext() if is_full else torch.autocast(self._device.type, torch.bfloat16)


def _parallel(network: nn.Module, device: torch.device) -> DistributedDataParallel:
    return DistributedDataParallel(network, device_ids=None if device.type == "cpu" else [device])
