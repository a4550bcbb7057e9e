"""A staged shard set stands whole on local disk while it is read, within a limit, whoever dies when."""

import dataclasses
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.errors import ManifestError, StreamError
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.staging import OWN_FOLDER, Stage
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import start_python
from tta_pipeline_tests.loading.servers import killed_at_the_end, web_server
from tta_pipeline_tests.shards.cell import CLASS_MAP, LIMITS, QUIET, flip_sample

READER = """
import sys
from pathlib import Path
from tta_pipeline.loading.staging import Stage
stage = Stage(root=Path(sys.argv[1]), limit_bytes=10**8, tell=print)
with stage.shard_set(sys.argv[2]) as shard_set:
    print(shard_set.folder.name, flush=True)
    sys.stdin.read()
"""


def reader(stage: Path, location: object) -> subprocess.Popen[str]:
    """Start a process that stages a set, says so, and keeps it until its input ends."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return killed_at_the_end(start_python(READER, stage, location, **pipes))


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until something is so."""
    while not condition():
        time.sleep(0.01)


def names(stage: Path) -> set[str]:
    """Return what lies in a stage."""
    return {path.name for path in (stage / OWN_FOLDER).iterdir()} - {"lock", "CACHEDIR.TAG"}


@pytest.fixture
def sets(write: Callable[..., object], tmp_path: Path) -> list[ShardSet]:
    """Three shard sets of the same images in other orders."""
    found = []
    for seed in range(3):
        write(tmp_path / f"set{seed}", LIMITS.model_copy(update={"seed": seed}))
        found.append(publish_shard_set(tmp_path / f"set{seed}", CLASS_MAP, QUIET).shard_set)
    return found


@pytest.fixture
def told() -> list[str]:
    """What a stage said."""
    return []


@pytest.fixture
def stage(tmp_path: Path, sets: list[ShardSet], told: list[str]) -> Stage:
    """A stage with room for two sets."""
    room = 2 * max(shard_set.manifest.shard_bytes for shard_set in sets)
    return Stage(root=tmp_path / "stage", limit_bytes=room, tell=told.append)


def use(stage: Stage, shard_set: ShardSet) -> Path:
    """Stage a set, read it, and return where it lay."""
    with stage.shard_set(str(shard_set.folder)) as staged:
        assert shard_set.manifest == staged.manifest
        staged.require_intact()
        return staged.folder


def test_a_set_is_copied_once(stage: Stage, sets: list[ShardSet]):
    """The second reader finds it, though the shards are gone from where they were."""
    folder = use(stage, sets[0])
    for shard in sets[0].manifest.shards:
        (sets[0].folder / shard.name).unlink()

    assert stage.folder / sets[0].manifest.sha256 == folder == use(stage, sets[0])
    assert {folder.name} == names(stage.root)


def test_the_set_that_was_used_longest_ago_makes_room(stage: Stage, sets: list[ShardSet]):
    """The third set takes the place of the second, since the first was used again."""
    for number in (0, 1, 0, 2):
        use(stage, sets[number])

    assert {sets[0].manifest.sha256, sets[2].manifest.sha256} == names(stage.root)


def test_a_set_in_use_stays(stage: Stage, sets: list[ShardSet], told: list[str]):
    """Whoever used it last: what is being read is not removed, and what does not fit is read from its place."""
    with stage.shard_set(str(sets[0].folder)) as first:
        use(stage, sets[1])
        use(stage, sets[2])
        assert {sets[0].manifest.sha256, sets[2].manifest.sha256} == names(stage.root)
        with stage.shard_set(str(sets[2].folder)):
            assert not told
            assert sets[1].folder == use(stage, sets[1])
        first.require_intact()

    assert 1 == len(told)
    assert f"{sets[1].folder} has {sets[1].manifest.shard_bytes} bytes of shards" in told[0]


def test_a_set_that_another_process_reads_stays_until_it_dies(stage: Stage, sets: list[ShardSet], told: list[str]):
    """The kernel frees a set when its reader is killed."""
    tight = dataclasses.replace(stage, limit_bytes=sets[0].manifest.shard_bytes + 1000)
    with reader(stage.root, sets[0].folder) as process:
        assert sets[0].manifest.sha256 == process.stdout.readline().strip()
        assert sets[1].folder == use(tight, sets[1])
        process.kill()
        process.wait()

        assert stage.folder / sets[1].manifest.sha256 == use(tight, sets[1])
    assert {sets[1].manifest.sha256} == names(stage.root)


def test_a_set_larger_than_the_limit_is_read_from_its_place(stage: Stage, sets: list[ShardSet], told: list[str]):
    """The caller is told, and what was staged stays."""
    use(stage, sets[0])
    small = dataclasses.replace(stage, limit_bytes=sets[1].manifest.shard_bytes - 1)

    assert sets[1].folder == use(small, sets[1])
    assert str(sets[1].folder) in told[0]
    assert {sets[0].manifest.sha256} == names(stage.root)


def test_a_damaged_shard_is_not_staged(stage: Stage, sets: list[ShardSet]):
    """Bytes are hashed as they are copied; the error names the file, and nothing is left."""
    path = sets[0].folder / sets[0].manifest.shards[1].name
    data = path.read_bytes()
    for damaged, found in (
        (data[:700] + bytes([data[700] ^ 1]) + data[701:], r"\b[0-9a-f]{64}\b.*\b[0-9a-f]{64}\b"),
        (data[:-512], rf"\b{len(data) - 512}\b"),
        (None, ""),
    ):
        path.write_bytes(damaged) if damaged else path.unlink()
        with pytest.raises(StreamError, match=f"{path}.*{found}"):
            use(stage, sets[0])
        assert not names(stage.root)


