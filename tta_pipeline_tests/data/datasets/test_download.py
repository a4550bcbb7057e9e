"""The archives of a dataset arrive as their publisher describes them, or one error says why not."""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.data import copied_file, remote_files
from tta_pipeline.data.datasets.dataset import Dataset
from tta_pipeline.data.datasets.dataset_files import read_dataset, shipped_sets
from tta_pipeline.data.datasets.downloading import DownloadedArchive, download, select_archives
from tta_pipeline.errors import ImagesError
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import Project, launcher
from tta_pipeline_tests.loading.servers import Web, web_server

NAMES = ("noise.tar", "weather.tar")
SIZE_BYTES = 3_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, little patience and small pieces."""
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(remote_files, "_SILENCE_S", 0.5)
    monkeypatch.setattr(copied_file, "_PIECE_BYTES", 10_000)


def content(name: str) -> bytes:
    """Return the bytes of an archive."""
    return np.random.default_rng(NAMES.index(name)).bytes(SIZE_BYTES)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    """A server of two archives."""
    folder = tmp_path / "web"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_bytes(content(name))
    with web_server(folder) as server:
        yield server


def dataset(web: Web, path: Path, **changes: object) -> Dataset:
    """Write the file of a set that names the archives of the server, the first of them with *changes*; return it."""
    archives = {
        name: {
            "url": f"{web.url}/{name}",
            "md5": hashlib.md5(content(name)).hexdigest(),
            "size_bytes": SIZE_BYTES,
            "shifts": [shift],
        }
        for name, shift in zip(NAMES, ("dust", "dusk"), strict=True)
    }
    archives["noise.tar"] = {key: value for key, value in (archives["noise.tar"] | changes).items() if value}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        yaml.safe_dump({"names": ["dust", "dusk", "dawn"], "archives": archives, "homepage": "https://example.org/our"})
    )
    return read_dataset(path, "our")


@pytest.fixture
def our(web: Web, tmp_path: Path) -> Dataset:
    """The set of those archives."""
    return dataset(web, tmp_path / "our.dataset.yaml")


def fetched(found: Dataset, folder: Path, *names: str) -> list[DownloadedArchive]:
    """Download archives of the set, by default the first."""
    chosen = select_archives(found, archives=names or NAMES[:1])
    return [step.done for step in download(chosen, folder, quiet_reporter, homepage=found.homepage)]


def assert_only(folder: Path, *names: str) -> None:
    """*folder* has these archives, whole, and nothing else."""
    assert set(names) == {path.name for path in folder.iterdir()}
    assert all(content(name) == (folder / name).read_bytes() for name in names)


def test_archives_arrive_and_stay(our: Dataset, web: Web, tmp_path: Path):
    """The second time, they are only compared."""
    found = fetched(our, tmp_path / "a" / "b", *NAMES)

    assert [SIZE_BYTES, SIZE_BYTES] == [each.num_received_bytes for each in found]
    assert all(each.is_checked for each in found)
    assert_only(tmp_path / "a" / "b", *NAMES)
    asked = web.requests()
    assert [0, 0] == [each.num_received_bytes for each in fetched(our, tmp_path / "a" / "b", *NAMES)]
    assert asked == web.requests()


@pytest.mark.parametrize("fault", ["cut", "stall", "503"])
@pytest.mark.parametrize("times", [1, 6])
def test_it_goes_on_after_a_fault(our: Dataset, web: Web, tmp_path: Path, fault: str, times: int):
    """However often, as long as something comes in between; no byte comes twice."""
    times = min(times, 2) if fault == "503" else times
    web.commit(fault, times)

    (found,) = fetched(our, tmp_path / "a")

    assert SIZE_BYTES == found.num_received_bytes
    assert times + 1 == len(web.requests())
    assert_only(tmp_path / "a", "noise.tar")


def interrupt(found: Dataset, web: Web, folder: Path) -> None:
    """Begin the download of the first archive from a server that cuts every answer, so that it ends unfinished."""
    web.commit("cut")
    with pytest.raises(ImagesError, match=r"noise\.tar.*\b[1-9][\d,]+\b"):
        fetched(found, folder)
    assert 0 < (folder / "noise.tar.unfinished").stat().st_size < SIZE_BYTES


@pytest.mark.parametrize("fault", ["ignores ranges", "no ranges"])
def test_a_server_that_cannot_go_on_begins_anew(our: Dataset, web: Web, tmp_path: Path, fault: str):
    """It ignores ranges, or gives another range than it was asked for."""
    interrupt(our, web, tmp_path / "a")
    web.commit(fault, 1)

    fetched(our, tmp_path / "a")

    assert_only(tmp_path / "a", "noise.tar")


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("503", r"\b503\b.*\b0\b"),
        ("changed", rf"\b[0-9a-f]{{32}}\b.*{hashlib.md5(content('noise.tar')).hexdigest()}"),
        ("short", "2999999.*3000000"),
    ],
)
def test_a_fault_that_stays_is_one_error(our: Dataset, web: Web, tmp_path: Path, fault: str, found: str):
    """Nothing has the archive's name."""
    web.commit(fault)

    with pytest.raises(ImagesError, match=f"{web.url}/noise.tar.*{found}"):
        fetched(our, tmp_path / "a")

    assert not (tmp_path / "a" / "noise.tar").exists()


