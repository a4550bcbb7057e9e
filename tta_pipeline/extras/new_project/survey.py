"""Recognises the content of a folder or of archives by reading little of it: every kind of source is tried in turn."""

from collections.abc import Sequence
from pathlib import Path

from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.datasets.dataset_files import read_own_sets, shipped_sets
from tta_pipeline.data.images.choose_dataset import Place
from tta_pipeline.data.images.images_section import Survey
from tta_pipeline.data.images.kinds import KINDS
from tta_pipeline.errors import ImagesError

_LEAST_SIZE = 16
_FIRST = "imagenet_c"
"""Dataset that is preferred if several fit equally well."""


def survey(paths: Sequence[Path], own_folder: Path | None = None) -> Survey:
    """Return a description of the images at *paths*, one folder or one or more archives.

    Args:
        paths: Folder or archives.
        own_folder: Folder with the user's own datasets.
    """
    for path in paths:
        if not path.exists():
            raise ImagesError(f"{path} does not exist; expected a folder, or tar or zip archives: check the path")
    if len(paths) > 1 and not all(path.is_file() for path in paths):
        raise ImagesError(
            f"The images were given as {', '.join(map(str, paths))}; expected one folder, or only archives, since a "
            "benchmark has one source of images: leave the others out"
        )
    place = Place(paths=tuple(path.absolute() for path in paths), sets=_known_sets(own_folder))
    try:
        found = next((found for kind in KINDS if (found := kind.detect(place))), None)
    except OSError as error:
        raise ImagesError(
            f"{error.filename or paths[0]} cannot be read ({error.strerror}); expected a readable file or folder: "
            "check your permissions"
        ) from error
    if found is None:
        raise _nothing(paths)
    if found.least_side < _LEAST_SIZE:
        raise ImagesError(
            f"{paths[0]} has an image with a side of only {found.least_side} pixels; expected at least {_LEAST_SIZE}: "
            "remove small images"
        )
    return found


def _known_sets(own_folder: Path | None) -> tuple[Dataset, ...]:
    own = read_own_sets(own_folder) if own_folder else ()
    return tuple(sorted((*shipped_sets().values(), *own), key=lambda each: each.name != _FIRST))


def _nothing(paths: Sequence[Path]) -> ImagesError:
    if paths[0].is_file():
        others = " and the others" if len(paths) > 1 else ""
        return ImagesError(
            f"0 images of a cell in {paths[0]}{others}; expected <corruption>/<severity>/<class>/<image>: name the "
            "archives that have them"
        )
    return ImagesError(
        f"{paths[0]} holds neither <corruption>/<severity>/<class>/<image>, nor shards, nor labels.npy, nor tar "
        "archives, nor class folders of uncorrupted images; expected one of these: name the folder above them"
    )
