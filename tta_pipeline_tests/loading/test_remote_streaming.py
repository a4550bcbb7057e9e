"""Shards at URLs are streamed as those on disk are, or one error says what the server did."""

import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
import webdataset
from pydantic import ValidationError
from torch.utils.data import DataLoader, IterableDataset

from tta_pipeline.data.images.kinds import ShardsSection
from tta_pipeline.data.images.remote_shards import RemoteShards, write_remote_cell
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ImagesError, ManifestError, PipelineError, StreamError
from tta_pipeline.loading.copied_shards import ShardCache
from tta_pipeline.loading.dataset import open_shards
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stored_pixels import StoredPixels
from tta_pipeline.loading.stream_order import StreamOrder, shuffled_order, stored_order
from tta_pipeline.shards.adopt_remote import adopt_remote
from tta_pipeline.shards.adoption import adopt as adopt_here
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.stored_images import stored_images
from tta_pipeline.shards.verification import find_shard_problems
from tta_pipeline.util import processes
from tta_pipeline_tests.conftest import jpeg, start_python
from tta_pipeline_tests.loading.servers import Web, killed_at_the_end, s3_bucket, web_server
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET

Adopt = Callable[..., ShardSet]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A $TMPDIR of its own."""
    del tmp_path  # it is made in the other one
    # Short, since torch's workers make sockets in it; a reader ahead may still write there when a test has ended.
    with TemporaryDirectory(prefix="tta-", ignore_cleanup_errors=True) as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield


@pytest.fixture
def web(shard_set: ShardSet, tmp_path: Path) -> Iterator[Web]:
    """A server of the shard set at `/set/fog/5`."""
    shutil.copytree(shard_set.folder, tmp_path / "web" / "set" / "fog" / "5")
    with web_server(tmp_path / "web") as server:
        yield server


def served(tmp_path: Path) -> Path:
    """Return the folder that the server has at `/set/fog/5`."""
    return tmp_path / "web" / "set" / "fog" / "5"


@pytest.fixture
def adopt(tmp_path: Path) -> Adopt:
    """Return a function that locates and adopts the shards at URLs, as the assets do, and opens the set."""

    def adopt(*urls: str, class_map: ClassMap | None = CLASS_MAP) -> ShardSet:
        folder = tmp_path / "data" / "fog" / "5"
        write_remote_cell(RemoteShards(urls=ShardsSection(kind="shards", root=list(urls)).root).at(CELL), folder)
        return adopt_remote(
            folder, CELL, QUIET, benchmark_name="far", pin_classes=lambda found: class_map or ClassMap(classes=found())
        ).shard_set

    return adopt


def images(
    shard_set: ShardSet,
    order: Callable[..., StreamOrder] = stored_order,
    *,
    num_threads: int = 2,
    **options: ShardCache,
) -> np.ndarray:
    """Return all images of a shard set."""
    stream = Stream(
        shard_set=shard_set,
        order=order(shard_set.index),
        batch_size=6,
        image_size=32,
        num_threads=num_threads,
        open_pixels=lambda found, size: StoredPixels(found, size, **options),
    )
    return np.concatenate([batch.images.numpy().copy() for batch in stream])


def mixed(index) -> StreamOrder:
    """Return a shuffled order."""
    return shuffled_order(index, seed=3)


def test_a_set_is_streamed_by_its_own_manifest(shard_set: ShardSet, web: Web, adopt: Adopt):
    """The folder has no shard; each shard is asked for once; the pixels are those of the disk."""
    found = adopt(f"{web.url}/set")
    assert {"manifest.json", "samples.parquet", "remote.json"} == {path.name for path in found.folder.iterdir()}
    assert (shard_set.manifest.sha256, "far") == (found.manifest.sha256, found.manifest.benchmark)
    assert shard_set.index.labels.tolist() == found.index.labels.tolist()
    asked = len(web.requests())
    assert 1 == asked  # the first samples of the first shard

    np.testing.assert_array_equal(images(shard_set), images(found))
    np.testing.assert_array_equal(images(ShardSet.open(found.folder), mixed), images(shard_set, mixed))

    assert len(found.manifest.shards) == len(set(web.requests())) == len(web.requests()[asked:])


ROOTS = {
    "folder": ("{web}/set",),
    "braces": ("{web}/set/{{shift}}/{{severity}}/fog-5-{{00000..00002}}.tar",),
    "list": tuple(f"{{web}}/set/fog/5/fog-5-0000{number}.tar" for number in range(3)),
}


@pytest.mark.parametrize(
    ("root", "class_map"), [*((root, CLASS_MAP) for root in ROOTS), ("folder", None)], ids=[*ROOTS, "without classes"]
)
def test_a_set_without_a_manifest_is_read_once(  # noqa: PLR0917
    shard_set: ShardSet, web: Web, adopt: Adopt, tmp_path: Path, root: str, class_map: ClassMap | None
):
    """Each byte of the shards comes once; then the set is the same as that on disk, and nothing is left beside it."""
    (served(tmp_path) / "manifest.json").unlink()

    found = adopt(*(url.format(web=web.url) for url in ROOTS[root]), class_map=class_map)

    assert len(found.manifest.shards) == len(set(web.requests())) == len(web.requests())
    assert shard_set.manifest.shards == found.manifest.shards
    assert shard_set.index.table.equals(found.index.table)
    np.testing.assert_array_equal(images(shard_set), images(found))
    assert not [path for path in found.folder.iterdir() if path.is_dir() or path.suffix == ".tar"]


def test_a_manifest_of_another_cell_is_refused(web: Web, tmp_path: Path):
    """A folder that was copied under another name would give its images that name."""
    snow = Cell(corruption="snow", severity=5)
    shutil.copytree(served(tmp_path), tmp_path / "web" / "set" / "snow" / "5")
    folder = tmp_path / "data" / "snow" / "5"
    write_remote_cell(RemoteShards(urls=(f"{web.url}/set",)).at(snow), folder)

    with pytest.raises(ManifestError, match=r"snow/5/manifest\.json.*\bfog\|5.*\bsnow\|5"):
        adopt_remote(folder, snow, QUIET, benchmark_name="far", pin_classes=lambda found: ClassMap(classes=found()))


def test_a_manifest_of_another_version_is_its_publishers_to_make_again(web: Web, adopt: Adopt, tmp_path: Path):
    """No command here can do so, and the shards are not read in silence."""
    path = served(tmp_path) / "manifest.json"
    path.write_text(path.read_text().replace('"version": 3', '"version": 2'))

    with pytest.raises(ManifestError, match=rf"^{web.url}/set/fog/5/manifest\.json.*version is 2.*\bpublisher\b"):
        adopt(f"{web.url}/set")


def write_labelled(folder: Path, *keys_and_labels: tuple[str, str]) -> None:
    """Write a shard of webdataset's to *folder*."""
    with webdataset.TarWriter(str(folder / "a-0.tar"), encoder=False) as writer:
        for number, (key, label) in enumerate(keys_and_labels):
            writer.write({"__key__": key, "jpg": jpeg(number), **({"cls": label.encode()} if label else {})})


