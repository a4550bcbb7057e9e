"""Finds what a folder or archives hold by reading little of them."""

from collections.abc import Sequence
from pathlib import Path

from tta_pipeline.errors import SourceError
from tta_pipeline.new_benchmark.archives import survey_archives
from tta_pipeline.new_benchmark.folders import survey_folder
from tta_pipeline.new_benchmark.found import Survey

_LEAST_SIZE = 16


def survey(paths: Sequence[Path]) -> Survey:
    """Return what lies at *paths*, one folder or one or more archives.

    Raises:
        SourceError: there is nothing there, or nothing that a benchmark can be made of.
    """
    for path in paths:
        if not path.exists():
            raise SourceError(f"{path} does not exist; expected a folder, or tar archives")
    are_archives = all(path.is_file() for path in paths)
    if len(paths) > 1 and not are_archives:
        raise SourceError(
            f"found {', '.join(map(str, paths))}; expected one folder, or archives alone: a benchmark has one source"
        )
    try:
        found = survey_archives([p.absolute() for p in paths]) if are_archives else survey_folder(paths[0].absolute())
    except OSError as error:
        raise SourceError(
            f"{error.filename or paths[0]} cannot be read ({error.strerror}); expected one that can"
        ) from error
    if found.image_size and min(found.image_size) < _LEAST_SIZE:
        height, width = found.image_size
        raise SourceError(f"{paths[0]} has images of {height}x{width} pixels; expected at least {_LEAST_SIZE}")
    return found