def test_an_archive_of_another_size_is_not_received(web: Web, tmp_path: Path):
    """The server says at once that its file is not that of the publisher."""
    with pytest.raises(ImagesError, match=rf"{web.url}/noise\.tar.*\b3,000,000\b.*\b3,000,001\b"):
        fetched(dataset(web, tmp_path / "our.dataset.yaml", size_bytes=SIZE_BYTES + 1), tmp_path / "a")

    assert ([], []) == (web.requests(), [*(tmp_path / "a").rglob("*")])


def test_without_facts_from_the_publisher_the_server_says_what_is_whole(web: Web, tmp_path: Path):
    """A cut is seen by the length, and the result says that no md5 was compared."""
    bare = dataset(web, tmp_path / "our.dataset.yaml", md5=None, size_bytes=None)
    web.commit("cut", 2)

    (found,) = fetched(bare, tmp_path / "a")

    assert not found.is_checked
    assert_only(tmp_path / "a", "noise.tar")


def test_a_file_that_changes_between_two_starts_is_never_mixed(web: Web, tmp_path: Path):
    """Even if its publisher gives no md5: the server is asked for the rest only if it still has the same file."""
    bare = dataset(web, tmp_path / "our.dataset.yaml", md5=None, size_bytes=None)
    interrupt(bare, web, tmp_path / "a")
    web.commit("", 0)
    (tmp_path / "web" / "noise.tar").write_bytes(content("weather.tar"))

    fetched(bare, tmp_path / "a")

    assert content("weather.tar") == (tmp_path / "a" / "noise.tar").read_bytes()


