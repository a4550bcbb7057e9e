"""Hash of the source code behind a reference `module:name`, computed without importing anything.

The hash is of syntax trees without comments and docstrings, so that rewording them does not invalidate results. It
covers the file of the module and every file that the module imports, directly or not, from this project or from the
module's folder. Installed packages and the standard library are identified by their versions, which each record has.
Imports by a computed name, and files that the code reads, are not covered: what a setting chooses is a further
reference (`Hyperparameters.code_of_choices`).
"""

import ast
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from tta_pipeline.util.files import hash_file
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.own_code import describe_raised
from tta_pipeline.util.project_folder import find_project

_PROJECT = "tta_pipeline"
_DECLARATIONS = re.compile(r"tta_pipeline\.(methods\.(catalogue|entry|\w+\.entries)|errors|util\.config_model)")
"""Modules of declarations: the fingerprint has their values itself, so a new entry must not invalidate the others."""
INSTALLED = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages."""


_seen: dict[str, str] = {}
"""Hash of each module when this process first computed it."""


def source_sha256(*references: str, only_own: bool = False) -> str:
    """Return the hash of the code behind *references*, each `module:name`; with *only_own* without this project's.

    Call this before the code is imported. From then on an edited file raises an error, because the process keeps
    running the code that it has imported.

    Raises:
        ValueError: a module is missing or is not Python source, or one of its files cannot be parsed or was edited.
    """
    files: dict[str, str] = {}
    for reference in references:
        for module in _walk_imports(reference.partition(":")[0]):
            _require_unedited(module)
            if not only_own or module.name.partition(".")[0] != _PROJECT:
                files[module.name] = module.code.sha256
    return hashlib.sha256("\n".join(f"{name} {files[name]}" for name in sorted(files)).encode()).hexdigest()


def own_files(*references: str) -> Mapping[str, str]:
    """Return the sha256 of each file outside this project that `source_sha256` covers, by its absolute path.

    Raises:
        ValueError: see `source_sha256`.
    """
    modules = (module for each in references for module in _walk_imports(each.partition(":")[0]))
    own = {module.path.absolute() for module in modules if module.name.partition(".")[0] != _PROJECT}
    return {str(path): hash_file(path) for path in sorted(own)}


def _require_unedited(module: "_Module") -> None:
    if module.name not in sys.modules:
        _seen[module.name] = module.code.sha256
    elif _seen.setdefault(module.name, module.code.sha256) != module.code.sha256:
        raise ValueError(
            f"{module.path} changed after this process had imported it; expected the code that is running: restart "
            "the command"
        )


def import_from_here() -> None:
    """Let Python import modules from where users keep their own methods and functions; see `_own_folders`.

    The command line and the code location call this first, so that every command and every run finds the same modules.
    For a user's script or notebook, `load_reference` calls it.
    """
    for folder in _own_folders():
        if folder not in sys.path:
            sys.path.append(folder)


def _own_folders() -> list[str]:
    """Return the working directory, and the folder of the project if the data root of another one is in use."""
    try:
        folders = [Path.cwd(), find_project()]
    except OSError:  # the working directory was removed: it has nothing to import
        return []
    return list(dict.fromkeys(str(folder) for folder in folders if folder))


def load_reference(reference: str, *, is_right: Callable[[object], bool] | None = None) -> object:
    """Return the object that *reference*, `module:name`, names; import its module and remember the hash of its code.

    Args:
        reference: The import path.
        is_right: Whether an object can be meant, for the names in a message; None: all but modules can.

    Raises:
        ValueError: the module cannot be imported, or lacks the name; the message does not say what was expected.
    """
    module, _, name = reference.partition(":")
    import_from_here()
    if module not in sys.modules:
        with suppress(ValueError):  # a module without a hash cannot be imported either; the import below reports it
            source_sha256(reference)
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a user's module can raise anything on import
        raise ValueError(f"importing {reference!r} raised {describe_raised(error)}") from error
    if not hasattr(imported, name):
        raise ValueError(f"there is no {reference!r}: {module} has {_list_names(imported, name, is_right)}")
    found: object = getattr(imported, name)
    return found


def _list_names(module: ModuleType, missing: str, is_right: Callable[[object], bool] | None) -> str:
    """Return the names of *module* that *missing* can have meant."""
    is_meant = is_right or (lambda value: not isinstance(value, ModuleType))
    public = [name for name, value in vars(module).items() if name[0] != "_" and is_meant(value)]
    return name_choices(missing, public, listed_in=getattr(module, "__file__", None) or module.__name__)


def find_module(name: str) -> ModuleSpec | None:
    """Find the module *name* without importing it, also in the working directory; None if there is no such module."""
    top, *rest = name.split(".")
    found = _find_top(top)
    for depth in range(len(rest)):
        search = list(found.submodule_search_locations or []) if found else []
        found = _find_below(".".join([top, *rest[: depth + 1]]), search)
    return found


def _find_below(name: str, search: Sequence[str]) -> ModuleSpec | None:
    """Find the module *name* in the folders of its package."""
    try:
        return PathFinder.find_spec(name, search)
    except KeyError:  # a folder without __init__.py, which Python finds only below a package that is imported
        found = ModuleSpec(name, None, is_package=True)
        folders = (Path(each) / name.rpartition(".")[2] for each in search)
        found.submodule_search_locations = [str(folder) for folder in folders if folder.is_dir()]
        return found


def _find_top(name: str) -> ModuleSpec | None:
    try:
        found = importlib.util.find_spec(name)
    except ValueError:  # of a module without a spec, such as __main__
        found = None
    return found or PathFinder.find_spec(name, _own_folders())


@dataclass(frozen=True, kw_only=True)
class _Module:
    """A module that the hash covers."""

    name: str
    path: Path
    is_package: bool

    @cached_property
    def code(self) -> "_Code":
        if self.path.suffix != ".py":
            return _Code(sha256=hash_file(self.path), imports=())
        try:
            return _code(self.path.read_bytes())
        except (OSError, SyntaxError, ValueError) as error:
            raise ValueError(
                f"{self.path} cannot be parsed ({error}); expected valid Python: fix the syntax error"
            ) from None

    @property
    def package(self) -> str:
        """Package from which its relative imports start."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