def describe(folder: Path, *classes: str) -> None:
    """Write the manifest of the shards in *folder*."""
    adopt_here(folder, CELL, QUIET, benchmark_name="theirs", class_map=ClassMap(classes=classes))


@pytest.fixture
def emptied(web: Web, tmp_path: Path) -> Path:
    """The folder that the server has at `/set/fog/5`, without shards."""
    shutil.rmtree(served(tmp_path))
    served(tmp_path).mkdir()
    return served(tmp_path)


def test_labels_of_another_class_map_are_read_again(emptied: Path, web: Web, adopt: Adopt):
    """The classes of the manifest are the benchmark's in another order, and the shard, which is that of it, labels."""
    write_labelled(emptied, ("0", "0"), ("1", "1"), ("2", "1"))
    describe(emptied, "bear", "ant")

    found = adopt(f"{web.url}/set", class_map=ClassMap(classes=("ant", "bear")))

    assert ([0, 1, 1], ("ant", "bear")) == (found.index.labels.tolist(), found.manifest.classes)

    write_labelled(emptied, ("0", "0"), ("1", "1"), ("3", "1"))
    with pytest.raises(ManifestError, match=r"a-0\.tar.*\bsha256\b.*manifest\.json"):
        adopt(f"{web.url}/set", class_map=ClassMap(classes=("ant", "bear")))


