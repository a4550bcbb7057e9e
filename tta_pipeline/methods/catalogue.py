"""The methods by name: everything that a benchmark file needs of them, without torch.

To add a method, write a file in its family's folder and an entry in the family's `entries`. A method outside the
package is a `MethodEntry` in the user's own module, named by its import path, or in an installed package, which names
it as an entry point.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tta_pipeline.methods.batch_norm import entries as batch_norm
from tta_pipeline.methods.clip import entries as clip
from tta_pipeline.methods.entropy import entries as entropy
from tta_pipeline.methods.entry import METHODS_PAGE, MethodEntry, Paper
from tta_pipeline.methods.gradient_free import entries as gradient_free
from tta_pipeline.methods.teachers import entries as teachers
from tta_pipeline.methods.views import entries as views
from tta_pipeline.util.identifiers import is_name
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.source_code import load_reference

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "tta_pipeline.methods"
"""Group of the entry points by which other packages add methods."""
_FAMILIES = (batch_norm, entropy, gradient_free, views, teachers, clip)
METHODS: Mapping[str, MethodEntry] = {name: entry for family in _FAMILIES for name, entry in family.METHODS.items()}
"""The methods of this package."""


def paper_of(method: str) -> Paper | None:
    """Return the paper of *method*, a name in `METHODS`, also with pieces, such as tent+come; None if it has none."""
    entry = METHODS.get(method.partition("+")[0])
    return entry.paper if entry else None


@cache
def added_methods() -> Mapping[str, tuple["EntryPoint", ...]]:
    """Return the methods that other installed packages add, by name; nothing of these packages is imported.

    A package names the import path of a `MethodEntry` as an entry point of the group `tta_pipeline.methods`.
    """
    from importlib.metadata import entry_points  # only where a method is asked for

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda each: (each.name, each.value)):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def find_method(method: str) -> MethodEntry:
    """Return the entry of *method*: a name in `METHODS` or `added_methods`, or an import path `<module>:<name>`.

    Raises:
        ValueError: there is no such entry, or several packages have a method of this name.
    """
    points = added_methods().get(method, ())
    if points:
        return _load_added(method, points)
    if method in METHODS:
        return METHODS[method]
    near = name_choices(method, [*METHODS, *added_methods()], listed_in=METHODS_PAGE)
    choices = f"one of {near}, or <module>:<name> of a MethodEntry"
    if ":" not in method:
        raise ValueError(f"method is {method!r}; expected {choices}")
    return _load_entry(method, said=f"method is {method!r}", expected=choices)


def entry_path(method: str) -> str | None:
    """Return the import path of the entry of *method*, which `find_method` finds; None for a method of this package."""
    if method in METHODS:
        return None
    points = added_methods().get(method)
    return points[0].value if points else method


def package_of(point: "EntryPoint") -> str:
    """Return the name of the package that *point* belongs to."""
    return point.dist.name if point.dist else point.value


def _load_added(method: str, points: Sequence["EntryPoint"]) -> MethodEntry:
    """Import the entry of *method*, which *points* name."""
    packages = [*(["tta_pipeline"] if method in METHODS else []), *map(package_of, points)]
    if len(packages) > 1:
        raise ValueError(
            f"method is {method!r}, of {' and of '.join(packages)}; expected one package with a method of this name: "
            "uninstall the other"
        )
    (point,), (package,) = points, packages
    said = f"method is {method!r} of the package {package}"
    if not is_name(method):
        raise ValueError(f"{said}; expected a name of letters, digits and underscores: correct the package")
    return _load_entry(
        point.value, said=said, expected=f"a MethodEntry at {point.value}: correct or uninstall {package}"
    )


def _load_entry(path: str, *, said: str, expected: str) -> MethodEntry:
    """Import the entry at *path*; an error begins with what was *said*, and ends with what was *expected*."""
    try:
        entry = load_reference(path)
    except ValueError as error:
        raise ValueError(f"{said}, and {error}; expected {expected}") from error
    if not isinstance(entry, MethodEntry):
        found = "a class" if isinstance(entry, type) else f"of type {type(entry).__name__}"
        raise ValueError(f"{said}, {found}; expected {expected}")  # noqa: TRY004 - a bad value to pydantic
    return entry
