"""Classes named in a benchmark file: by a list that comes with the project, or by a file of the user's."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from tta_pipeline.labels.label_files import read_classes
from tta_pipeline.labels.shipped import shipped_classes, shipped_names


def _list_or_file(value: Any) -> Any:
    return Path(value) if isinstance(value, str) and value not in shipped_names() else value


NamedClasses = Annotated[str | Path, BeforeValidator(_list_or_file)]
"""Name of a list that comes with the project, as text; anything else is a path."""


def named_classes(named: str | Path) -> tuple[str, ...]:
    """Return the classes that *named* stands for, in label order.

    Raises:
        ClassMapError: there is no such list, or the file is none of class names.
    """
    return shipped_classes(named) if isinstance(named, str) else read_classes(named.expanduser())