@pytest.mark.parametrize(
    ("truth", "now", "said"),
    [
        ([("0", "0"), ("1", "1")], [("0", "0"), ("1", "0")], r"\b1\.jpg\b.*\b0\b"),
        ([("0", "ant"), ("1", "bear")], [("0", "ant"), ("1", "ant")], r"\b1\.jpg\b.*\bant\b"),
        ([("ant/0", ""), ("bear/1", "")], [("ant/0", ""), ("ant/1", "")], r"\bant/1\.jpg\b.*\bant\b"),
    ],
)
@pytest.mark.parametrize("class_map", [None, ClassMap(classes=("bear", "ant"))])
def test_a_manifest_with_other_labels_than_its_shards_is_refused(  # noqa: PLR0917
    emptied: Path,
    web: Web,
    adopt: Adopt,
    truth: list[tuple[str, str]],
    now: list[tuple[str, str]],
    said: str,
    class_map: ClassMap | None,
):
    """The first samples are compared, before anything is pinned, and both labels are named."""
    write_labelled(emptied, *truth)
    describe(emptied, "ant", "bear")
    write_labelled(emptied, *now)

    with pytest.raises(ManifestError, match=rf"\.tar.*{said}.*\b1\b.*\bbear\b.*http.*/manifest\.json"):
        adopt(f"{web.url}/set", class_map=class_map)


@pytest.mark.parametrize("names", ["", "/{{shift}}/{{severity}}/a-{{0..10}}.tar"], ids=["listing", "braces"])
def test_shards_are_in_the_order_of_their_numbers(emptied: Path, web: Web, adopt: Adopt, names: str):
    """As on disk: as text, 10 comes before 2."""
    for number in (10, 2, 9, *((1, 3, 4, 5, 6, 7, 8, 0) if names else ())):
        write_labelled(emptied, (str(number), str(number)))
        (emptied / "a-0.tar").rename(emptied / f"a-{number}.tar")

    found = adopt(f"{web.url}/set{names.format()}", class_map=ClassMap(classes=tuple(map(str, range(11)))))

    assert ([*range(11)] if names else [2, 9, 10]) == found.index.labels.tolist()


@pytest.mark.parametrize("name", ["a-1.tar.zst", "a-1.tar.gz", "a-1.TAR"])
def test_a_listed_shard_that_is_not_read_is_refused(emptied: Path, web: Web, adopt: Adopt, name: str):
    """Half of a set is not adopted for the whole."""
    write_labelled(emptied, ("0", "0"))
    (emptied / name).write_bytes(b"x")

    with pytest.raises(ImagesError, match=name):
        adopt(f"{web.url}/set")


def test_a_folder_that_cannot_be_listed_says_what_to_write(web: Web, adopt: Adopt, tmp_path: Path):
    """There is no manifest, and the page has no links."""
    shutil.rmtree(served(tmp_path))
    served(tmp_path).mkdir()
    with pytest.raises(ImagesError, match=f"{web.url}/set/fog/5"):
        adopt(f"{web.url}/set")


@pytest.mark.parametrize("fault", ["cut", "changed"])
def test_a_fault_that_passes_is_no_fault(shard_set: ShardSet, web: Web, adopt: Adopt, fault: str):
    """While the copy is read, a server that cuts it is asked for the rest, and one that gives other bytes for all."""
    found = adopt(f"{web.url}/set")
    web.commit(fault, 2)

    np.testing.assert_array_equal(images(shard_set), images(found))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("503", r"\D*\b503\b"),
        ("changed", r".*\b[0-9a-f]{64}\b.*\b[0-9a-f]{64}\b"),
        ("tag", r'.*"another".*"\d+-\d+".*\btar_shards\b'),
    ],
)
def test_a_fault_that_stays_is_one_error(web: Web, adopt: Adopt, fault: str, said: str):
    """It names URL, found and expected, and the next reader has the sample once the server is well."""
    found = adopt(f"{web.url}/set")
    web.commit(fault)

    with pytest.raises(StreamError, match=rf"{web.url}/set/fog/5/fog-5-0000\d\.tar{said}"):
        images(found)
    web.commit("", 0)
    assert len(found.index) == len(images(found))


