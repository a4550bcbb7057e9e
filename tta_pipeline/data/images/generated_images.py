"""Corrupted images made here from clean images, for data without a published corrupted copy.

The images are generated: results on them are marked as generated and are not comparable with any published table.
The section is in `kinds/generated.py`, so that worker processes, which import this file, need not import every kind.
"""

import contextlib
import hashlib
import json
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from tta_pipeline.data import corruptions
from tta_pipeline.data.image_bytes import decode_with_pillow, read_image_header
from tta_pipeline.data.images.generated_encoding import GENERATOR_VERSION, Encoding, randomness_key
from tta_pipeline.data.images.listing import ListedImage, Listing, Source
from tta_pipeline.data.images.spill import SpilledImages, SpillFile, SpillFolder
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.errors import ImagesError

BATCH_SIZE = 64
_SHORTER_SIDE = 256 / 224
"""Ratio of an image's resized shorter side to the side of its crop (make_imagenet_c.py)."""


@dataclass(frozen=True, kw_only=True)
class GeneratedImages(SpilledImages):
    """A source that corrupts the clean images of another source.

    An image that is not *image_size* pixels high and wide is resized and its centre cropped, as in
    `make_imagenet_c.py` for 224 pixels. The cell `clean` has the images before corruption: a resized image is stored
    with the encoding of the corrupted images, any other is the clean source's file.
    """

    clean: Source
    cells: tuple[Cell, ...]
    table: str
    """Name of the table of severity constants, one of `tta_pipeline.data.corruptions.TABLES`."""
    seed: int
    encoding: Encoding
    image_size: int
    jobs: int = 1
    """Number of worker processes; the images are the same for any number."""

    @property
    def origin(self) -> str:
        """The corruptions and their table."""
        return f"the corruptions of {self.table}"

    def class_names(self) -> tuple[str, ...]:
        """Return the class names of the clean source."""
        return self.clean.class_names()

    def version(self, cell: Cell) -> str:
        """Return a digest of the clean images' version and of every setting that affects a byte."""
        decisive = [GENERATOR_VERSION, self.clean.version(CLEAN), cell.key, self.table, self.seed]
        decisive += [self.encoding.jpeg_quality, self.image_size]
        return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()

    @contextlib.contextmanager
    def prepared(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Generate the images of *cells* under the spill root, and remove them when the block ends."""
        with self.clean.prepared((CLEAN,)), super().prepared(cells):
            yield

    def spill_cells(self, cells: Sequence[Cell], spill: SpillFolder) -> dict[Cell, Listing]:
        """Generate the images of *cells* into files of *spill*; the clean images must be prepared."""
        clean = self.clean.listing(CLEAN).in_memory()
        names = _names(clean.images, suffix=self.encoding.suffix)
        with _executor(self.jobs) as executor:
            return {
                cell: replace(
                    clean,
                    cell=cell,
                    images=self._generate(cell, clean, names=names, spill=spill.file(cell), executor=executor),
                )
                for cell in cells
            }

    def _generate(
        self, cell: Cell, clean: Listing, *, names: Sequence[str], spill: SpillFile, executor: Executor | None
    ) -> tuple[ListedImage, ...]:
        recipe = _GeneratorSettings(
            cell=cell, table=self.table, seed=self.seed, encoding=self.encoding, image_size=self.image_size
        )
        as_they_are: list[ListedImage] = []
        made = _convert_in_order(clean.images, recipe=recipe, executor=executor, ahead=2 * self.jobs)
        for image, name, data in zip(clean.images, names, made, strict=True):
            if data is None:
                as_they_are.append(image)
            else:
                spill.append(image.class_name, name, data)
        return tuple(sorted((*spill.flush_images(), *as_they_are), key=lambda image: image.name))


@dataclass(frozen=True, kw_only=True, slots=True)
class _GeneratorSettings:
    """Settings of a worker process."""

    cell: Cell
    table: str
    seed: int
    encoding: Encoding
    image_size: int


def _names(images: Sequence[ListedImage], *, suffix: str) -> tuple[str, ...]:
    """Return the name of each image's corrupted copy: the image's own name with the extension of the new file."""
    by_name: dict[str, ListedImage] = {}
    for image in images:
        name = f"{Path(image.file_name).stem}{suffix}"
        other = by_name.setdefault(f"{image.class_name}/{name}", image)
        if other is not image:
            raise ImagesError(
                f"{image.path} ({image.name}) and {other.path} ({other.name}) would get the same name, "
                f"{image.class_name}/{name}; expected unique names within a class: rename or remove one of them"
            )
    return tuple(name.removeprefix(f"{image.class_name}/") for name, image in by_name.items())


@contextlib.contextmanager
def _executor(jobs: int) -> Iterator[Executor | None]:
    """Yield worker processes, or None to work in this process; threads would block each other."""
    if jobs == 1:
        yield None
        return
    executor = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_exit_with_parent)
    try:
        yield executor
    except BrokenProcessPool as error:
        raise ImagesError(
            f"One of {jobs} processes that corrupt images was killed, probably because memory ran out; expected all "
            "of them to finish: lower `jobs`"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _exit_with_parent() -> None:
    """Make this worker end when its parent is killed; otherwise it would live on."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _convert_in_order(
    images: Sequence[ListedImage], *, recipe: _GeneratorSettings, executor: Executor | None, ahead: int
) -> Iterator[bytes | None]:
    """Yield the new file of each image in order, with at most *ahead* batches in memory."""
    waiting: deque[Future[list[bytes | None]]] = deque()
    for start in range(0, len(images), BATCH_SIZE):
        batch = slice(start, start + BATCH_SIZE)
        if executor is None:
            yield from _batch(images[batch], recipe=recipe)
            continue
        waiting.append(executor.submit(_batch, images[batch], recipe=recipe))
        if len(waiting) >= ahead:
            yield from waiting.popleft().result()
    for future in waiting:
        yield from future.result()