def test_a_killed_download_goes_on_at_the_next_start(web: Web, project: Project):
    """By the command line: the first process is killed in the middle, and the second asks for the rest only."""
    dataset(web, project.locations.benchmark_files / "our.dataset.yaml")
    command = ["tta-pipeline", "download", "our", str(project.home / "a")]
    web.commit("stall", 1)
    with launcher().start(command, env=project.environment) as process:
        unfinished = project.home / "a" / "noise.tar.unfinished"
        deadline = time.monotonic() + 240
        # The server stops halfway; the client writes blocks, so the last of these bytes may not be on disk.
        while not (unfinished.exists() and unfinished.stat().st_size >= SIZE_BYTES // 4):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    num_kept_bytes = unfinished.stat().st_size

    finished = project.run(*command, "--json")

    assert 0 == finished.returncode, finished.stderr
    facts = json.loads(finished.stdout)
    assert SIZE_BYTES // 4 <= num_kept_bytes <= SIZE_BYTES // 2
    assert [("noise.tar", SIZE_BYTES - num_kept_bytes, True), ("weather.tar", SIZE_BYTES, True)] == [
        (fact["archive"], fact["num_received_bytes"], fact["is_checked"]) for fact in facts
    ]
    assert_only(project.home / "a", *NAMES)


def test_the_command_line_chooses_archives(web: Web, project: Project):
    """By name and by shift; what is there is not asked for again, and nothing is said of it where that is asked."""
    dataset(web, project.locations.benchmark_files / "our.dataset.yaml")

    def run(*options: str) -> str:
        command = ["download", "our", str(project.home / "a"), *options]
        finished = CliRunner().invoke(main, command, env=project.environment)
        assert 0 == finished.exit_code, finished.stderr
        return finished.stdout

    run("--archive", "weather.tar")
    assert_only(project.home / "a", "weather.tar")
    assert "weather.tar" in run("--shift", "dusk")
    run()
    assert_only(project.home / "a", *NAMES)
    assert "" == run("--quiet")


def test_an_archive_that_is_there_and_wrong_is_kept_and_named(our: Dataset, tmp_path: Path):
    """It may be the user's own."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "noise.tar").write_bytes(b"mine")

    with pytest.raises(ImagesError, match=r"a/noise\.tar.*\b4\b.*3,000,000"):
        fetched(our, tmp_path / "a")

    assert b"mine" == (tmp_path / "a" / "noise.tar").read_bytes()


def test_an_archive_without_an_address_says_where_to_look(web: Web, tmp_path: Path):
    """Before anything is downloaded; put there by hand, it is compared as the others are."""
    found = dataset(web, tmp_path / "our.dataset.yaml", url=None)

    with pytest.raises(ImagesError, match=r"noise\.tar.*https://example\.org/our.*--archive"):
        fetched(found, tmp_path / "a", *NAMES)
    assert not web.requests()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "noise.tar").write_bytes(content("noise.tar"))
    assert 2 == len(fetched(found, tmp_path / "a", *NAMES))


def test_room_is_asked_for_first(web: Web, tmp_path: Path):
    """Nothing is asked of the server, and no folder is made."""
    found = dataset(web, tmp_path / "our.dataset.yaml", size_bytes=10**18)

    with pytest.raises(ImagesError, match="1,000,000,000,000,000,000"):
        fetched(found, tmp_path / "a")
    assert not web.requests()
    assert not (tmp_path / "a").exists()


def test_two_downloads_of_one_archive_do_not_meet(our: Dataset, tmp_path: Path):
    """The second says so."""
    (tmp_path / "a").mkdir()
    with (tmp_path / "a" / "noise.tar.unfinished").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ImagesError, match=r"a/noise\.tar"):
            fetched(our, tmp_path / "a")


def test_archives_are_chosen_by_name_and_by_shift(our: Dataset):
    """What is not known is refused, with the choices."""
    assert ["noise.tar"] == [*select_archives(our, shifts=("dust",))]
    assert [*NAMES] == [*select_archives(our, archives=("weather.tar",), shifts=("dust",))] == [*select_archives(our)]
    with pytest.raises(ImagesError, match=r"fog\.tar.*noise\.tar, weather\.tar"):
        select_archives(our, archives=("fog.tar",))
    with pytest.raises(ImagesError, match=r"fog.*dust, dusk, dawn"):
        select_archives(our, shifts=("fog",))
    with pytest.raises(ImagesError, match=r"https://example\.org/our"):
        select_archives(our.model_copy(update={"archives": {}}))
    with pytest.raises(ImagesError, match=r"'\.\./a\.tar'"):
        select_archives(our.model_copy(update={"archives": {"../a.tar": our.archives["noise.tar"]}}))
    assert ["weather.tar"] == [*select_archives(shipped_sets()["imagenet_c"], shifts=("fog",))]


def test_an_address_of_another_kind_is_refused(web: Web, tmp_path: Path):
    """A file of this machine is no download."""
    with pytest.raises(ImagesError, match=r"noise\.tar.*file:///etc/passwd"):
        fetched(dataset(web, tmp_path / "our.dataset.yaml", url="file:///etc/passwd"), tmp_path / "a")


def test_an_archive_that_is_refused_leaves_nothing(our: Dataset, web: Web, tmp_path: Path):
    """Neither its bytes nor the note on where they came from stay in the folder."""
    web.commit("changed")

    with pytest.raises(ImagesError, match="md5"):
        fetched(our, tmp_path / "a")

    assert not list((tmp_path / "a").iterdir())


def test_what_came_before_an_interruption_needs_no_room_again(
    our: Dataset, web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A download goes on when the disk has room for the rest of it only."""
    interrupt(our, web, tmp_path / "a")
    web.commit("", 0)
    rest_bytes = SIZE_BYTES - (tmp_path / "a" / "noise.tar.unfinished").stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=rest_bytes))

    fetched(our, tmp_path / "a")

    assert_only(tmp_path / "a", "noise.tar")


def test_an_archive_is_on_the_disk_before_it_has_its_name(
    our: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a power cut, what is called whole is whole."""
    synchronise, seen = os.fsync, []

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if status.st_size == SIZE_BYTES:
            seen.append((status.st_ino, (tmp_path / "noise.tar").exists()))
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    fetched(our, tmp_path)

    assert [((tmp_path / "noise.tar").stat().st_ino, False)] == seen