@pytest.fixture
def half_sent(emptied: Path, web: Web, adopt: Adopt) -> ShardSet:
    """A shard of half a million bytes, of whose copies the server sends one half and then no more."""
    write_labelled(emptied, *((f"{number:03}", "0") for number in range(200)))
    found = adopt(f"{web.url}/set", class_map=ClassMap(classes=("ant",)))
    web.commit("stall")
    return found


def test_a_first_batch_waits_for_its_bytes_only(half_sent: ShardSet, monkeypatch: pytest.MonkeyPatch):
    """The rest of the shard is still missing, and is not copied any more when the stream ends."""
    # A process of its own: what the tests' launcher forks outlives who asked for it.
    monkeypatch.setattr(processes, "_COMMAND", (sys.executable, *processes._COMMAND[1:]))
    before = {*threading.enumerate()}
    assert 6 == len(next(iter(open_shards(half_sent.folder).stream(batch_size=6, num_threads=0))).labels)
    for thread in {*threading.enumerate()} - before:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("num_threads", [0, 2])
def test_ctrl_c_does_not_wait_for_a_server_that_stalls(half_sent: ShardSet, num_threads: int):
    """It would be waited for for half a minute."""
    code = (
        "import tta_pipeline as tta\n"
        f"for _ in tta.open_shards({str(half_sent.folder)!r}).stream(batch_size=6, num_threads={num_threads}):\n"
        "    print(flush=True)"
    )
    started = start_python(code, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with killed_at_the_end(started) as process:
        assert process.stdout is not None
        assert "\n" == process.stdout.readline()
        time.sleep(1)  # by now it waits
        process.send_signal(signal.SIGINT)

        assert 0 != process.wait(timeout=15)


def test_a_killed_copy_goes_on_where_it_stopped(half_sent: ShardSet, web: Web):
    """The process that reads is killed, and the one that copies ends with it; the next one asks for the rest."""
    code = f"import tta_pipeline as tta; tta.open_shards({str(half_sent.folder)!r})[0]; print(flush=True); input()"
    with killed_at_the_end(start_python(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None
        assert "\n" == process.stdout.readline()
    (begun,) = ShardCache().folder.glob("unfinished-*")
    num_begun_bytes = begun.stat().st_size
    web.commit("", 0)

    assert 200 == len(images(half_sent))

    assert 0 < num_begun_bytes < half_sent.manifest.shard_bytes
    assert web.requests()[-1].endswith(f"bytes={num_begun_bytes}-")


def test_a_shard_that_changed_on_the_server_is_named_and_located_anew(
    shard_set: ShardSet, web: Web, adopt: Adopt, tmp_path: Path
):
    """Before a stream begins, while it runs, and by the checks; materializing again takes it as it is."""
    found = adopt(f"{web.url}/set")
    path = served(tmp_path) / "fog-5-00001.tar"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-512] + bytes(1024))
    changed = rf"{path.name}\D*\b{size + 512}\b\D*\b{size}\b"

    with pytest.raises(ManifestError, match=rf"{changed}.*\btar_shards\b.*\bshard_manifest\b"):
        found.require_intact()
    assert [problem for problem in find_shard_problems(found) if re.search(changed, problem)]
    with pytest.raises(StreamError, match=rf"{changed}.*\btar_shards\b"):
        images(found)
    with pytest.raises(
        ManifestError, match=rf"{path.name}\D*\b{size + 512}\b.*{web.url}/set/fog/5/manifest\.json\D*\b{size}\b"
    ):
        adopt(f"{web.url}/set")
    (served(tmp_path) / "manifest.json").unlink()
    np.testing.assert_array_equal(images(shard_set), images(adopt(f"{web.url}/set")))


def test_what_was_kept_is_not_trusted(web: Web, adopt: Adopt, tmp_path: Path):
    """Copies that were damaged or cut on disk are made again."""
    found = adopt(f"{web.url}/set")
    cache = ShardCache(root=tmp_path / "cache")
    expected = images(found, cache=cache)
    first, second, *_ = sorted(cache.folder.glob("*.tar"))
    first.write_bytes(bytes(first.stat().st_size))
    second.write_bytes(second.read_bytes()[:100])

    np.testing.assert_array_equal(expected, images(found, cache=cache))


def test_the_cache_keeps_to_its_limit(shard_set: ShardSet, web: Web, adopt: Adopt, tmp_path: Path):
    """Shards read long ago make room, other files in the folder stay, and an order that jumps too far is refused."""
    found = adopt(f"{web.url}/set")
    cache = ShardCache(root=tmp_path / "cache", limit_bytes=found.manifest.shard_bytes - 1)
    cache.folder.mkdir(parents=True)
    (cache.folder / "mine.tar").write_text("mine")

    np.testing.assert_array_equal(images(shard_set), images(found, cache=cache, num_threads=0))

    kept = sum(path.stat().st_size for path in cache.folder.glob("*.tar"))
    assert 0 < kept <= cache.limit_bytes
    assert (cache.folder / "mine.tar").exists()
    with pytest.raises(StreamError, match=rf"\.tar.*\b{cache.limit_bytes}\b.*\blocal_scratch_limit_gib\b"):
        images(found, mixed, cache=cache)


def test_a_cache_that_cannot_be_written_is_named(web: Web, adopt: Adopt, tmp_path: Path):
    """The error says what to set."""
    found = adopt(f"{web.url}/set")
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StreamError, match=r"file/tta_pipeline-shards.*\blocal_scratch_dir\b.*\blocal_scratch_limit_gib\b"
    ):
        images(found, cache=ShardCache(root=tmp_path / "file"))


