"""The doctor says what stands in the way of work, and changes nothing."""

import fcntl
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from safetensors.torch import save_file
from torch import nn
from torchvision.models import resnet18

from tta_pipeline.cli import main
from tta_pipeline.defs.history import find_home
from tta_pipeline.domain.locations import Locations
from tta_pipeline.extras.doctor import Finding, benchmark_files, examine, machine_checks, mounts
from tta_pipeline.extras.doctor.dagster_checks import check_dagster
from tta_pipeline.extras.doctor.data_checks import check_left_overs, check_results
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.results.result_files import Result, store_result
from tta_pipeline_tests.conftest import Project, in_one_line, write_tree
from tta_pipeline_tests.shards.test_uneven_cells import sharded

MOUNTS = r"""
/dev/sda1 / ext4 rw,relatime 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
server:/old /home/old nfs rw,vers=3,local_lock=all 0 0
ws /lustre/my\040space lustre rw,flock 0 0
me@host: /home/me/far fuse.sshfs rw 0 0
/dev/sdb1 /home/me/scratch xfs rw 0 0
""".lstrip()
FOLDER_SOURCE = """
title: Mine
images: {{kind: folder, root: "{root}"}}
corruptions: [fog]
severities: [1, 2]
image_size: 224
shards: {{num_shards: 1}}
models: {{resnet50: {{kind: torchvision, architecture: resnet50}}}}
experiments: {{source: {{model: resnet50, method: source}}}}
"""


@pytest.fixture
def locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Locations:
    """An empty data root, and a Dagster home beside it."""
    (tmp_path / "dagster").mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return Locations.from_environment()


def told(findings: Iterator[Finding]) -> dict[str, str]:
    """Return mark, words and advice of each thing looked at."""
    return {finding.subject: f"{finding.mark}: {finding.found} -> {finding.advice}" for finding in findings}


def examined(locations: Locations, name: str) -> Iterator[Finding]:
    """Yield what is found of the benchmark *name*."""
    return examine(locations, [name], home=find_home(locations))


def aged(path: Path) -> Path:
    """Make *path* an hour old."""
    os.utime(path, (time.time() - 3600, time.time() - 3600))
    return path


def test_an_empty_project_is_well_and_stays_as_it_is(project: Project):
    """The command of a user finds no fault, tells of each thing, and leaves no file behind."""
    before = sorted(project.home.rglob("*"))

    finished = project.run("tta-pipeline", "doctor")

    assert 0 == finished.returncode, finished.stdout + finished.stderr
    for subject in (
        "data root",
        "disk",
        "inodes",
        "file system",
        "left-overs",
        "results",
        "digits_c",
        "torch",
        "Dagster",
    ):
        assert f" {subject}: " in finished.stdout
    assert not project.locations.root.exists()
    assert before == sorted(project.home.rglob("*"))


def test_a_program_reads_the_same(locations: Locations):
    """With --json each thing is an object with mark, subject, what was found, and advice."""
    finished = CliRunner().invoke(main, ["doctor", "--json"])

    findings = {finding["subject"]: finding for finding in json.loads(finished.stdout)}
    assert 0 == finished.exit_code
    assert {"mark": "ok", "subject": "left-overs", "found": "none", "advice": ""} == findings["left-overs"]
    assert "75 cells, 0 of them sharded, 7 experiments (built-in example)" == findings["digits_c"]["found"]


def test_a_fault_makes_the_exit_status_1(locations: Locations):
    """The line says what is wrong with which file, and what to do."""
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text("title: Mine\n")

    finished = CliRunner().invoke(main, ["doctor"])

    assert 1 == finished.exit_code
    assert "fault  mine: " in finished.stdout
    assert "images is missing" in finished.stdout
    assert "-> correct the file" in finished.stdout


def test_one_benchmark_is_checked_by_its_name(locations: Locations):
    """The exit status is that of this one, whatever is wrong with others and with the machine."""
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text("title: Mine\n")

    right, faulty, unknown = (CliRunner().invoke(main, ["doctor", name]) for name in ("digits_c", "mine", "nobody"))

    assert (0, 1, 1) == (right.exit_code, faulty.exit_code, unknown.exit_code)
    assert right.stdout == "ok     digits_c: 75 cells, 0 of them sharded, 7 experiments (built-in example)\n"
    assert "images is missing" in faulty.stdout
    assert "expected one of digits_c" in in_one_line(unknown.output)


