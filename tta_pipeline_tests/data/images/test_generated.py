"""Clean images of any source become a corrupted benchmark, the same one every time."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tta_pipeline.data.corruptions import corrupt
from tta_pipeline.data.image_bytes import read_image_header, read_npy
from tta_pipeline.data.images import generated_images
from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.images.generated_encoding import Encoding
from tta_pipeline.data.images.generated_images import GeneratedImages, _fit_to_size
from tta_pipeline.data.images.listing import ListedImage
from tta_pipeline.domain.cells import CLEAN, Cell
from tta_pipeline.errors import ImagesError
from tta_pipeline.loading.decode import decode_into
from tta_pipeline_tests.conftest import jpeg, write_tree

NOISE_5 = Cell(corruption="gaussian_noise", severity=5)
JPEG, LOSSLESS = Encoding(jpeg_quality=85), Encoding(jpeg_quality=None)
CONTRAST_1 = Cell(corruption="contrast", severity=1)


@pytest.fixture
def source(tmp_path: Path) -> GeneratedImages:
    """Seventy clean images of two classes, more than fit in one batch."""
    write_tree(tmp_path / "clean" / CLEAN.path, classes={"n01": 40, "n02": 30})
    return GeneratedImages(
        clean=FolderTree(root=tmp_path / "clean", cells=(CLEAN,)),
        cells=(NOISE_5, CONTRAST_1),
        table="cifar_c",
        seed=0,
        encoding=JPEG,
        image_size=32,
        spill_root=tmp_path / "spill",
    )


def contents(source: GeneratedImages, cell: Cell) -> dict[str, bytes]:
    """Return the bytes of every image of *cell* by name."""
    with source.prepared([cell]):
        return {image.name: image.read() for image in source.listing(cell).images}


def image_file(path: Path, *, size: tuple[int, int], mode: str = "RGB") -> ListedImage:
    """Write a PNG of noise and describe it."""
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path, "PNG")
    status = path.stat()
    return ListedImage(path.parent.name, path.name, str(path), status.st_size, status.st_mtime_ns)


def test_images_are_corrupted_under_their_own_names(source: GeneratedImages):
    """Each image is what the corruption makes of it and its name, as a JPEG of quality 85, in a sorted listing."""
    made = contents(source, NOISE_5)

    clean = {image.name: image for image in source.clean.listing(CLEAN).images}
    assert list(clean) == list(made)
    for name in ("n01/image_000.JPEG", "n02/image_029.JPEG"):
        pixels = np.asarray(Image.open(io.BytesIO(clean[name].read())))
        expected = corrupt(pixels[None], "gaussian_noise", 5, keys=[name], seed=0, table="cifar_c")[0]
        buffer = io.BytesIO()
        Image.fromarray(expected).save(buffer, "JPEG", quality=85, optimize=True)
        assert buffer.getvalue() == made[name]


def test_lossless_images_are_what_the_corruption_made(source: GeneratedImages):
    """Every pixel, of the same noise as the JPEG files; and the images are those that a stream decodes."""
    made = contents(replace(source, encoding=LOSSLESS), NOISE_5)

    clean = [image.read() for image in source.clean.listing(CLEAN).images]
    assert [f"{Path(name).with_suffix('.npy')}" for name in contents(source, NOISE_5)] == list(made)
    for (name, data), before in zip(made.items(), clean, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(before)))[None]
        key = str(Path(name).with_suffix(".JPEG"))
        expected = corrupt(pixels, "gaussian_noise", 5, keys=[key], seed=0, table="cifar_c")[0]
        out = np.empty((32, 32, 3), np.uint8)
        decode_into(data, out)
        np.testing.assert_array_equal(expected, out)


def test_lossless_clean_images_that_were_fitted_are_arrays(source: GeneratedImages):
    """One that had another size is stored as the corrupted ones are; the others stay files of the source."""
    folder = Path(source.clean.listing(CLEAN).root, "n02")
    large = image_file(folder / "large.png", size=(64, 48))

    made = contents(replace(source, encoding=LOSSLESS), CLEAN)

    np.testing.assert_array_equal(np.asarray(_fit_to_size(large, 32)), read_npy(made["n02/large.npy"]))
    assert 70 == sum(name.endswith(".JPEG") for name in made)


def test_two_processes_serve_all_cells_of_a_preparation(source: GeneratedImages, monkeypatch: pytest.MonkeyPatch):
    """They make the bytes that one makes, in its order, and start once: their imports take longer than a small cell."""
    started: list[int] = []
    pool = generated_images.ProcessPoolExecutor
    monkeypatch.setattr(generated_images, "BATCH_SIZE", 8)  # more batches than wait at a time
    monkeypatch.setattr(
        generated_images, "ProcessPoolExecutor", lambda jobs, **how: started.append(jobs) or pool(jobs, **how)
    )

    def made(source: GeneratedImages) -> list[tuple[str, bytes]]:
        with source.prepared(source.cells):
            return [(image.name, image.read()) for cell in source.cells for image in source.listing(cell).images]

    assert made(source) == made(replace(source, jobs=2))
    assert len(source.cells) > 1
    assert started == [2]


def test_nothing_is_left_when_the_block_ends(source: GeneratedImages):
    """Both prepared cells can be read inside the block, neither after it."""
    with source.prepared([NOISE_5, CONTRAST_1]):
        assert [70, 70] == [len(source.listing(cell).images) for cell in (NOISE_5, CONTRAST_1)]

    assert [] == list(source.spill_root.iterdir())
    with pytest.raises(ImagesError, match=r"gaussian_noise\|5.*prepared\(cells\)"):
        source.listing(NOISE_5)


@pytest.mark.parametrize("size", [(500, 375), (333, 500), (40, 41), (20, 50), (37, 37)])
def test_an_image_is_resized_as_torchvision_does(tmp_path: Path, size: tuple[int, int]):
    """Shorter side to 8/7 of the crop, then the centre: the pixels are those of the published script's transforms."""
    from torchvision.transforms import CenterCrop, Compose, Resize

    image = image_file(tmp_path / "a.png", size=size)

    expected = Compose([Resize(37), CenterCrop(32)])(Image.open(image.path))
    np.testing.assert_array_equal(np.asarray(expected), np.asarray(_fit_to_size(image, 32)))