def test_a_set_at_s3_is_streamed(shard_set: ShardSet, adopt: Adopt, tmp_path: Path):
    """With and without its manifest, from a server that speaks S3, by a profile of ~/.aws."""
    with s3_bucket("shards", tmp_path) as bucket:
        for path in shard_set.folder.iterdir():
            bucket.upload_file(str(path), f"set/fog/5/{path.name}")

        np.testing.assert_array_equal(images(shard_set), images(adopt("s3://shards/set")))
        bucket.Object("set/fog/5/manifest.json").delete()
        found = adopt("s3://shards/set")
        np.testing.assert_array_equal(images(shard_set), images(found))
        np.testing.assert_array_equal(images(shard_set), images(open_shards("s3://shards/set/fog/5").shard_set))
        bucket.put_object(Key="set/fog/5/fog-5-00000.tar", Body=b"another")
        with pytest.raises(ManifestError, match=r"s3://shards/set/fog/5/fog-5-00000\.tar\D*\b7\b\D*\b10240\b"):
            found.require_intact()
        with pytest.raises(ImagesError, match="s3://shards/other"):
            adopt("s3://shards/other")


@pytest.mark.parametrize("revision", ["", "@v2"])
def test_a_set_on_the_hub_is_streamed(  # noqa: PLR0917
    shard_set: ShardSet, web: Web, adopt: Adopt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: str
):
    """By the addresses that the Hub has for files, here of a server of ours."""
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.setenv("HF_TOKEN", "secret")
    (tmp_path / "web" / "datasets" / "me").mkdir(parents=True)
    (tmp_path / "web" / "set").rename(tmp_path / "web" / "datasets" / "me" / "set")

    np.testing.assert_array_equal(images(shard_set), images(adopt(f"hf://datasets/me/set{revision}")))


def test_single_samples_come_from_the_server_too(shard_set: ShardSet, web: Web, adopt: Adopt):
    """The dataset for the user's own code opens a folder of addresses as it does one of shards."""
    far, here = open_shards(adopt(f"{web.url}/set").folder), open_shards(shard_set.folder)

    assert here[17][1] == far[17][1]
    np.testing.assert_array_equal(np.asarray(here[17][0]), np.asarray(far[17][0]))


def test_worker_processes_stream_too(shard_set: ShardSet, web: Web, adopt: Adopt):
    """Those of torch, forked from a process that streamed before."""
    far = open_shards(adopt(f"{web.url}/set").folder)
    assert 20 == len(images(far.shard_set))
    shutil.rmtree(ShardCache().folder)

    for found in (DataLoader(far.batches(batch_size=6), batch_size=None, num_workers=2), far.batches(batch_size=6)):
        labels = torch.cat([each for _, each in found])
        assert sorted(shard_set.index.labels.tolist()) == sorted(labels.tolist())


class Opened(IterableDataset[int]):
    """Opens a shard set at a URL, and has the number of its samples."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url

    def __iter__(self) -> Iterator[int]:
        yield len(open_shards(self.url))


def test_a_forked_worker_that_asks_a_server_says_so(web: Web):
    """Its parent's threads serve the network, and it has none of them; it would wait for ever."""
    dataset = Opened(f"{web.url}/set/fog/5")
    assert [20] == list(dataset)

    with pytest.raises(PipelineError, match=r"\bforked\b.*\bforkserver\b"):
        list(DataLoader(dataset, num_workers=1, multiprocessing_context="fork"))


