"""Copies of the state that adaptation changes, to restore it or to write it to a file."""

from collections import defaultdict
from copy import deepcopy
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

StateDict: TypeAlias = dict[str, Any]
"""Names with values that `torch.save` writes and `torch.load(weights_only=True)` reads, like torch's state dicts."""


class Stateful:
    """An object with state; the class names the attributes that hold it, and `state_dict()` copies them."""

    state_attrs: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that change and affect later results, except attributes that base classes name.

    Values may be tensors of a fixed shape, numbers or None, modules, optimisers, generators, other objects of this
    class, and lists of these.
    """

    @classmethod
    def all_state_attrs(cls) -> tuple[str, ...]:
        """Return the names in `state_attrs` of this class and its base classes."""
        return tuple(name for base in reversed(cls.__mro__) for name in vars(base).get("state_attrs", ()))

    def state_dict(self) -> StateDict:
        """Return a copy of the kept state: dicts, lists, numbers and tensors, for `torch.save`."""
        return {name: _copy_state(getattr(self, name)) for name in self.all_state_attrs()}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the result of `state_dict()`, in whole or in part; tensors are overwritten in place."""
        for name, value in state.items():
            setattr(self, name, _restore_state(getattr(self, name), value))


class GrowingState(Stateful):
    """An object whose tensors grow over a stream, so that a restored tensor replaces the present one."""

    def load_state_dict(self, state: StateDict) -> None:
        """Restore copies of the tensors in *state*, on the devices of the present ones."""
        for name, value in state.items():
            setattr(self, name, value.to(getattr(self, name).device, copy=True))


def _copy_state(kept: Any) -> Any:  # noqa: PLR0911 - one line for each kind
    match kept:
        case torch.Tensor():
            return kept.detach().clone()
        case nn.Module():
            return _copy_state(_adaptable_tensors(kept))
        case torch.optim.Optimizer():
            return deepcopy(kept.state_dict())
        case torch.Generator():
            return kept.get_state()
        case Stateful():
            return kept.state_dict()
        case list():
            return [_copy_state(part) for part in kept]
        case _:
            return kept


@torch.no_grad()
def _restore_state(kept: Any, value: Any) -> Any:
    """Return *kept* restored from its copy *value*; mutable objects are restored in place."""
    match kept:
        case torch.Tensor():
            _overwrite([(kept, value)])
        case nn.Module():
            _restore_state(_adaptable_tensors(kept), value)
        case torch.optim.Optimizer():
            kept.load_state_dict(deepcopy(value))  # the callee may keep the tensors
        case torch.Generator():
            kept.set_state(value.cpu())
        case Stateful():
            kept.load_state_dict(value)
        case list():
            pairs = list(zip(kept, value, strict=True))
            _overwrite([(part, its_value) for part, its_value in pairs if isinstance(part, torch.Tensor)])
            for place, (part, its_value) in enumerate(pairs):
                if not isinstance(part, torch.Tensor):
                    kept[place] = _restore_state(part, its_value)
        case _:
            return value
    return kept


def _overwrite(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second tensor of each pair into the first.

    One kernel copies all tensors of one dtype and device: a model has hundreds, and MEMO resets it for every image.
    """
    alike = defaultdict(list)
    for kept, value in pairs:
        if kept.shape != value.shape:
            raise ValueError(f"found a tensor of shape {tuple(value.shape)}; expected {tuple(kept.shape)}")
        if kept.device == value.device:
            alike[kept.dtype, value.dtype, kept.device].append((kept, value))
        else:
            kept.copy_(value)
    for group in alike.values():
        torch._foreach_copy_([kept for kept, _ in group], [value for _, value in group])


def _adaptable_tensors(module: nn.Module) -> list[torch.Tensor]:
    """Return the tensors of *module* that adaptation can change: trainable parameters and all buffers."""
    return [*(parameter for parameter in module.parameters() if parameter.requires_grad), *module.buffers()]
