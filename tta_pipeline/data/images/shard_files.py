"""Files of third-party shards: choosing the files of a set, detecting several sets, links and unpacking."""

import fnmatch
import gzip
import hashlib
import os
import re
import shutil
import zlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from tta_pipeline.data.formats.tar_format import read_compression
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.braces import expand
from tta_pipeline.util.files import published_folder, written_file
from tta_pipeline.util.identifiers import natural_order
from tta_pipeline.util.short_lists import abbreviate_list

COMPRESSED_SUFFIXES = (".tar.gz", ".tgz")
_SUFFIXES = (".tar", *COMPRESSED_SUFFIXES)
_NOT_PACKED = (
    r"md5\w*|sha\d*(?:sum)?|crc\w*|json\w*|txt|idx|index|csv|tsv|ya?ml|xml|asc|sig|log|li?st|etag|html?|parquet"
)
"""Suffixes of files that describe a tar."""
_TAR_LIKE = re.compile(
    rf"\.(?:tar(?![a-z0-9])(?!.*\.(?:{_NOT_PACKED})$).*|t(?:gz|az|bz2?|b2|z2|xz|lz4?|zst?))$", re.IGNORECASE
)
"""Suffixes of tars in any form: of other compressions, in capitals, or with what a download or a copy adds."""
_PACKED = re.compile(r"\.(?:gz|bz2|xz|zstd?|lz4|lzma|z|zip|7z|rar)$", re.IGNORECASE)
_ANY_FORM = re.compile(rf"\.(?!(?:{_NOT_PACKED})$)\w+$", re.IGNORECASE)
"""Suffix of a file that may be a shard, if it has a shard's name."""
_NUMBER = re.compile(r"\d*(?:-of-\d+)?\s*$")
"""The number in the name of a shard: `shard-000003`, `train-00003-of-00128`."""
_MAX_EXPANDED = 100_000
_CHUNK_BYTES = 2**20


def is_tar_like(name: str) -> bool:
    """Return whether *name* is a tar's name in any form, whether the tar can be read or not."""
    return _TAR_LIKE.search(name) is not None


def find_unread(names: Iterable[str], readable: tuple[str, ...] = _SUFFIXES) -> list[str]:
    """Return the *names* of shards of the others' set, or of tars, in a form without a *readable* suffix.

    A name that another one has in a readable form is left out: it is the packed original, or a copy.
    """
    names = sorted(names, key=natural_order)
    read = {_bare(name) for name in names if name.endswith(readable)}
    stems = {_NUMBER.sub("", bare) for bare in read}
    return [
        name
        for name in names
        if _bare(name) not in read and (is_tar_like(name) or _is_numbered_like(_ANY_FORM.sub("", name), read, stems))
    ]


def _is_numbered_like(bare: str, read: Collection[str], stems: Collection[str]) -> bool:
    """Return whether *bare* has the name of the shards *read* with another number."""
    return bare not in read and _NUMBER.sub("", bare) in stems


def require_read(names: Iterable[str], readable: tuple[str, ...] = _SUFFIXES, *, where: object) -> None:
    """Refuse *names* in the folder *where* that `find_unread` finds: the set would be short of them."""
    if unread := find_unread(names, readable):
        raise ImagesError(
            f"{where} has {len(unread):,} shards that cannot be read: {abbreviate_list(unread)}; expected names that "
            f"end in {', '.join(readable)}: unpack, complete or rename them, or move them away"
        )


def list_shard_files(folder: Path, files: Sequence[str] = ()) -> tuple[Path, ...]:
    """Return the shards in *folder*, read and unread ones, as `find_shard_files` selects and orders them."""
    found = {path.name for path in folder.glob("[!.]*") if not path.is_dir()}
    if files:
        found = select_names(found, files)
    # The last one counts: a tar rather than its compressed copy.
    shards = {_bare(name): name for suffix in reversed(_SUFFIXES) for name in found if name.endswith(suffix)}
    return tuple(folder / name for name in sorted([*shards.values(), *find_unread(found)], key=natural_order))


def find_shard_files(folder: Path, files: Sequence[str] = ()) -> tuple[Path, ...]:
    """Return the shards in *folder* in the order of the numbers in their names; if a tar has a .tar.gz copy, the tar.

    Hidden files do not count.

    Args:
        folder: Folder of shards.
        files: Patterns of their names; if empty, all tars. Braces are lists and ranges of names, `*` matches any text.
    """
    found = list_shard_files(folder, files)
    names = [path.name for path in found]
    _require_no_gaps(folder, files, names)
    require_read(names, where=folder)
    if not found:
        raise ImagesError(
            f"There are no shards in {folder}; expected {', '.join(files) or '*.tar'}: correct the root, or wait "
            "until the shards are there"
        )
    return found


def find_one_set(folder: Path, files: Sequence[str]) -> tuple[Path, ...]:
    """Return the shards in *folder* as `find_shard_files` does; without *files* they must belong to one set."""
    shards = find_shard_files(folder, files)
    if not files:
        _require_one_set(shards)
    return shards


def _require_one_set(shards: Sequence[Path]) -> None:
    stems = dict.fromkeys(_stem(path.name) for path in shards)
    if len(stems) > 1:
        patterns = [f"{stem}*.tar" for stem in stems]
        raise ImagesError(
            f"{shards[0].parent} has shards with {len(stems)} different names: {abbreviate_list(patterns)}; expected "
            f'one dataset, not training and validation images together: choose with `files: "{patterns[-1]}"` under '
            f'images or `--files "{patterns[-1]}"` of `tta-pipeline shards index`, or "*.tar" to take all'
        )


