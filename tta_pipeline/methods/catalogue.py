"""The methods by name: everything that a benchmark file needs to know about them, without torch.

To add a method, write a file in its family's folder and an entry in the family's `entries`. A method outside the
package is a `MethodEntry` in the user's own module, named by its import path, or in an installed package, which names
it as an entry point.
"""

from collections.abc import Mapping

from tta_pipeline.methods.alignment import entries as alignment
from tta_pipeline.methods.batch_norm import entries as batch_norm
from tta_pipeline.methods.clip import entries as clip
from tta_pipeline.methods.entropy import entries as entropy
from tta_pipeline.methods.entry import METHODS_PAGE, MethodEntry, Paper
from tta_pipeline.methods.gradient_free import entries as gradient_free
from tta_pipeline.methods.teachers import entries as teachers
from tta_pipeline.methods.views import entries as views
from tta_pipeline.util.added import added, load_added, load_checked
from tta_pipeline.util.nearest_names import name_choices

GROUP = "tta_pipeline.methods"
"""Group of the entry points by which other packages add methods: each is the import path of a `MethodEntry`."""
_FAMILIES = (batch_norm, entropy, alignment, gradient_free, views, teachers, clip)
METHODS: Mapping[str, MethodEntry] = {name: entry for family in _FAMILIES for name, entry in family.METHODS.items()}
"""The methods of this package."""


def paper_of(method: str) -> Paper | None:
    """Return the paper of *method*, a name in `METHODS`, also with pieces, such as tent+come; None if there is none."""
    entry = METHODS.get(method.partition("+")[0])
    return entry.paper if entry else None


def find_method(method: str) -> MethodEntry:
    """Return the entry of *method*: a name in `METHODS` or one that another package adds, or `<module>:<name>`.

    Raises:
        ValueError: there is no such entry, or several packages have a method of this name.
    """
    what = "a MethodEntry"
    entry = load_added(GROUP, method, ours=METHODS, is_right=_is_entry, what=what, field="method")
    entry = entry or METHODS.get(method)
    if entry is None:
        near = name_choices(method, [*METHODS, *added(GROUP)], listed_in=METHODS_PAGE)
        said, expected = f"method is {method!r}", f"one of {near}, or <module>:<name> of {what}"
        if ":" not in method:
            raise ValueError(f"{said}; expected {expected}")
        entry = load_checked(method, is_right=_is_entry, said=said, expected=expected)
    assert isinstance(entry, MethodEntry)
    return entry


def _is_entry(found: object) -> bool:
    return isinstance(found, MethodEntry)


def entry_path(method: str) -> str | None:
    """Return the import path of the entry of *method*, which `find_method` finds; None for a method of this package."""
    if method in METHODS:
        return None
    points = added(GROUP).get(method)
    return points[0].value if points else method
