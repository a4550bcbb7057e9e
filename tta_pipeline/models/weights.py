"""Read state dicts from files, and hash weights."""

import hashlib
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tta_pipeline.errors import EvaluationError
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.short_lists import abbreviate_list

_KEYS = (
    "state_dict", "model_state_dict", "model", "net", "network", "state_dict_ema", "model_ema", "ema", "ema_state_dict",
    "last", "best",
)  # fmt: skip
"""Usual keys of the weights in training checkpoints: timm's, Lightning's, and CIFAR repositories'."""
_PLAIN = re.compile(r"torch\.(_utils\.)?\w+|collections\.OrderedDict|builtins\.set")
"""Tensors and what is read by default."""
_OF_THE_SYSTEM = frozenset({"nt", "os", "posix", "subprocess", "sys"})
"""Modules that only a hostile file of weights needs."""
_NUM_PICKLES = 4  # of a file of PyTorch before 1.6: a number, a version, facts of the machine, and the object


def read_state(path: Path, sha256: str, *, key: str | None = None) -> dict[str, torch.Tensor]:
    """Return the state dict in *path*, without running code from it.

    Args:
        path: A file of safetensors, or of `torch.save`: a state dict, or a checkpoint with one under a usual key.
        sha256: Hash that the file must have.
        key: Key of the state dict in a checkpoint, such as `state_dict_ema`; None: the only one under a usual key.

    Raises:
        EvaluationError: the file is missing, changed, unreadable, or contains something else.
    """
    require_file(path, sha256)
    with path.open("rb") as file:
        start = file.read(16)
    names: list[str] = []
    try:
        if start[8:9] == b"{":  # after the length of its header
            return load_file(path)
        names = _find_classes(path)
        stand_ins: list[Any] = [(type(name, (_Unread,), {}), name) for name in names]
        # Opened here: torch reads by the name of a file too.
        with path.open("rb") as file, torch.serialization.safe_globals(stand_ins):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # of any kind: bytes that are not a pickle can make any pickle instruction fail
        if calls := [name for name in names if name.partition(".")[0] in _OF_THE_SYSTEM]:
            raise EvaluationError(
                f"{path} calls {', '.join(calls)} when it is loaded; expected safetensors or a saved state dict, "
                "without code: download the weights from another place, and do not open this file with anything else"
            ) from error
        if names:
            advice = _convert_advice(path, names, "content['state_dict']")
            raise EvaluationError(f"{path} cannot be read as weights without its code; {advice}") from error
        raise EvaluationError(
            f"{path} cannot be read as weights: it begins with {start!r} ({first_line(error)}); expected safetensors "
            "or a saved state dict, without code"
        ) from error
    return _select_state(content, path, key)


class _Unread:
    """Replaces an object of a class that is neither a tensor nor plain data, so that none of its code runs."""

    def __init__(self, *args: object) -> None:
        del args

    def __setstate__(self, state: object) -> None:
        del state


def _find_classes(path: Path) -> list[str]:
    """Return the classes and functions that the file *path* of `torch.save` names, and that are not read by default.

    Checkpoints have them next to the weights: the options of the training, or an accuracy as a NumPy number.
    """
    if zipfile.is_zipfile(path):
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    with path.open("rb") as file:
        if file.read(2) == b"PK":
            raise ValueError("a zip without its end")
        file.seek(0)
        found = {
            str(name).replace(" ", ".").replace("__builtin__.", "builtins.")
            for _ in range(_NUM_PICKLES)
            for instruction, name, _ in pickletools.genops(file)
            if instruction.name == "GLOBAL"
        }
    return sorted(name for name in found if not _PLAIN.fullmatch(name))


def _convert_advice(path: Path, names: list[str], state: str) -> str:
    """Return what *path* with objects of *names* has, and the line that saves its state dict, the expression *state*.

    Run this line only if you trust the file.
    """
    return (
        f"found objects of {abbreviate_list(names)}; expected safetensors or a state dict, names to tensors: if you "
        f"trust the file, type python -c \"import torch; content = torch.load({str(path)!r}, map_location='cpu', "
        f"weights_only=False); torch.save({state}, 'state_dict.pth')\" and name that file"
    )


def require_file(path: Path, sha256: str) -> None:
    """Check that the file *path* exists, and has the hash *sha256*.

    Raises:
        EvaluationError: the file is missing, unreadable, or has another hash.
    """
    try:
        is_file, found = path.is_file(), hash_file(path) if path.is_file() else None
    except OSError as error:
        raise EvaluationError(
            f"{path} cannot be read ({error.strerror}); expected a file of weights: restore it, or correct its path"
        ) from error
    if not is_file:  # reading a FIFO would block
        found = "not a file" if path.exists() else "missing"
        raise EvaluationError(f"{path} is {found}; expected a file of weights: restore it, or correct its path")
    if found != sha256:
        raise EvaluationError(
            f"{path} has sha256 {found}; expected {sha256}, as in the benchmark file: restore the file, or correct "
            "sha256 there"
        )


def _select_state(content: object, path: Path, key: str | None) -> dict[str, torch.Tensor]:
    """Return the state dict in *content* of the file *path*, which may be the state dict itself."""
    found = dict(_find_states(content)) if isinstance(content, Mapping) else {}
    if key is not None and key not in found:
        raise EvaluationError(
            f"{path} has no state dict named {key!r}; expected one of {', '.join(found) or 'none'}: correct `state`"
        )
    if len(found) > 1 and key is None:
        raise EvaluationError(
            f"{path} contains {len(found)} state dicts, {', '.join(found)}; expected one: name it in the field "
            "`state`, or pass the state dict itself in Python"
        )
    if not found and (unread := _find_unread(content)):
        state, name = unread
        raise EvaluationError(f"{path} holds no state dict; {_convert_advice(path, [name], f'{state}.state_dict()')}")
    if not found:
        has = f" with {', '.join(map(str, list(content)[:5]))}" if isinstance(content, Mapping) else ""
        raise EvaluationError(
            f"{path} contains {type(content).__name__}{has}; expected a state dict that maps names to tensors, by "
            f"itself or under one of {', '.join(_KEYS)}: save it again"
        )
    return dict(next(iter(found.values())) if key is None else found[key])


def _find_states(content: Mapping[Any, Any], where: str = "") -> Iterator[tuple[str, Mapping[str, torch.Tensor]]]:
    """Yield each state dict in *content* after its keys, joined by dots."""
    if content and all(isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in content.items()):
        yield where, content
        return
    for key in _KEYS:
        if isinstance(content.get(key), Mapping):
            yield from _find_states(content[key], f"{where}.{key}" if where else key)


def _find_unread(content: object) -> tuple[str, str] | None:
    """Return expression and class of the object found instead of a state dict; None if there is none."""
    if isinstance(content, _Unread):
        return "content", type(content).__name__
    found = content if isinstance(content, Mapping) else {}
    at = (key for key in _KEYS if isinstance(found.get(key), _Unread))
    return next(((f"content[{key!r}]", type(found[key]).__name__) for key in at), None)


def state_sha256(state: Mapping[str, torch.Tensor]) -> str:
    """Return the hash of the names and bytes of *state*, on any device and of any type and layout."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        # As bytes, since NumPy has no bfloat16.
        digest.update(state[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def first_line(error: Exception) -> str:
    """Return the first line of the message of *error*, or its type if the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)
