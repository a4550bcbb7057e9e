"""Tensors of the simulated device, with the effects and the waits of operations on them."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Self

import torch
from torch import nn
from torch.utils._mode_utils import no_dispatch

from tta_pipeline_tests.simulated.memory import MEMORY, Block
from tta_pipeline_tests.simulated.streams import Stream, current_stream
from tta_pipeline_tests.simulated.waits import WAITS

NAME = "simulated"
"""The kind of the device, as cuda is one."""

_ATEN = torch.ops.aten
_INDEXING = {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default}
_SIZED_BY_VALUES = {
    _ATEN.nonzero.default, _ATEN.masked_select.default, _ATEN._unique2.default, _ATEN.unique_dim.default,
    _ATEN.unique_consecutive.default, _ATEN.bincount.default, _ATEN.repeat_interleave.Tensor,
}  # fmt: skip
"""Operations whose result has a size that the host must fetch."""
_TO_HOST = {_ATEN._local_scalar_dense.default, _ATEN.item.default, _ATEN.equal.default, _ATEN.is_nonzero.default}
"""Operations with a result on the host."""


@cache
def _has_parts(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


_ENOUGH_BYTES = 2**40
"""Size that every storage reports to the host, so that tensors can be resized; `Block` knows the true size."""


class MixedDevicesError(RuntimeError):
    """An operation on tensors of two devices."""


class NoFloat64Error(RuntimeError):
    """A tensor of float64 on the device."""


class SimulatedTensor(torch.Tensor):
    """A tensor whose values only the simulated device sees."""

    _hidden: torch.Tensor
    _block: Block
    _is_param: bool

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "SimulatedTensor":  # noqa: PYI034 - Self is not for a static method
        """Return a tensor of the shape of *values*, without memory that the host could see."""
        tensor: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=torch.device(NAME, 0),
            storage_size=_ENOUGH_BYTES,
        )
        return tensor

    def __init__(self, values: torch.Tensor) -> None:
        if values.dtype == torch.float64:
            MEMORY.fail(NoFloat64Error(f"found float64 in a tensor of shape {tuple(values.shape)}; expected float32"))
        self._block = Block.of(values)
        self._hidden = values

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override] # torch has one to be replaced
        cls, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run *func* on the device; composite operations, which autograd keeps whole in inference, are decomposed."""
        if _has_parts(func):
            return func.decompose(*args, **(kwargs or {}))
        if func is _ATEN._to_copy.default:
            return _converted(*args, **(kwargs or {}))
        if func is _ATEN.copy_.default:
            return copied(*args, **(kwargs or {}))
        return _computed(func, args, kwargs or {})

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override] # torch's has no types
        """Return shape and dtype: the host does not see the values."""
        return f"SimulatedTensor({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "SimulatedTensor":
        """Return a copy with memory of its own, a parameter like this one."""
        copy = self.detach().clone().requires_grad_(self.requires_grad)
        assert isinstance(copy, SimulatedTensor)
        if isinstance(self, nn.Parameter):
            copy._is_param = True
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle like a tensor of the host, since states are loaded to the host."""
        on_host: Any = self.detach().cpu()
        return on_host.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        """Return the values as Python numbers; the host waits for them."""
        return self.cpu().tolist()

    def resized(self) -> Self:
        """Give this tensor the present shape of its values, as after `as_strided_` or `out=`, and return it."""
        values = self._hidden
        if _layout(self) == _layout(values):
            return self
        self._block.resize()
        before = torch._C._meta_in_tls_dispatch_include()
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            with no_dispatch():
                self.as_strided_(values.size(), values.stride(), values.storage_offset())
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)
        return self

    def record_stream(self, stream: Any) -> None:
        """Keep the memory until *stream* has done the work submitted before the tensor is freed."""
        self._block.record_stream(stream)


def new_tensor(make: Callable[[], torch.Tensor]) -> SimulatedTensor:
    """Return a tensor with the layout of *make*'s, filled with NaN or similar, as if its memory were uninitialised."""
    values = make()
    if values.dtype != torch.bool:
        storage: Any = values.untyped_storage()
        storage.fill_(0xFF)
    return SimulatedTensor(values)


