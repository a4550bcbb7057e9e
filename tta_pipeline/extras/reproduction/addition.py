"""Adds other people's published results to a data root, under a separate name, after checking every file.

Other people's files are not trusted: archives are unpacked within limits and inside a folder, plans have only names
that a benchmark file could have, and only the files that a plan lists are copied.
"""

import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from tta_pipeline.data.remote_files import read_whole, validate_url
from tta_pipeline.domain.locations import ADDED, RESULTS, Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.published import read_experiment, read_plan
from tta_pipeline.results.names import PLANS, plan_files
from tta_pipeline.results.plans import Plan
from tta_pipeline.util.files import published_folder, scratch_folder
from tta_pipeline.util.identifiers import is_name
from tta_pipeline.util.validation_errors import mistakes

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
_MOST_UNPACKED_BYTES = 2**34
_NAME = re.compile(r"\w{1,100}(\|\d{1,9})?", re.ASCII)
"""Names, and keys of cells and streams."""
_PLAN = TypeAdapter(Plan)


def add_published(origin: Path, name: str, locations: Locations) -> tuple[str, ...]:
    """Copy the published results in *origin* to `added/<name>/` of the data root; return the experiments.

    Every file is read and hashed first. Only the results that count by their plans are copied, with their predictions.
    If one is damaged, nothing is copied.

    Args:
        origin: A folder that `results publish` wrote, or an archive of one.
        name: Name of the results in this data root: experiments become `<name>:<experiment>`.
        locations: The data root.
    """
    target = locations.root / ADDED / name
    if not is_name(name):
        raise RecordError(
            f"The name is {name!r}; expected letters, digits and underscores, beginning with a letter: choose another"
        )
    if target.exists():
        raise RecordError(f"{target} already exists; expected a new name: choose another, or remove that folder first")
    with _opened(origin) as folder:
        plans = list(plan_files(folder / RESULTS))
        if not plans:
            raise RecordError(
                f"{origin} has no {RESULTS}/<benchmark>/{PLANS}; expected a folder that `tta-pipeline results "
                "publish` wrote: check the path"
            )
        found = [_prove(folder, path) for path in plans]
        with published_folder(target) as beside:
            for path in dict.fromkeys(path for files in found for path in files):
                copy = beside / path.relative_to(folder)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
    return tuple(path.stem for path in plans)


def _prove(folder: Path, plan_path: Path) -> list[Path]:
    """Read and hash the files in *folder* that the plan at *plan_path* lists, and return them."""
    _require_files(folder, [plan_path])
    _require_plain(plan_path, read_plan(plan_path))
    found = read_experiment(folder, plan_path)
    if found is None:
        raise RecordError(
            f"{plan_path} has no results; expected its result files next to it: copy the whole published folder"
        )
    predictions = [path for cell in found.cells if (path := cell.predictions_path)]
    files = [plan_path, *(stored.path for stored in found.stored), *dict.fromkeys(predictions)]
    _require_files(folder, files)
    found.require_predictions()
    return files


def _require_files(folder: Path, paths: Iterable[Path]) -> None:
    """Refuse paths that lead out of *folder*, or to anything but files."""
    for path in paths:
        if path.is_symlink() or not path.is_file() or path.resolve() != folder.resolve() / path.relative_to(folder):
            raise RecordError(
                f"{path} is missing, or is a link; expected a file in {folder}: copy the whole published folder"
            )


def _require_plain(path: Path, plan: Plan) -> None:
    """Refuse a plan with facts that no benchmark file could produce.

    Its names become paths, and its facts become rows of the database.
    """
    try:
        _PLAN.validate_json(_PLAN.dump_json(plan, warnings=False), strict=True)
    except ValidationError as error:
        raise RecordError(
            f"{path} is not a plan ({'; '.join(mistakes(error, 'plan'))}); expected a plan that `results publish` "
            "wrote: copy the published folder again"
        ) from error
    labels = plan.labels
    streams = [stream.key for stream in plan.streams]
    cells = [cell for stream in plan.streams for segment in stream.segments for cell in segment.cells]
    names = [*plan.benchmark.split("/"), labels.experiment, labels.model, labels.dataset, *labels.shifts]
    if odd := [name for name in (*streams, *cells, *names) if not _NAME.fullmatch(name)]:
        raise RecordError(
            f"The name of {path} contains {odd[0]!r:.80}; expected letters, digits and _: copy the published folder "
            "again"
        )


@contextmanager
def _opened(origin: Path) -> Iterator[Path]:
    """Yield the folder of *origin*, unpacked if it is an archive."""
    if origin.is_dir():
        yield origin
        return
    _require_archive(origin.name, origin)
    with scratch_folder("added-results") as folder:
        try:
            _unpack(origin, folder)
        except (
            OSError, EOFError, zlib.error, tarfile.TarError, zipfile.BadZipFile, RuntimeError, NotImplementedError
        ) as error:  # fmt: skip
            raise RecordError(
                f"{origin} cannot be unpacked ({error}); expected an intact archive: download it again"
            ) from error
        inner = [path.parent for path in folder.glob(f"**/{RESULTS}") if path.is_dir()]
        yield min(inner, key=lambda path: len(path.parts)) if inner else folder


def _unpack(origin: Path, folder: Path) -> None:
    """Unpack the archive *origin* into *folder*: nothing outside it, and no more than `_MOST_UNPACKED_BYTES`."""
    if origin.name.endswith(".zip"):
        with zipfile.ZipFile(origin) as zipped:
            _require_size(origin, (member.file_size for member in zipped.infolist()))
            zipped.extractall(folder)  # noqa: S202 - zipfile keeps members inside the folder
        return
    with tarfile.open(origin) as archive:
        _require_size(origin, (member.size for member in archive))
        for member in archive:
            _unpack_member(archive, member, folder)


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Write the file *member* below *folder*. The filters of `tarfile` need Python 3.11.4."""
    path = (folder / member.name).resolve()
    if not path.is_relative_to(folder.resolve()) or not (member.isfile() or member.isdir()):
        raise tarfile.ExtractError(f"{member.name} is outside the folder, or no file")
    data = archive.extractfile(member)
    if data is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with data, path.open("wb") as copy:
            shutil.copyfileobj(data, copy)


def _require_size(origin: Path, sizes: Iterable[int]) -> None:
    if any(total > _MOST_UNPACKED_BYTES for total in accumulate(sizes)):
        raise RecordError(
            f"{origin} unpacks to more than {_MOST_UNPACKED_BYTES:,} bytes; expected published results, which are "
            "smaller: check the file"
        )


def _require_archive(name: str, origin: Path | str) -> None:
    if not name.endswith(_SUFFIXES):
        raise RecordError(
            f"{origin} is neither a folder nor a known archive; expected a folder, or a name that ends in "
            f"{', '.join(_SUFFIXES)}: check the path"
        )


@contextmanager
def downloaded(url: str) -> Iterator[Path]:
    """Yield the archive at *url*, downloaded to node-local disk."""
    name = PurePosixPath(urlsplit(validate_url(url)).path).name
    _require_archive(name, url)
    with scratch_folder("downloaded-results") as folder:
        path = folder / name
        path.write_bytes(read_whole(validate_url(url)))
        yield path