def shards_version(shards: Sequence[Path]) -> str:
    """Return a digest of the names, sizes and times of *shards*; links and unpacked copies equal the original."""
    lines = []
    for path in shards:
        original = _original(path)
        try:
            status = original.stat()
            # An unpacked copy has the time of the original when it was unpacked; the original may have changed since.
            modified_ns = path.stat().st_mtime_ns
        except OSError as error:
            raise ImagesError(
                f"{path} cannot be read ({error.strerror}); expected a shard: restore the file, or check your "
                "permissions"
            ) from error
        lines.append(f"{original.name.removeprefix('.')}\0{status.st_size}\0{modified_ns}")
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def link_shards(shards: Sequence[Path], target: Path, *, anew: bool = False) -> bool:
    """Make *target* a folder of symbolic links to *shards*, unless it is one; return whether it was made.

    Compressed shards are unpacked there. Making the folder, because of *anew* or because the shards have changed,
    drops its manifest.
    """
    if not anew and _links(shards) == _read_links(target):
        return False
    with published_folder(target) as folder:
        for path in shards:
            if not _is_compressed(path):
                (folder / path.name).symlink_to(path.absolute())
            else:
                (folder / f".{path.name}").symlink_to(path.absolute())
                unpack(path, folder / unpacked_path(path).name)
    return True


def unpacked_path(shard: Path) -> Path:
    """Return the path of the tar from a compressed *shard*; *shard* itself if it is a tar."""
    for suffix in COMPRESSED_SUFFIXES:
        if shard.name.endswith(suffix):
            return shard.with_name(f"{shard.name.removesuffix(suffix)}.tar")
    return shard


def unpack(shard: Path, target: Path) -> None:
    """Unpack *shard* to *target*, with the modification time of *shard*; a plain tar under any name is copied."""
    compression = read_compression(shard)
    if compression not in ("", "gzip"):
        raise ImagesError(f"{shard} is compressed with {compression}; expected a plain tar or gzip: repack it")
    modified_ns = shard.stat().st_mtime_ns
    with written_file(target) as beside:
        try:
            with gzip.open(shard) if compression else shard.open("rb") as packed, beside.open("wb") as file:
                shutil.copyfileobj(packed, file, _CHUNK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ImagesError(
                f"{shard} cannot be decompressed: {error}; expected a complete .tar.gz: download it again"
            ) from error
        os.utime(beside, ns=(modified_ns, modified_ns))


def select_names(names: Collection[str], files: Sequence[str]) -> set[str]:
    """Return the *names* that match the patterns *files*, whether compressed or not."""
    every = {_bare(name) for pattern in files for name in _expanded(pattern)}
    globs = [pattern for pattern in every if _is_glob(pattern)]
    return {
        name
        for name in names
        if _bare(name) in every or any(fnmatch.fnmatchcase(_bare(name), pattern) for pattern in globs)
    }


def _require_no_gaps(folder: Path, files: Sequence[str], names: Collection[str]) -> None:
    """Refuse a range in braces if *folder* has only some of its names."""
    there = {_bare(name) for name in names}
    for pattern in files:
        exact = [name for name in _expanded(pattern) if not _is_glob(name)]
        missing = [name for name in exact if _bare(name) not in there]
        if missing and len(missing) < len(exact):
            raise ImagesError(
                f"{folder} lacks {len(missing):,} of the {len(exact):,} shards in {pattern!r}: "
                f"{abbreviate_list(missing)}; expected all of them: download the missing shards, or correct the range"
            )


def _expanded(pattern: str) -> tuple[str, ...]:
    try:
        names = expand(pattern, most=_MAX_EXPANDED)
    except ValueError as error:
        raise ImagesError(f"{pattern!r} has unbalanced braces; expected a range such as {{000..127}}") from error
    if not names:
        raise ImagesError(f"{pattern!r} stands for more than {_MAX_EXPANDED:,} shards; expected fewer: use *.tar")
    return names


def _is_glob(name: str) -> bool:
    return any(character in name for character in "*?[")


def _stem(name: str) -> str:
    return _NUMBER.sub("", _bare(name))


def _bare(name: str) -> str:
    """Return the *name* of a shard, or a pattern, without its suffix."""
    readable = next((suffix for suffix in _SUFFIXES if name.endswith(suffix)), "")
    return name.removesuffix(readable) if readable else _PACKED.sub("", _TAR_LIKE.sub("", name))


def _links(shards: Sequence[Path]) -> dict[str, Path | int]:
    """Return the expected content of a folder of links: the target of each link, the time of each unpacked copy."""
    links: dict[str, Path | int] = {}
    for path in shards:
        if not _is_compressed(path):
            links[path.name] = path.absolute()
        else:
            links[f".{path.name}"] = path.absolute()
            links[unpacked_path(path).name] = path.stat().st_mtime_ns
    return links


def _read_links(folder: Path) -> dict[str, Path | int]:
    found = (path for path in folder.glob("*") if path.name.endswith(_SUFFIXES))
    return {path.name: path.readlink() if path.is_symlink() else path.stat().st_mtime_ns for path in found}


def _is_compressed(shard: Path) -> bool:
    """Return whether *shard* is compressed by its name or by its first bytes."""
    return unpacked_path(shard) != shard or read_compression(shard) == "gzip"


def _original(path: Path) -> Path:
    """Return the link to the compressed original if *path* is an unpacked copy; otherwise *path*."""
    for suffix in _SUFFIXES:
        original = path.with_name(f".{path.name.removesuffix('.tar')}{suffix}")
        if original.is_symlink():
            return original
    return path
