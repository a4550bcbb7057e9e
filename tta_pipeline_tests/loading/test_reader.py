"""A stream delivers the samples of its order, each once, as the pixels that Pillow gives, or it fails by name."""

import io
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tta_pipeline.data.image_bytes import read_image_header
from tta_pipeline.errors import StreamError
from tta_pipeline.loading.decode import decode_into
from tta_pipeline.loading.decode_pool import DecodePool
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import jpeg, start_python


def stream(shard_set: ShardSet, **changes: int) -> Stream:
    """Return a stream over *shard_set* as stored."""
    settings = {"batch_size": 6, "image_size": 32, "num_threads": 2, **changes}
    return Stream(shard_set=shard_set, order=stored_order(shard_set.index), **settings)


def pixels(shard_set: ShardSet, **changes: int) -> np.ndarray:
    """Return all images of a stream."""
    return np.concatenate([batch.images.numpy().copy() for batch in stream(shard_set, **changes)])


def test_pixels_are_those_of_pillow(shard_set: ShardSet, tree):
    """Every image equals what Pillow decodes from the source file, and has its label."""
    names = [row["source_name"] for row in shard_set.index.table.to_pylist()]
    expected = np.stack(
        [np.asarray(Image.open(io.BytesIO((tree.root / "fog/5" / name).read_bytes()))) for name in names]
    )

    labels = np.concatenate([batch.labels.numpy() for batch in stream(shard_set)])

    np.testing.assert_array_equal(expected, pixels(shard_set))
    assert [shard_set.manifest.classes.index(name.partition("/")[0]) for name in names] == labels.tolist()


def test_batches_are_full_but_for_the_last(shard_set: ShardSet):
    """20 samples in batches of 6 are three full ones and one of two; the length says four, the memory is for six."""
    batches = list(stream(shard_set))

    assert [6, 6, 6, 2] == [len(batch.labels) for batch in batches]
    assert 4 == len(stream(shard_set))
    assert {6} == {batch.images.untyped_storage().nbytes() // (3 * 32**2) for batch in batches}


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_threads_and_batches_change_nothing(shard_set: ShardSet, num_threads: int, batch_size: int):
    """The images and their order are the same whatever reads them."""
    np.testing.assert_array_equal(pixels(shard_set), pixels(shard_set, num_threads=num_threads, batch_size=batch_size))


def test_a_shard_that_is_cut_while_it_is_read_fails_by_name(shard_set: ShardSet):
    """The error names shard, sample and offset, and no smaller count comes out."""
    path = shard_set.folder / shard_set.manifest.shards[-1].name
    batches = iter(stream(shard_set, batch_size=1, num_threads=1))
    next(batches)
    with path.open("r+b") as file:
        file.truncate(600)

    with pytest.raises(StreamError, match=rf"{path.name}.*\bn0\d/image_\d+\b.*\b\d+\b.*\b600\b"):
        list(batches)


def test_a_shard_that_is_overwritten_while_it_is_read_fails_by_name(shard_set: ShardSet):
    """Bytes that changed under the reader are found at the end, and the first sample among them is named."""
    shard = shard_set.manifest.shards[0]
    sample = next(row for row in shard_set.index.table.to_pylist() if row["shard"] == 0)
    batches = iter(stream(shard_set, batch_size=1, num_threads=1))
    for _ in range(19):
        next(batches)
    with (shard_set.folder / shard.name).open("r+b") as file:
        file.seek(sample["offset"] + 300)
        file.write(b"changed")

    with pytest.raises(
        StreamError, match=rf"{shard.name}.*\b{sample['key']}\b.*\b{sample['offset']}\b.*\b[0-9a-f]{{16}}\b"
    ):
        list(batches)


def test_a_missing_shard_fails_by_name(shard_set: ShardSet):
    """Before the first batch, and not after the others."""
    path = shard_set.folder / shard_set.manifest.shards[-1].name
    path.unlink()

    with pytest.raises(StreamError, match=path.name):
        next(iter(stream(shard_set)))


def test_a_consumer_that_leaves_ends_the_threads(shard_set: ShardSet):
    """After one batch of many, no thread and no open file is left behind."""
    num_files = len(list(Path("/proc/self/fd").iterdir()))
    batches = iter(stream(shard_set, batch_size=1))
    next(batches)
    assert "tta-decode-0" in {thread.name for thread in threading.enumerate()}

    batches.close()

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tta-decode")]
    assert num_files == len(list(Path("/proc/self/fd").iterdir()))


def test_an_interrupt_while_threads_start_leaves_none(monkeypatch: pytest.MonkeyPatch):
    """Ctrl-C before all have started: those that have started end."""
    start, started = threading.Thread.start, list[str]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        started.append(thread.name)
        if thread.name == "tta-decode-1":
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), DecodePool(3, print):
        pass

    assert ["tta-decode-0", "tta-decode-1"] == started
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tta-decode")]