def test_one_set_of_a_file_is_checked_by_its_name(locations: Locations):
    """By the file's name, all of its sets are."""
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "two.yaml").write_text(TWO_SETS)

    assert ["two/imagenet_a", "two/imagenet_r"] == [each.subject for each in examined(locations, "two")]
    assert ["two/imagenet_r"] == [each.subject for each in examined(locations, "two/imagenet_r")]


TWO_SETS = """
title: two
sets:
  imagenet_a: {images: {kind: folder, root: /}}
  imagenet_r: {images: {kind: folder, root: /}}
image_size: 224
shards: {samples_per_shard: 60}
models: {a: {kind: torchvision, architecture: resnet18}}
experiments: {source: {model: a, method: source}}
"""


def test_a_data_root_that_cannot_be_is_a_fault(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """A file where the folder should be, and a folder without rights, are told with the variable that names them."""
    file = Locations(root=locations.root / "file")
    file.root.write_text("")
    assert "fault: " in told(machine_checks.check_data_root(file))["data root"]

    monkeypatch.setattr(os, "access", lambda *_: False)  # root may do anything
    assert "TTA_DATA_ROOT) belongs to user" in told(machine_checks.check_data_root(locations))["data root"]


def test_a_full_disk_is_a_fault_and_a_small_one_a_note(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """What ImageNet-C needs stands beside what is free, in bytes and in files."""
    real = list(os.statvfs(locations.root))

    def with_free(num_bytes: int, num_files: int) -> dict[str, str]:
        changed = os.statvfs_result([4096, 4096, *real[2:4], num_bytes // 4096, 10**6, num_files, num_files, *real[8:]])
        monkeypatch.setattr(os, "statvfs", lambda _: changed)
        return told(machine_checks.check_disk_space(locations))

    assert ["ok", "ok"] == [text[:2] for text in with_free(10**12, 10**6).values()]
    assert ["note", "note"] == [text[:4] for text in with_free(10**10, 500).values()]
    assert ["fault", "fault"] == [text[:5] for text in with_free(10**6, 5).values()]
    assert "51 GB as shards" in with_free(10**10, 500)["disk"]


def test_a_file_system_is_found_by_its_mount(tmp_path: Path):
    """The deepest mount counts; spaces are read; options tell whether locks reach other machines."""
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    kinds = {
        "/home/me/data": ("nfs4", True, ()),
        "/home/old/data": ("nfs", True, ("local_lock=all",)),
        "/homestead": ("ext4", False, ()),
        "/lustre/my space/data": ("lustre", True, ()),
        "/home/me/far/data": ("fuse.sshfs", True, ()),
        "/home/me/scratch": ("xfs", False, ()),
    }

    for path, expected in kinds.items():
        found = mounts.find_mount(Path(path), table)
        assert found
        assert expected == (found.kind, found.is_network, found.local_lock_options)


def test_locks_are_tried_for_real(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """A lock that can be had is well and leaves no file; one that is refused, or had twice, is a fault."""
    assert "locks work" in told(machine_checks.check_file_locks(locations))["file system"]
    assert not any(locations.root.iterdir())

    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    assert "fault" in told(machine_checks.check_file_locks(locations))["file system"]

    def refused(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refused)
    assert "Function not implemented" in told(machine_checks.check_file_locks(locations))["file system"]


def test_a_network_file_system_is_a_note(locations: Locations, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """With locks that hold on one machine only, the note says so; Dagster's SQLite there is a fault."""
    table = tmp_path / "mounts"
    monkeypatch.setattr(mounts, "MOUNTS", table)

    table.write_text(f"server:/x {tmp_path} nfs rw,local_lock=flock 0 0\n")
    assert (
        "on this machine only, by its mount option local_lock=flock"
        in told(machine_checks.check_file_locks(locations))["file system"]
    )
    assert "fault: the history of runs is SQLite" in told(check_dagster(tmp_path))["Dagster"]

    table.write_text(f"server:/x {tmp_path} lustre rw,flock 0 0\n")
    assert "note: lustre" in told(machine_checks.check_file_locks(locations))["file system"]

    (tmp_path / "dagster.yaml").write_text("storage: {postgres: {postgres_url: {env: URL}}}\n")
    assert "ok: the history of runs is in postgres" in told(check_dagster(tmp_path))["Dagster"]


def test_left_overs_of_killed_runs_are_told_from_living_ones(locations: Locations):
    """A folder that nobody locks is one; a locked one, or a file of this moment, is not."""
    abandoned = locations.root / "mine" / f".unpublished-{'1' * 32}-spill"
    living = locations.root / "mine" / "shards" / "fog" / f".unpublished-{'2' * 32}-5"
    for folder in (abandoned, living):
        folder.mkdir(parents=True)
        (folder / "images").write_bytes(b"x" * 1000)
        aged(folder)
    descriptor = os.open(living, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    (locations.root / "mine" / f".unpublished-{'3' * 32}-class_map.json").write_text("{}")
    try:
        text = told(check_left_overs(locations))["left-overs"]
    finally:
        os.close(descriptor)

    assert f"note: 1 left-over of killed runs: {abandoned} -> " in text


def test_files_of_killed_runs_are_named(locations: Locations):
    """Half a result, and a folder with a copy of the database."""
    result = locations.results("mine") / "fog-5" / f".unpublished-{'1' * 32}-{'0' * 16}-{'0' * 8}.json"
    copy = locations.root / f".unpublished-{'2' * 32}-metrics.duckdb"
    copy.mkdir()
    result.parent.mkdir(parents=True)
    result.write_text("{")
    for path in (result, copy):
        aged(path)

    text = told(check_left_overs(locations))["left-overs"]

    assert "2 left-overs of killed runs" in text
    assert str(copy) in text
    assert str(result) in text


def store_measurement(locations: Locations, *, finished_at: str = "2026-01-01T00:00:00+00:00") -> Path:
    """Store a measurement of loaders, and return its path."""
    result = Result(
        kind="loaders", benchmark="mine", key="loaders", fingerprint=None, run_id="r", started_at=finished_at,
        finished_at=finished_at, versions={},
        loaders={"loaders": [], "benchmark": "mine", "corruption": "fog", "severity": 5},
    )  # fmt: skip
    return store_result(locations.results("mine"), result).path


def test_results_that_are_not_in_the_database_are_told(locations: Locations):
    """After publication, after another result, and after the results were taken away; never whether there is one."""
    path = store_measurement(locations)
    assert "ok: 1 result, each matching the hash in its name" in told(check_results(locations))["results"]

    publish_metrics(locations)
    assert ["ok"] == [finding.mark for finding in check_results(locations)]

    second = store_measurement(locations, finished_at="2026-01-02T00:00:00+00:00")
    first, *_ = check_results(locations)
    assert "1 result are not in metrics.duckdb" in first.found
    assert second.name in first.found

    second.unlink()
    path.unlink()
    first, *_ = check_results(locations)
    assert "1 result disappeared" in first.found
    assert path.name in first.found


def test_a_damaged_result_is_a_fault(locations: Locations):
    """It is named with its path, before and after the database knows of it."""
    path = store_measurement(locations)
    path.write_text("{")

    before = list(check_results(locations))
    publish_metrics(locations)
    after = list(check_results(locations))

    assert ["fault"] == [finding.mark for finding in before] == [finding.mark for finding in after]
    assert f"{path.name} is damaged: it hashes to" in after[0].found
    assert "it is set aside, and counts nowhere" in after[0].advice


def test_rows_that_another_program_changed_are_told(locations: Locations):
    """Deleted, doubled or changed by somebody's SQL, even where the file has its time from before."""
    store_measurement(locations)
    publish_metrics(locations)
    stat = locations.metrics.stat()
    with duckdb.connect(locations.metrics) as connection:
        connection.execute("UPDATE results SET void = 'mine'")
    os.utime(locations.metrics, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    first, *_ = check_results(locations)

    assert "note" == first.mark
    assert "rows of the table results" in first.found
    assert "were changed by another program" in first.found


def test_a_database_of_somebody_elses_is_a_note(locations: Locations):
    """It is made anew by the next run; a write-ahead log beside it is told of."""
    store_measurement(locations)
    locations.metrics.write_text("no database")
    (locations.root / "metrics.duckdb.wal").write_text("")

    findings = list(check_results(locations))

    assert ["note", "note", "ok"] == [finding.mark for finding in findings]
    assert "is no whole database" in findings[1].found


def test_the_history_of_runs_is_where_a_command_keeps_it(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """In the folder that the settings name, or without any, in the data root."""
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.chdir(locations.root)
    home = find_home(locations)
    assert (
        f"ok: the history of runs is SQLite in {home / 'history'}, to be made" in told(check_dagster(home))["Dagster"]
    )

    home.mkdir()
    (home / "dagster.yaml").write_text("storage: {sqlite: {base_dir: kept}}\n")
    assert f"SQLite in {home / 'kept'}, " in told(check_dagster(home))["Dagster"]


def test_shard_sets_without_checksums_are_a_note(tmp_path: Path):
    """Until they are verified; the benchmark is well all the same."""
    write_tree(tmp_path / "images/fog/1", classes={"n01": 1})
    write_tree(tmp_path / "images/fog/2", classes={"n01": 1})
    benchmark, locations = sharded(tmp_path)
    locations.benchmark_files.mkdir()
    (tmp_path / "mine.yaml").rename(locations.benchmark_files / "mine.yaml")
    folder = locations.shards("mine", benchmark.cells[1])
    (folder / "checksums.xxh64").unlink()

    slow, well = benchmark_files.check_named_benchmark(locations, "mine")

    assert ("note", "ok") == (slow.mark, well.mark)
    assert str(folder) in slow.found
    assert "tta-pipeline shards verify" in slow.advice


def test_a_source_that_is_not_there_is_a_fault_until_all_cells_are_sharded(tmp_path: Path):
    """Missing cells of a source are a note, a missing source a fault; once the shards are made, it is a note."""
    locations = Locations(root=tmp_path / "data")
    locations.benchmark_files.mkdir(parents=True)
    file = locations.benchmark_files / "mine.yaml"

    def found() -> str:
        file.write_text((tmp_path / "mine.yaml").read_text())
        return " ".join(f"{each.mark}: {each.found}" for each in benchmark_files.check_benchmark_files(locations))

    images = tmp_path / "images"
    for severity in (1, 2):
        write_tree(images / "fog" / str(severity), classes={"n01": 1})
    benchmark, _ = sharded(tmp_path)
    assert "ok: 2 cells, 2 of them sharded" in found()

    images.rename(tmp_path / "elsewhere")
    assert f"note: images.root is {images}, which does not exist" in found()

    manifest = locations.shards("mine", benchmark.cells[0]) / "manifest.json"
    manifest.write_text("{}")
    assert f"fault: {manifest}" in found()

    manifest.unlink()
    assert f"fault: images.root is {images}, which does not exist" in found()

    write_tree(images / "fog" / "1", classes={"n01": 1})
    assert "note: 2 cells, 1 of them sharded, 0 experiments; the source lacks 1 of 2 cells: fog|2" in found()


@pytest.mark.parametrize(
    ("architecture", "damage", "classes", "said"),
    [
        ("resnet18", b"", "folders", None),
        ("resnet34", b"", "folders", "weights are missing, first layer1.2"),
        ("resnet19", b"", "folders", "Unknown model resnet19"),
        ("resnet18", b"x", "folders", "has sha256"),
        ("resnet18", b"", "imagenet", "(7, 512) instead of (1000, 512)"),
        ("resnet18", b"", "own", None),
    ],
)
def test_weights_that_are_not_what_the_file_says_are_a_fault(  # noqa: PLR0917
    locations: Locations, tmp_path: Path, architecture: str, damage: bytes, classes: str, said: str | None
):
    """The wrong architecture, other bytes, or another number of classes, unless nothing says yet how many there are.

    A model that names its own classes may have others than the images.
    """
    own, classes = (f"classes: {tmp_path / 'own.json'}, ", "imagenet") if classes == "own" else ("", classes)
    (tmp_path / "own.json").write_text(json.dumps([f"n{number}" for number in range(7)]))
    path = tmp_path / "mine.safetensors"
    save_file(resnet18(num_classes=7).state_dict(), path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_bytes(path.read_bytes() + damage)
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text(
        f"title: Mine\nimages: {{kind: folder, root: {tmp_path}}}\ncorruptions: [fog]\nseverities: [5]\n"
        f"image_size: 32\nshards: {{samples_per_shard: 60}}\nclass_map: {classes}\n"
        f"models: {{cnn: {{kind: checkpoint, architecture: {architecture}, path: {path}, {own}"
        f"sha256: '{sha256}', mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}}}}\n"
        "experiments: {a: {model: cnn, method: source}}\n"
    )

    faults = [
        each.found
        for each in benchmark_files.check_benchmark_files(locations)
        if (each.mark, each.subject) == ("fault", "mine")
    ]

    assert (said is not None) == bool(faults)
    assert all(said in fault and "\n" not in fault for fault in faults)


def test_a_model_that_asks_for_another_transform_is_a_note(locations: Locations, tmp_path: Path):
    """With the line to write; the benchmark is well all the same."""
    write_tree(tmp_path / "images/fog/5", classes={"n01": 1})
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text(
        f"title: Mine\nimages: {{kind: folder, root: {tmp_path / 'images'}}}\ncorruptions: [fog]\nseverities: [5]\n"
        "image_size: 224\nshards: {samples_per_shard: 60, resize: 256, center_crop: 224}\n"
        "models: {v2: {kind: torchvision, architecture: resnet50, weights: IMAGENET1K_V2}}\n"
        "experiments: {a: {model: v2, method: source}, b: {model: v2, method: norm}}\n"
    )

    found = told(benchmark_files.check_benchmark_files(locations))

    assert "resize 232" in found["mine/v2"]
    assert "note: " in found["mine/v2"]
    assert "`shards: {resize: 232, center_crop: 224, interpolation: bilinear}`" in found["mine/v2"]
    assert "ok: " in found["mine"]


def test_weights_of_a_network_of_ones_own_are_tried(
    locations: Locations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its factory is called, and weights that do not fit what it returns are a fault."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "linear_network.py").write_text("from torch import nn\n\ndef make():\n    return nn.Linear(3, 7)\n")
    save_file(nn.Linear(4, 7).state_dict(), tmp_path / "mine.safetensors")
    sha256 = hashlib.sha256((tmp_path / "mine.safetensors").read_bytes()).hexdigest()
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text(
        f"title: Mine\nimages: {{kind: folder, root: {tmp_path}}}\ncorruptions: [fog]\nseverities: [5]\n"
        "image_size: 32\nshards: {samples_per_shard: 60}\n"
        "models: {mine: {kind: python, factory: 'linear_network:make', weights: mine.safetensors, "
        f"sha256: '{sha256}', mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}}}}\n"
        "experiments: {a: {model: mine, method: source}}\n"
    )

    found = told(benchmark_files.check_benchmark_files(locations))

    assert "the network of linear_network:make: 1 have another shape" in found["mine"]
    assert "first weight: (7, 4) instead of (7, 3); expected its state dict" in found["mine"]


def test_a_benchmark_file_that_is_never_read_is_told(locations: Locations):
    """One that ends in .yml, and one with the name of an embedded benchmark."""
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yml").write_text("")
    (locations.benchmark_files / "digits_c.yaml").write_text("")

    found = told(benchmark_files.check_benchmark_files(locations))

    assert "rename it to end in .yaml" in found["benchmarks"]
    assert "have the same name" in found["digits_c"]


def test_a_method_of_ones_own_is_found_where_dagster_finds_it(
    locations: Locations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the working directory; a module that raises when it is imported is a fault of the experiment that names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "raising.py").write_text("1 / 0\n")
    text = FOLDER_SOURCE.format(root=locations.root)
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text(text.replace("method: source", "method: 'raising:METHOD'"))

    found = told(benchmark_files.check_benchmark_files(locations))

    assert "fault" in found["mine/source"]
    assert "raised ZeroDivisionError" in found["mine/source"]
    assert "this experiment is left out" in found["mine/source"]
    assert "0 experiments" in found["mine"]


def test_a_benchmark_with_a_faulty_experiment_is_not_ok(locations: Locations):
    """Its other experiments can run, so it is a note, and the fault follows."""
    text = FOLDER_SOURCE.format(root=locations.root)
    text = text.replace("experiments: {", "experiments: {other: {model: nothing, method: source}, ")
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text(text)
    for severity in (1, 2):
        (locations.root / "fog" / str(severity)).mkdir(parents=True)

    found = list(benchmark_files.check_named_benchmark(locations, "mine"))

    assert [("note", "mine"), ("fault", "mine/other")] == [(each.mark, each.subject) for each in found]
    assert "1 experiment; a fault leaves others out" in found[0].found


def test_a_missing_library_is_told_where_it_is_needed(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """By the kind of model that needs it, with the command that installs it."""
    monkeypatch.setitem(sys.modules, "timm", None)
    text = FOLDER_SOURCE.format(root=locations.root).replace("torchvision", "timm")
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text(text)

    found = told(benchmark_files.check_benchmark_files(locations))["mine"]

    assert "fault: model resnet50: timm is not installed" in found
    assert "pip install 'tta_pipeline[timm]'" in found


def test_a_folder_that_cannot_be_read_is_one_line(locations: Locations, monkeypatch: pytest.MonkeyPatch):
    """The doctor goes on with the next thing."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(locations.root))

    monkeypatch.setattr(os, "statvfs", refused)
    finished = CliRunner().invoke(main, ["doctor"], catch_exceptions=False)

    assert f"fault  disk space: {locations.root} cannot be checked (Permission denied)" in finished.stdout
    assert " torch: " in finished.stdout


REFUSED = """
title: What a run refuses
images: {kind: digits, num_test: 60, severity_table: imagenet_c}
corruptions: [fog]
severities: [5]
image_size: 32
shards: {num_shards: 1}
tuning: {tent: {grid: {lr: [0.1, 0.01]}}}
models:
  cnn: {kind: trained}
  trained: {kind: trained, network: {kind: python, factory: "refused_factory:network"}}
  unknown: {kind: torchvision, architecture: resnet18, weights: LOST}
  untrained: {kind: python, factory: "refused_factory:network"}
experiments:
  trained: {model: trained, method: source}
  unknown: {model: unknown, method: source}
  untrained: {model: untrained, method: source}
  broken: {model: cnn, method: "refused_entry:BROKEN"}
  tuned: {model: cnn, method: tent, preset: cifar, tuned: tent}
  tent: {model: cnn, method: tent, preset: cifar}
"""


def test_what_a_run_would_refuse_is_found(locations: Locations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Code that cannot be imported or raises, weights that do not exist, and values that were not tuned yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "refused_code.py").write_text("raise RuntimeError('no method')\n")
    (tmp_path / "refused_entry.py").write_text(
        "from tta_pipeline.methods.entry import Hyperparameters, MethodEntry\n"
        "PRESETS = dict.fromkeys(('imagenet', 'cifar'), Hyperparameters())\n"
        "BROKEN = MethodEntry(implementation='refused_code:Method', summary='Broken.', presets=PRESETS)\n"
    )
    (tmp_path / "refused_factory.py").write_text("def network():\n    raise RuntimeError('no network')\n")
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "mine.yaml").write_text(REFUSED)

    findings = [(each.mark, each.subject, each.found) for each in examined(locations, "mine")]

    for mark, subject, found in (
        ("fault", "mine", "model trained: refused_factory:network raised RuntimeError('no network')"),
        ("fault", "mine", "model unknown: resnet18 has no weights 'LOST'"),
        ("fault", "mine", "model untrained: The model refused_factory:network has no weights"),
        ("fault", "mine/broken", "importing 'refused_code:Method' raised RuntimeError('no method')"),
        ("note", "mine/tuned", "tta-pipeline tune mine tent"),
    ):
        assert [each for each in findings if each[:2] == (mark, subject) and found in each[2]], (found, findings)
    assert 5 == len(findings)