class _Code(NamedTuple):
    """Hash and imports of a source file."""

    sha256: str
    """Hash of the syntax tree; of the file's bytes if it is compiled."""
    imports: tuple[ast.Import | ast.ImportFrom, ...]


@lru_cache(maxsize=1024)  # more files than this project has: a module of a user may import most of them
def _code(data: bytes) -> _Code:
    tree = ast.parse(data)
    digest = hashlib.sha256()
    for token in _tokens(tree):
        digest.update(token.encode("utf-8", "surrogatepass") + b"\0")
    imports = tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return _Code(sha256=digest.hexdigest(), imports=imports)


def _walk_imports(root: str) -> Iterator[_Module]:
    """Yield, each once, the module *root* and every module that it imports from the project or from *root*'s folder."""
    first = _module(root)
    if first is None or first.path.suffix != ".py":
        raise ValueError(
            f"there is no module {root}; expected a .py file on Python's path, such as in the project folder: correct "
            "the name"
        )
    home = first.path.parents[root.count(".") + (1 if first.is_package else 0)]
    is_own_top = cache(partial(_is_own_top, home=home, root=root))
    todo, seen = [first], {first.name}
    while todo:
        module = todo.pop()
        yield module
        for name in (*_packages_around(module), *_imported_names(module, is_own_top)):
            other = None if name in seen or _DECLARATIONS.fullmatch(name) else _module(name)
            if other and other.name not in seen and _is_own(other, home, root):
                seen.add(other.name)
                todo.append(other)


def _packages_around(module: _Module) -> Iterator[str]:
    """Yield the packages whose `__init__` runs before *module*, except this project's, which change nothing."""
    parts = module.name.split(".")
    if parts[0] != _PROJECT:
        yield from (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _module(name: str) -> _Module | None:
    found = find_module(name)
    if found is None or found.origin is None or not Path(found.origin).is_file():
        return None
    return _Module(name=name, path=Path(found.origin), is_package=found.submodule_search_locations is not None)


def _is_own(module: _Module, home: Path, root: str) -> bool:
    """Return whether *module* is in this project, or in *home*, the folder of *root*'s package or file."""
    top = module.name.partition(".")[0]
    if top in (_PROJECT, root.partition(".")[0]):
        return True
    return top not in sys.stdlib_module_names and _lies_in(home, module.path)


def _is_own_top(top: str, *, home: Path, root: str) -> bool:
    """Return whether a module below the name *top* can be own, see `_is_own`; one look instead of one for each name."""
    if top in (_PROJECT, root.partition(".")[0]):
        return True
    found = None if top in sys.stdlib_module_names else _find_top(top)
    places = [found.origin, *(found.submodule_search_locations or ())] if found else []
    return any(_lies_in(home, Path(place)) for place in places if place)


def _lies_in(home: Path, path: Path) -> bool:
    return path.is_relative_to(home) and not INSTALLED & {home.name, *path.relative_to(home).parts}


def _imported_names(module: _Module, is_own_top: Callable[[str], bool]) -> Iterator[str]:
    """Yield the names that *module* may import, anywhere in its code; names that are not modules are dropped later."""
    for node in module.code.imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if is_own_top(alias.name.partition(".")[0]))
        else:
            yield from _imported_from(node, module, is_own_top)


def _imported_from(node: ast.ImportFrom, module: _Module, is_own_top: Callable[[str], bool]) -> Iterator[str]:
    parts = module.package.split(".")
    base = parts[: len(parts) - node.level + 1] if node.level else []
    origin = ".".join([*base, *([node.module] if node.module else [])])
    if not is_own_top(origin.partition(".")[0]):
        return
    # A name imported from a package is one of its modules, or is in its __init__.
    modules = [f"{origin}.{alias.name}" for alias in node.names]
    found = [name for name in modules if find_module(name)]
    yield from found
    if len(found) < len(modules):
        yield origin


def _tokens(tree: ast.AST) -> Iterator[str]:
    """Yield *tree* as text, the same in every version of Python; not recursive, because long sums nest too deeply."""
    stack: list[object] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.AST):
            yield type(node).__name__
            stack.append(")")
            for field, value in reversed(list(ast.iter_fields(node))):
                content = _without_docstrings(value) if isinstance(value, list) else value
                if content is not None and content != []:  # newer versions have further fields, which are empty
                    stack += [content, field]
        elif isinstance(node, list):
            stack += [")", *reversed(node), "("]
        else:
            yield repr(node)


def _without_docstrings(nodes: Iterable[object]) -> Sequence[object]:
    """Return *nodes* without docstrings and other strings that stand alone."""
    return [
        node
        for node in nodes
        if not (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
    ]