def test_threads_that_nothing_ends_keep_no_process_alive():
    """As after an interrupt between two instructions: the process ends all the same."""
    code = "from tta_pipeline.loading.decode_pool import DecodePool; DecodePool(2, print).__enter__()"

    with start_python(code) as process:
        assert 0 == process.wait(60)


def test_memory_does_not_grow_with_the_data(shard_set: ShardSet):
    """However many samples there are, the batches lie in `prefetch + 1` buffers."""
    addresses = {batch.images.data_ptr() for batch in stream(shard_set, batch_size=1, prefetch=3)}

    assert len(addresses) <= 4


def test_an_image_of_another_size_is_refused(shard_set: ShardSet):
    """Batches have one size, and an image that has not is named."""
    remedy = "`image_size: 32`.*`resize: 73`.*`center_crop: 64`"
    with pytest.raises(StreamError, match=rf"\bn0\d/image_\d+\b.*\b32x32\b.*\b64x64\b.*{remedy}") as caught:
        list(stream(shard_set, image_size=64))
    assert "verify" not in str(caught.value)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("encoding", ["JPEG", "PNG", "BMP", "WEBP"])
def test_every_encoding_and_mode_becomes_rgb(encoding: str, mode: str):
    """Grey, CMYK and RGB images of every encoding are decoded as Pillow converts them."""
    if mode == "CMYK" and encoding != "JPEG":
        pytest.skip("only JPEG has CMYK")
    buffer = io.BytesIO()
    Image.open(io.BytesIO(jpeg(1))).convert(mode).save(buffer, encoding)
    out = np.empty((32, 32, 3), np.uint8)

    decode_into(buffer.getvalue(), out)

    np.testing.assert_array_equal(np.asarray(Image.open(buffer).convert("RGB")), out)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "b''"),
        (b"%!PS-Adobe", "b'%!PS-Adobe'"),
        (b"GIF89a" + bytes(50), "b'GIF89a"),
        (jpeg(1)[:-2], rf"\b{len(jpeg(1)) - 2}\b.*\bFF D9\b"),
    ],
    ids=["empty", "eps", "gif", "cut jpeg"],
)
def test_what_is_no_intact_image_is_refused(data: bytes, found: str):
    """Other formats and cut files never reach a decoder that would guess."""
    with pytest.raises(ValueError, match=found):
        decode_into(data, np.empty((32, 32, 3), np.uint8))


def test_a_bomb_is_refused_by_its_header():
    """A small file that says it is 60,000 pixels wide is refused before memory is taken for it."""
    buffer = io.BytesIO()
    Image.new("1", (32, 32)).save(buffer, "PNG")
    bomb = buffer.getvalue().replace(2 * (32).to_bytes(4, "big"), 2 * (60000).to_bytes(4, "big"), 1)

    with pytest.raises(ValueError, match="60000x60000"):
        read_image_header(bomb)
    with pytest.raises(ValueError, match="60000x60000"):
        decode_into(bomb, np.empty((32, 32, 3), np.uint8))


def test_nothing_in_a_shard_is_executed():
    """No code that reads images lets webdataset decode, unpickles, or extracts an archive."""
    package = Path(__file__).parents[2] / "tta_pipeline"
    others = ("util/processes.py", "extras/loader_bench/webdataset_loader.py", "extras/reproduction/addition.py")
    no_images = {package / each for each in others}
    code = "\n".join(path.read_text() for path in package.rglob("*.py") if path not in no_images)

    for call in ("pickle.load", ".xdecode(", "extractall", "wds.WebDataset"):
        assert call not in code
    # The one that would run code is a line for users to type who trust a file.
    assert code.count("torch.load(") == code.count("weights_only=True)") + 1
    assert 1 == code.count("weights_only=False")