def test_a_damaged_copy_is_made_again(stage: Stage, sets: list[ShardSet]):
    """What was changed on local disk is noticed and copied anew."""
    path = use(stage, sets[0]) / sets[0].manifest.shards[0].name
    good = path.read_bytes()
    path.write_bytes(good[:-1])

    use(stage, sets[0])

    assert good == path.read_bytes()


def test_a_folder_without_manifest_is_refused(stage: Stage, tmp_path: Path):
    """There is nothing to compare with."""
    with (
        pytest.raises(ManifestError, match=rf"{tmp_path}/manifest\.json.*\bshard_manifest\b"),
        stage.shard_set(str(tmp_path)),
    ):
        pass


def test_a_stage_that_cannot_be_written_is_named(stage: Stage, sets: list[ShardSet], tmp_path: Path):
    """A file where the folder should be, as an example."""
    (tmp_path / "file").touch()
    with pytest.raises(
        StreamError, match=rf"file/tta_pipeline-staged.*{sets[0].folder}.*\b{sets[0].manifest.shard_bytes}\b"
    ):
        use(dataclasses.replace(stage, root=tmp_path / "file"), sets[0])


def test_ctrl_c_ends_a_copy_from_a_server_that_hangs(stage: Stage, sets: list[ShardSet]):
    """Long before the connection would be given up, and nothing is left."""
    with web_server(sets[0].folder, "stall") as web, reader(stage.root, web.url) as process:
        wait_for(lambda: stage.folder.exists() and list(stage.folder.glob("unfinished-*/*.tar")))
        process.send_signal(signal.SIGINT)

        assert process.wait(timeout=60) != 0
    assert not names(stage.root)


def test_files_of_others_stay(stage: Stage, sets: list[ShardSet]):
    """Neither in the stage nor above it does anything go but what is called as ours is, whatever else it looks like."""
    use(stage, sets[0])
    others = [folder / "unfinished-thesis" / "chapter.tex" for folder in (stage.root, stage.folder)]
    others += [stage.root / name / "a.tar" for name in (f"unfinished-1-{'0' * 64}", "1" * 64)]
    others += [stage.folder / ("z" * 64) / "a.tar"]
    for path in others:
        path.parent.mkdir()
        path.write_bytes(bytes(stage.limit_bytes))
    ours = stage.folder / f"unfinished-1-{'0' * 64}"
    ours.mkdir()

    for shard_set in sets:
        use(stage, shard_set)

    assert all(path.exists() for path in others)
    assert not ours.exists()


def test_a_staged_set_that_has_the_name_of_another_is_copied_again(stage: Stage, sets: list[ShardSet]):
    """A folder's name is believed of no manifest: two staged sets that were exchanged are not taken for each other."""
    one, other = use(stage, sets[0]), use(stage, sets[1])
    one.rename(stage.folder / "aside")
    other.rename(one)
    (stage.folder / "aside").rename(other)

    for shard_set in sets[:2]:
        use(stage, shard_set)


def test_a_sample_that_changes_on_the_local_disk_is_refused_when_it_is_read(stage: Stage, sets: list[ShardSet]):
    """Size and times are as they were; the copy has the checksums of its origin."""
    use(stage, sets[0])
    with stage.shard_set(str(sets[0].folder)) as staged:
        assert (staged.folder / "checksums.xxh64").read_bytes() == (sets[0].folder / "checksums.xxh64").read_bytes()
        flip_sample(staged, 7)
        staged.require_intact()
        with pytest.raises(StreamError, match=rf"\.tar.*\b{staged.index.keys[7]}\b.*\b\d+\b.*\b[0-9a-f]{{16}}\b"):
            list(Stream(shard_set=staged, order=stored_order(staged.index), batch_size=4, image_size=32))


def test_a_set_of_before_gets_checksums_where_it_is_staged(stage: Stage, sets: list[ShardSet]):
    """Also if those of its origin are damaged."""
    for number, damage in enumerate((Path.unlink, lambda path: path.write_bytes(b"x" * 200))):
        damage(sets[number].folder / "checksums.xxh64")
        with stage.shard_set(str(sets[number].folder)) as staged:
            np.testing.assert_array_equal(sets[number].checksums, staged.checksums)


def test_processes_that_stage_one_set_at_once_share_it(stage: Stage, sets: list[ShardSet]):
    """Each shard is fetched once, and all read the same copy."""
    with web_server(sets[0].folder) as web:
        with (
            reader(stage.root, web.url) as one,
            reader(stage.root, web.url) as two,
            reader(stage.root, web.url) as last,
        ):
            assert {sets[0].manifest.sha256} == {p.stdout.readline().strip() for p in (one, two, last)}

        assert len(sets[0].manifest.shards) == len(web.requests())
    assert {sets[0].manifest.sha256} == names(stage.root)


def test_a_set_that_goes_while_another_process_waits_for_it_is_copied_again(stage: Stage, sets: list[ShardSet]):
    """Many processes in a stage with room for one set: each gets its set or its place, always whole."""
    tight = dataclasses.replace(stage, limit_bytes=sets[0].manifest.shard_bytes + 1000)
    code = READER.replace("10**8", str(tight.limit_bytes)).replace(
        "sys.stdin.read()", "shard_set.require_intact()\nfor _ in range(20):\n    for other in sys.argv[2:]:\n"
        "        with stage.shard_set(other) as shard_set:\n            shard_set.require_intact()"
    )  # fmt: skip
    folders = [str(shard_set.folder) for shard_set in sets]
    processes = [
        start_python(code, stage.root, *folders[n:], *folders[:n], stdout=subprocess.DEVNULL) for n in range(3)
    ]

    assert [0, 0, 0] == [process.wait() for process in processes]
    assert len(names(stage.root)) <= 1
