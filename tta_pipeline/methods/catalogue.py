"""The methods by name: everything that a benchmark file needs of them, without torch.

To add a method, write a file in its family's folder and an entry in the family's `entries`. A method outside the
package is a `MethodEntry` in the user's own module, named by its import path.
"""

from collections.abc import Mapping

from tta_pipeline.methods.batch_norm import entries as batch_norm
from tta_pipeline.methods.clip import entries as clip
from tta_pipeline.methods.entropy import entries as entropy
from tta_pipeline.methods.entry import METHODS_PAGE, MethodEntry, Paper
from tta_pipeline.methods.gradient_free import entries as gradient_free
from tta_pipeline.methods.teachers import entries as teachers
from tta_pipeline.methods.views import entries as views
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.source_code import load_reference

_FAMILIES = (batch_norm, entropy, gradient_free, views, teachers, clip)
METHODS: Mapping[str, MethodEntry] = {name: entry for family in _FAMILIES for name, entry in family.METHODS.items()}


def paper_of(method: str) -> Paper | None:
    """Return the paper of *method*, a name in `METHODS`, also with pieces, such as tent+come; None if it has none."""
    entry = METHODS.get(method.partition("+")[0])
    return entry.paper if entry else None


def find_method(method: str) -> MethodEntry:
    """Return the entry of *method*: a name in `METHODS`, or the import path `<module>:<name>` of a `MethodEntry`.

    Raises:
        ValueError: there is no such entry.
    """
    if method in METHODS:
        return METHODS[method]
    choices = f"one of {name_choices(method, METHODS, listed_in=METHODS_PAGE)}, or <module>:<name> of a MethodEntry"
    if ":" not in method:
        raise ValueError(f"method is {method!r}; expected {choices}")
    try:
        entry = load_reference(method)
    except ValueError as error:
        raise ValueError(f"method is {method!r}, and {error}; expected {choices}") from error
    if not isinstance(entry, MethodEntry):
        found = "a class" if isinstance(entry, type) else f"of type {type(entry).__name__}"
        raise ValueError(f"method is {method!r}, {found}; expected {choices}")  # noqa: TRY004 - a bad value to pydantic
    return entry