_PINNED: dict[int, torch.UntypedStorage] = {}
"""Pinned memory of the host by address; it is kept, so that no other memory gets the same address."""


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the host memory of *tensor* as pinned."""
    storage = tensor.untyped_storage()
    _PINNED[storage.data_ptr()] = storage
    return tensor


def _is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _PINNED


def copied(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:  # noqa: FBT001, FBT002 - torch's
    """Copy *source* to *target*; a non-blocking copy from pinned memory is done as late as possible."""
    stream = current_stream()
    if not isinstance(target, SimulatedTensor):
        assert isinstance(source, SimulatedTensor)
        target.copy_(_fetched(source))
        return target
    if not isinstance(source, SimulatedTensor) and non_blocking and _is_pinned(source):
        values = target._hidden
        target._block.use(stream, stream.submit(lambda: values.copy_(source)))
        return target
    _begin(stream, target, source)
    target._hidden.copy_(_values(source))
    if not isinstance(source, SimulatedTensor) and not non_blocking:
        _wait(stream, "copy from the host")
    return target


def _converted(source: SimulatedTensor, *, device: torch.device | None = None, **changes: Any) -> torch.Tensor:
    """Return a copy of *source*, on the host or on the device, with *changes* of dtype or layout."""
    kept = {name: value for name, value in changes.items() if name in ("dtype", "memory_format") and value is not None}
    if device is not None and device.type == "cpu":
        return _ATEN._to_copy(_fetched(source), **kept)  # type: ignore[no-any-return]
    _begin(current_stream(), source)
    return SimulatedTensor(_ATEN._to_copy(source._hidden, **kept))


def _fetched(source: SimulatedTensor) -> torch.Tensor:
    """Return the values of *source*, for which the host waits."""
    stream = current_stream()
    _begin(stream, source)
    _wait(stream, "copy to the host")
    return source._hidden


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what *func* gives on the device."""
    stream = current_stream()
    tensors = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    _require_one_device(func, tensors)
    _begin(stream, *tensors)
    for kind in _waits(func, args):
        _wait(stream, kind)
    given = {name: torch.device("cpu") if name == "device" else value for name, value in kwargs.items()}
    found = func(*_mapped(_values, args), **_mapped(_values, given))
    own = {id(tensor._hidden): tensor for tensor in tensors if isinstance(tensor, SimulatedTensor)}
    is_inference = all(tensor.is_inference() for tensor in tensors)
    return _mapped(partial(_on_device, own=own, is_inference=is_inference), found)


def _leaves(value: Any) -> list[Any]:
    """Return what is in lists, tuples and dicts."""
    if not isinstance(value, list | tuple | dict):
        return [value]
    return [leaf for each in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(each)]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Return *value* with the result of *function* for each leaf; PyTorch's `tree_map` takes several times as long."""
    # No closure: after an error, its cells would keep the tensors, even when all frames are cleared.
    if isinstance(value, list | tuple):
        return type(value)(map(partial(_mapped, function), value))
    if isinstance(value, dict):
        return dict(zip(value, map(partial(_mapped, function), value.values()), strict=True))
    return function(value)


def _on_device(value: Any, *, own: dict[int, SimulatedTensor], is_inference: bool) -> Any:
    """Return *value*, if it is a tensor, on the device: the argument itself if it was changed in place."""
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) in own:
        return own[id(value)].resized()
    if torch.is_inference_mode_enabled() and not is_inference and not value.is_inference():
        with torch.inference_mode(mode=False):  # a view of a normal tensor is a normal tensor
            return SimulatedTensor(value)
    return SimulatedTensor(value)


def _begin(stream: Stream, *tensors: torch.Tensor) -> None:
    """Submit work on *tensors*, and do what comes before it."""
    position = stream.submit()
    for tensor in tensors:
        if isinstance(tensor, SimulatedTensor):
            tensor._block.use(stream, position)
    stream.do()


def _wait(stream: Stream, kind: str) -> None:
    WAITS.note(kind)
    stream.finish()


def _waits(func: Any, args: tuple[Any, ...]) -> list[str]:
    """Return the kinds of waits that *func* has."""
    if func in _TO_HOST:
        return ["item"]
    if func in _SIZED_BY_VALUES:
        return ["size of a result"]
    if func not in _INDEXING:
        return []
    indices = [index for index in args[1] if isinstance(index, torch.Tensor)]
    kinds = ["copy of an index"] * sum(not isinstance(index, SimulatedTensor) for index in indices)
    return kinds + ["size of a result"] * any(index.dtype in (torch.bool, torch.uint8) for index in indices)


def _require_one_device(func: Any, tensors: list[torch.Tensor]) -> None:
    """Refuse tensors of the host, except numbers and indices.

    Raises:
        MixedDevicesError: *func* got another one.
    """
    for tensor in tensors:
        is_index = func in _INDEXING and tensor.dtype in (torch.int64, torch.bool, torch.uint8)
        if not isinstance(tensor, SimulatedTensor) and tensor.dim() and not is_index:
            MEMORY.fail(
                MixedDevicesError(
                    f"{func} got a tensor of shape {tuple(tensor.shape)} on {tensor.device}; expected all tensors on "
                    f"{NAME}"
                )
            )


def _values(value: Any) -> Any:
    if not isinstance(value, SimulatedTensor):
        return value
    found, expected = _layout(value), _layout(value._hidden)
    if found != expected:
        raise AssertionError(f"found a tensor of shape and strides {found}; expected those of its values, {expected}")
    return value._hidden


def _layout(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...]]:
    return tensor.size(), tensor.stride()