def test_clean_images_that_fit_stay_as_they_are(source: GeneratedImages):
    """The clean cell has the source's own files, and a fitted JPEG where the size is another or a PNG is not."""
    folder = Path(source.clean.listing(CLEAN).root, "n02")
    image_file(folder / "large.png", size=(64, 48), mode="L")
    image_file(folder / "small.png", size=(32, 32))

    with source.prepared([CLEAN]):
        images = {image.name: image for image in source.listing(CLEAN).images}
        fitted = read_image_header(images["n02/large.JPEG"].read())

    assert list(images) == sorted(images)
    assert ("jpeg", 32, 32) == (fitted.encoding, fitted.height, fitted.width)
    assert {str(folder / "image_000.JPEG"), str(folder / "small.png")} == {
        images[name].path for name in ("n02/image_000.JPEG", "n02/small.png")
    }


def test_grey_images_of_any_size_are_corrupted(source: GeneratedImages):
    """Every corrupted image is an RGB JPEG of the benchmark's size, whatever the clean one was."""
    folder = Path(source.clean.listing(CLEAN).root, "n02")
    image_file(folder / "v1.0 large.png", size=(64, 48), mode="L")

    with Image.open(io.BytesIO(contents(source, CONTRAST_1)["n02/v1.0 large.JPEG"])) as image:
        assert ("JPEG", "RGB", (32, 32)) == (image.format, image.mode, image.size)


def test_two_files_of_one_stem_are_refused(source: GeneratedImages):
    """A PNG and a JPEG of one name would become one image."""
    image_file(Path(source.clean.listing(CLEAN).root, "n01", "image_000.png"), size=(32, 32))

    with (
        pytest.raises(ImagesError, match=r"image_000\.png.*image_000\.JPEG.*n01/image_000\.JPEG"),
        source.prepared([NOISE_5]),
    ):
        pass


@pytest.mark.parametrize("cell", [CLEAN, NOISE_5])
@pytest.mark.parametrize(
    ("data", "found"),
    [(b"", "b''"), (b"GIF89a", "b'GIF89a'"), (jpeg(0)[:-20], rf"\b{len(jpeg(0)) - 20}\b"), (b"\xff\xd8\xff\xd9", "")],
)
def test_a_damaged_clean_image_is_named(source: GeneratedImages, cell: Cell, data: bytes, found: str):
    """An empty, foreign or cut file stops the generation, and nothing is left behind."""
    Path(source.clean.listing(CLEAN).root, "n02", "image_007.JPEG").write_bytes(data)

    with (
        pytest.raises(ImagesError, match=rf"n02/image_007\.JPEG.*{found}"),
        source.prepared([cell]),
    ):
        pass

    assert [] == list(source.spill_root.iterdir())


def test_the_version_knows_images_and_settings(source: GeneratedImages):
    """Another clean image, seed, table, quality, size or cell gives another version; more processes do not."""
    changed = [
        replace(source, **{name: value})
        for name, value in [
            ("seed", 1),
            ("table", "imagenet_c"),
            ("encoding", LOSSLESS),
            ("encoding", Encoding(jpeg_quality=90)),
            ("image_size", 64),
        ]
    ]
    versions = [source.version(NOISE_5), source.version(CONTRAST_1), *(other.version(NOISE_5) for other in changed)]

    assert source.version(NOISE_5) == replace(source, jobs=2).version(NOISE_5)
    Path(source.clean.listing(CLEAN).root, "n02", "image_007.JPEG").unlink()
    assert 8 == len({*versions, source.version(NOISE_5)})


def test_class_names_are_those_of_the_clean_images(source: GeneratedImages):
    """A class is what the clean source says it is."""
    assert ("n01", "n02") == source.class_names()
