"""Imports modules of clones as the authors' scripts do, and unloads them, since several repositories have `methods`."""

import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


def import_from_clone(folder: Path, name: str, stand_ins: Mapping[str, ModuleType] | None = None) -> ModuleType:
    """Return the module *name* of the authors' scripts in *folder*.

    Args:
        folder: First entry of the scripts' import path.
        name: Name under which the scripts import the module.
        stand_ins: Replacements for modules that read data or make models, and for packages that import everything.
    """
    with _first_on_the_path(folder, stand_ins or {}):
        return importlib.import_module(name)


@contextmanager
def _first_on_the_path(folder: Path, stand_ins: Mapping[str, ModuleType]) -> Iterator[None]:
    before = dict(sys.modules)
    own = {path.stem for path in folder.iterdir()} | set(stand_ins)
    for name in list(sys.modules):
        if name.partition(".")[0] in own:
            del sys.modules[name]
    sys.modules.update(stand_ins)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - set(before):
            if name.partition(".")[0] in own:
                del sys.modules[name]
        sys.modules.update(before)


def package(folder: Path) -> ModuleType:
    """Return an empty package whose modules are the files in *folder*."""
    module = ModuleType(folder.name)
    module.__path__ = [str(folder)]
    return module


def module(name: str, **contents: object) -> ModuleType:
    """Return a module that has only *contents*."""
    made = ModuleType(name)
    vars(made).update(contents)
    return made


def commit(clone: Path) -> str:
    """Return the commit that is checked out in *clone*, or "unknown"."""
    command = ["git", "-C", str(clone), "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else "unknown"


def check_out(repository: str, at: str) -> str:
    """Return the command line that makes a clone of *repository*, `<owner>/<name>` on GitHub, at the commit *at*."""
    name = repository.partition("/")[2]
    return f"git clone https://github.com/{repository} && git -C {name} checkout {at}"
