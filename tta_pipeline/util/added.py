"""What other installed packages add by entry points; a package is imported only when its object is needed."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING

from tta_pipeline.util.identifiers import is_name
from tta_pipeline.util.source_code import load_reference

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def added(group: str) -> Mapping[str, tuple["EntryPoint", ...]]:
    """Return the entry points of *group*, such as `tta_pipeline.methods`, by name: usually one for each."""
    from importlib.metadata import entry_points  # only when an added object may be needed

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=group), key=lambda each: (each.name, each.value)):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def package_of(point: "EntryPoint") -> str:
    """Return the name of the package that *point* belongs to."""
    return point.dist.name if point.dist else point.value


def load_added(
    group: str, name: str, *, ours: Collection[str], is_right: Callable[[object], bool], what: str, field: str
) -> object:
    """Import what a package adds to *group* as *name*; None if no package does.

    Args:
        group: The group of entry points.
        name: Name of the entry point.
        ours: Names that this project has itself.
        is_right: Whether an object has the right type.
        what: That type in words, such as `a MethodEntry`.
        field: Field of the benchmark file that has the name.

    Raises:
        ValueError: several packages have this name, or this project does; or what is there is not *what*.
    """
    points = added(group).get(name, ())
    if not points:
        return None
    packages = [*(["tta_pipeline"] if name in ours else []), *map(package_of, points)]
    if len(packages) > 1:
        raise ValueError(
            f"the {field} {name!r} is provided by {' and by '.join(packages)}; expected only one package for it: "
            "uninstall the other"
        )
    (point,), (package,) = points, packages
    said = f"{field} is {name!r} of the package {package}"
    if not is_name(name):
        raise ValueError(f"{said}; expected a name with letters, digits and underscores: correct the package")
    expected = f"{what} at {point.value}: correct or uninstall {package}"
    return load_checked(point.value, is_right=is_right, said=said, expected=expected)


def load_checked(path: str, *, is_right: Callable[[object], bool], said: str, expected: str) -> object:
    """Import the object at *path*; an error begins with what was *said*, and ends with what was *expected*.

    Raises:
        ValueError: it cannot be imported, or *is_right* returns False.
    """
    try:
        found = load_reference(path, is_right=is_right)
    except ValueError as error:
        raise ValueError(f"{said}, and {error}; expected {expected}") from error
    if not is_right(found):
        kind = f"the class {found.__name__}" if isinstance(found, type) else f"of type {type(found).__name__}"
        raise ValueError(f"{said}, {kind}; expected {expected}")
    return found