def test_what_needs_the_shards_themselves_says_so(web: Web, adopt: Adopt):
    """A set at URLs is not split."""
    with pytest.raises(ManifestError, match=rf"{web.url}/set/fog/5/fog-5-00000\.tar"):
        stored_images(adopt(f"{web.url}/set"))


def test_a_note_of_other_addresses_than_the_manifests_is_named(web: Web, adopt: Adopt):
    """Before a stream begins, and not when it comes to the shard that has no address; without the note, too."""
    path = adopt(f"{web.url}/set").folder / "remote.json"
    note = json.loads(path.read_text())
    path.write_text(json.dumps({**note, "shards": note["shards"][:-1]}))

    with pytest.raises(ManifestError, match=r"remote\.json and manifest\.json list different shards"):
        ShardSet.open(path.parent).require_intact()
    path.unlink()
    with pytest.raises(ManifestError, match=r"has no remote\.json.*\btar_shards\b"):
        adopt_remote(path.parent, CELL, QUIET, benchmark_name="far", pin_classes=lambda _: CLASS_MAP)


def test_an_adopted_set_gets_the_labels_of_another_class_map(web: Web, adopt: Adopt, shard_set: ShardSet):
    """Its manifest stays only as long as the classes do."""
    first = adopt(f"{web.url}/set")
    other = ClassMap(classes=CLASS_MAP.classes[::-1])

    found = adopt(f"{web.url}/set", class_map=other)

    assert (shard_set.manifest.classes, other.classes) == (first.manifest.classes, found.manifest.classes)
    last = len(other.classes) - 1
    assert [last - label for label in first.index.labels.tolist()] == found.index.labels.tolist()


@pytest.mark.parametrize("content", [{"shards": "none"}, {"shards": [{"name": "../a.tar"}]}, []])
def test_a_damaged_note_of_the_addresses_is_named(web: Web, adopt: Adopt, content: object):
    """Materializing again makes it anew."""
    found = adopt(f"{web.url}/set")
    (found.folder / "remote.json").write_text(json.dumps(content))

    with pytest.raises(ImagesError, match=r"remote\.json.*\btar_shards\b"):
        ShardSet.open(found.folder)


@pytest.mark.parametrize(
    ("root", "found"),
    [
        ("http:/host/a", "'http:'"),
        ("http:host/a", "'http:'"),
        ("ftp://host/a", r"'ftp:'.*\bhttp, https, s3, gs, az, hf\b"),
        ("https://host/a?key=secret", r"'\?'"),
        ("s3://bucket/{a,b", r"\{1\.\.5\}"),
        (["here", "https://host/a"], r"\['here', 'https://host/a'\]"),
        ([], r"\[\]"),
    ],
)
def test_what_is_no_url_is_refused_when_the_file_is_loaded(root: object, found: str):
    """None is taken for a path, and no secret is needed to say so."""
    with pytest.raises(ValidationError) as raised:
        ShardsSection.model_validate({"kind": "shards", "root": root})

    (error,) = raised.value.errors()
    assert ("root",) == error["loc"]
    assert re.search(found, error["msg"])


def test_shards_and_clean_images_are_in_one_place():
    """A folder and a URL cannot be told apart later."""
    with pytest.raises(ValidationError) as raised:
        ShardsSection.model_validate({"kind": "shards", "root": "https://host/a", "clean": "here"})

    (error,) = raised.value.errors()
    assert re.search(r"\broot\b.*\bclean\b", error["msg"])


def test_two_shards_of_one_name_are_refused(web: Web, tmp_path: Path):
    """A manifest could not say which is which."""
    shutil.copytree(served(tmp_path), tmp_path / "web" / "other")
    urls = tuple(f"{web.url}/{folder}/fog-5-00000.tar" for folder in ("set/fog/5", "other"))
    with pytest.raises(PipelineError, match=rf"{web.url}/\S+/fog-5-00000\.tar"):
        RemoteShards(urls=urls).at(Cell(corruption="fog", severity=5))