def _batch(images: Sequence[ListedImage], *, recipe: _GeneratorSettings) -> list[bytes | None]:
    """Return the new file of each image, or None for an image that stays unchanged."""
    if recipe.cell == CLEAN:
        return [_fit_to_file(image, recipe) for image in images]
    corrupted = corruptions.corrupt(
        np.stack([np.asarray(_fit_to_size(image, recipe.image_size)) for image in images]),
        recipe.cell.corruption,
        recipe.cell.severity,
        keys=[randomness_key(f"{image.class_name}/{Path(image.file_name).stem}") for image in images],
        seed=recipe.seed,
        table=recipe.table,
    )
    return [recipe.encoding.encode(image) for image in corrupted]


def _fit_to_file(image: ListedImage, recipe: _GeneratorSettings) -> bytes | None:
    with _intact(image):
        header = read_image_header(image.read())
    if (header.height, header.width) == (recipe.image_size, recipe.image_size):
        return None
    return recipe.encoding.encode(np.asarray(_fit_to_size(image, recipe.image_size)))


def _fit_to_size(image: ListedImage, size: int) -> Image.Image:
    """Return *image* in RGB, *size* pixels high and wide."""
    decoded = _decode(image)
    if decoded.size == (size, size):
        return decoded
    shorter = round(size * _SHORTER_SIDE)
    width, height = (shorter * side // min(decoded.size) for side in decoded.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    resized = decoded.resize((width, height), Image.Resampling.BILINEAR)
    return resized.crop((left, top, left + size, top + size))


def _decode(image: ListedImage) -> Image.Image:
    data = image.read()
    with _intact(image):
        read_image_header(data)
        return decode_with_pillow(data)


@contextlib.contextmanager
def _intact(image: ListedImage) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, SyntaxError) as error:
        raise ImagesError(
            f"{image.path} ({image.name}) cannot be decoded: {error}; expected an intact clean image: replace or "
            "remove the file"
        ) from error
