"""What must hold when sharding is hit by a full disk, a changing source or another run at the same moment."""

import io
import os
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path

import pytest

from tta_pipeline.data.images.folder_tree import FolderTree
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.errors import ImagesError, ManifestError
from tta_pipeline.shards.adoption import adopt
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import VERIFIED_FILE
from tta_pipeline.shards.verification import find_shard_problems
from tta_pipeline_tests.conftest import Project, jpeg, launcher, run_python, write_tree
from tta_pipeline_tests.faults.full_disk import run_limited
from tta_pipeline_tests.shards.cell import CELL, QUIET


def command(tree: Path, output: Path) -> list[str]:
    """Return the arguments of the command that shards *tree*."""
    return ["shards", "make", str(tree), str(output), "--num-shards", "2"]


def shard(tree: Path, output: Path, *options: str) -> subprocess.Popen[str]:
    """Start the command that shards *tree*."""
    program = ["tta-pipeline", *command(tree, output), *options]
    return launcher().start(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return exit status and errors of a process that has ended."""
    with process:
        _, errors = process.communicate()
    return process.returncode, errors


def test_a_full_disk_publishes_nothing_and_harms_no_earlier_cell(tmp_path: Path):
    """The error names what is needed and what is free; the cells that stood stay, and the rest is written later."""
    write_tree(tmp_path / "tree" / "fog" / "1", classes={"n01": 2})
    assert (0, "") == finished(shard(tmp_path / "tree", tmp_path / "out", "--jobs", "1"))
    before = {path: path.read_bytes() for path in (tmp_path / "out" / "fog").rglob("*.*")}
    write_tree(tmp_path / "tree" / "fog" / "2", classes={"n01": 40}, size=128)

    status, errors = run_limited(20_000, *command(tmp_path / "tree", tmp_path / "out"), "--jobs", "1")

    assert 1 == status
    assert "MiB of free space" in errors
    assert "MiB are free" in errors
    assert "Traceback" not in errors
    assert before == {path: path.read_bytes() for path in before}
    assert not (tmp_path / "out" / "fog" / "2").exists()
    assert (0, "") == finished(shard(tmp_path / "tree", tmp_path / "out", "--jobs", "1"))


@pytest.mark.parametrize("change", ["grown", "rewritten", "gone"])
def test_a_source_that_changes_meanwhile_stops_the_conversion(tree: FolderTree, change: str):
    """A file that grew, was rewritten in place or vanished after the listing is named."""
    image = tree.listing(CELL).images[7]
    data = Path(image.path).read_bytes()
    if change == "gone":
        Path(image.path).unlink()
    else:
        Path(image.path).write_bytes(data + b"\0" if change == "grown" else data[::-1])
        os.utime(image.path, ns=(image.modified_ns + 1, image.modified_ns + 1))

    with pytest.raises(ImagesError, match=Path(image.path).name):
        image.read()


def test_two_runs_on_one_cell_leave_one_whole_set(tmp_path: Path):
    """Started together, two conversions of one cell both succeed and one verified set stands, never a mix."""
    write_tree(tmp_path / "tree" / "fog" / "5", classes={"n01": 30, "n02": 30})
    for round_number in range(2):
        output = tmp_path / f"out{round_number}"
        processes = [shard(tmp_path / "tree", output) for _ in range(2)]

        assert [(0, ""), (0, "")] == [finished(process) for process in processes]
        published = publish_shard_set(output / "fog" / "5", ClassMap(classes=("n01", "n02")), QUIET)
        assert 60 == published.shard_set.manifest.num_samples
        assert not find_shard_problems(published.shard_set)
        assert not [path for path in output.rglob(".*") if path.name != VERIFIED_FILE]


def test_a_killed_run_is_simply_started_again(project: Project, tmp_path: Path):
    """A conversion killed in the middle is repeated: finished cells are kept, the others made, nothing is left over."""
    for severity in range(1, 5):
        write_tree(tmp_path / "tree" / "fog" / str(severity), classes={"n01": 60})
    output = tmp_path / "out"
    with shard(tmp_path / "tree", output) as process:
        while not (output / "fog" / "2").exists() and process.poll() is None:
            time.sleep(0.001)
        process.kill()
    kept = {path: path.stat().st_mtime_ns for path in (output / "fog" / "1").glob("*.tar")}

    assert (0, "") == finished(shard(tmp_path / "tree", output, "--jobs", "1"))
    assert kept == {path: path.stat().st_mtime_ns for path in kept}
    assert 4 == project.run("tta-pipeline", "shards", "verify", str(output)).stdout.count("60 samples, 2 shards")


AS_NOBODY = """
import os, sys
from tta_pipeline.cli import main
shard = ["--num-shards", "2", "--jobs", "1"]
main(["shards", "make", sys.argv[1], sys.argv[3], *shard], standalone_mode=False)  # everything is imported by now
os.setgroups([]), os.setgid(65534), os.setuid(65534)  # permissions mean nothing to root
main(["shards", "make", sys.argv[2], sys.argv[4], *shard])
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("forbidden", ["image", "output"])
def test_a_forbidden_file_or_folder_is_named_and_nothing_is_published(forbidden: str):
    """The error is one line with the path and what was refused."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in ("warm", "tree"):
            write_tree(root / name / "fog" / "5", classes={"n01": 3})
        (root / "out").mkdir()
        for path in (root, root / "out"):
            path.chmod(0o777)
        place = next((root / "tree").rglob("*.JPEG")) if forbidden == "image" else root / "out"
        place.chmod(0 if forbidden == "image" else 0o555)

        done = run_python(AS_NOBODY, *(str(root / name) for name in ("warm", "tree", "warm_out", "out")))

        assert done.returncode == 1, done.stderr
        assert str(place) in done.stderr
        assert "Permission denied" in done.stderr
        assert "Traceback" not in done.stderr
        assert not list((root / "out").rglob("*.tar"))


def test_one_key_twice_is_refused_wherever_it_stands(tmp_path: Path):
    """Two members of one name, far apart and in different shards, are no two samples."""
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            for name in ("n01/same.jpg", f"n01/other{number}.jpg"):
                member = tarfile.TarInfo(name)
                member.size = len(jpeg(number))
                tar.addfile(member, io.BytesIO(jpeg(number)))

    with pytest.raises(ManifestError, match=r" n01/same .* 2 "):
        adopt(tmp_path, CELL, QUIET, benchmark_name="theirs", class_map=None)
    assert not (tmp_path / "manifest.json").exists()
