"""Published results of others: taken whole, proven first, shown as theirs, and compared on the same images."""

import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.extras.reproduction import addition
from tta_pipeline_tests.conftest import Project, copied_results, in_one_line
from tta_pipeline_tests.extras.reproduction.folders import (
    ask,
    change_plan,
    forge,
    forge_fingerprint,
    result_of,
    with_facts,
)


@pytest.fixture(scope="module")
def published(sweep: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the sweep, as others get them."""
    target = tmp_path_factory.mktemp("published") / "results"
    done = ask(sweep.locations.root, "results", "publish", "small", str(target))
    assert done.exit_code == 0, done.output
    return target


@pytest.fixture(scope="module")
def added(sweep: Project, published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the same results, once of its own and once as those of alice; tests must not change it."""
    root = copied_results(sweep, tmp_path_factory.mktemp("added")).locations.root
    done = ask(root, "results", "add", str(published), "--as", "alice")
    assert done.exit_code == 0, done.output
    assert "added alice:norm, alice:source, alice:tent" in done.stdout
    return root


@pytest.fixture
def root(sweep: Project, tmp_path: Path) -> Path:
    """A data root with results of its own."""
    return copied_results(sweep, tmp_path / "project").locations.root


@pytest.fixture
def copied(published: Path, tmp_path: Path) -> Path:
    """A folder of its own with the published results."""
    return Path(shutil.copytree(published, tmp_path / "copied"))


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files under *folder* by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(root: Path, sql: str) -> list[dict[str, Any]]:
    """Return the answer of the database."""
    found: list[dict[str, Any]] = json.loads(ask(root, "query", "--json", sql).stdout)
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve *folder*, and yield its URL."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_what_is_added_is_what_was_published(published: Path, added: Path):
    """Byte by byte, in a folder of its own; one's own results stay as they are."""
    assert files_of(published / "results") == files_of(added / "added" / "alice" / "results")


def test_the_leaderboard_shows_experiments_of_others_as_theirs(added: Path):
    """Beside one's own, with the same errors, since they are the same results."""
    found = {row["experiment"]: row["mean_error"] for row in rows(added, "FROM leaderboard")}

    assert {"source", "norm", "tent", "alice:source", "alice:norm", "alice:tent"} == set(found)
    assert all(found[name] == found[f"alice:{name}"] for name in ("source", "norm", "tent"))
    assert "alice:tent" in ask(added, "leaderboard").stdout


def test_the_same_predictions_have_the_same_interval(added: Path):
    """In the leaderboard, whoever made them."""
    found = {row["experiment"]: row["error_low"] for row in json.loads(ask(added, "leaderboard", "--json").stdout)}

    assert all(found[name] == found[f"alice:{name}"] is not None for name in ("source", "norm", "tent"))


@pytest.mark.parametrize("names", [("norm", "alice:source"), ("alice:norm", "source"), ("alice:norm", "alice:source")])
def test_experiments_of_others_are_compared_sample_by_sample(added: Path, names: tuple[str, str]):
    """As one's own with the same predictions are, and under their names."""
    own = json.loads(ask(added, "compare", "norm", "source", "--cells", "--json").stdout)
    asked = ask(added, "compare", *names, "--cells", "--json")

    assert asked.exit_code == 0, asked.output
    found = json.loads(asked.stdout)
    assert [names] * len(found) == [(row["experiment_a"], row["experiment_b"]) for row in found]
    assert names[0] == found[0]["better"]
    kept = ("corruption", "severity", "error_a", "error_b", "error_change", "p_value", "only_a_wrong", "only_b_wrong")
    assert [[row[name] for name in kept] for row in own] == [[row[name] for name in kept] for row in found]


def test_other_images_are_not_compared(root: Path, copied: Path):
    """The manifests tell; the answer is a line that names both, and cells of equal manifests are compared.

    A mean over other images has no interval in the leaderboard.
    """
    forge(result_of(copied, "tent"), lambda result: with_facts(result, manifest_sha256="0" * 64))
    assert ask(root, "results", "add", str(copied), "--as", "alice").exit_code == 0

    asked = ask(root, "compare", "norm", "alice:tent")
    of_equal_ones = ask(root, "compare", "norm", "alice:tent", "--corruption", "gaussian_noise")

    assert (1, "") == (asked.exit_code, asked.stdout)
    (line,) = in_one_line(asked.stderr).splitlines()
    assert "alice:tent at contrast|5 was evaluated on shards with manifest 0000" in line
    assert line.endswith("compare only experiments on the same images")
    assert 0 == of_equal_ones.exit_code
    lows = {row["experiment"]: row["error_low"] for row in json.loads(ask(root, "leaderboard", "--json").stdout)}
    assert (True, False) == (lows["alice:tent"] is None, lows["alice:norm"] is None)


def test_another_source_model_is_named(root: Path, copied: Path):
    """Results of a model that others trained are compared, but not as if only the method differed.

    The columns call experiments with long names A and B.
    """
    said = [" ".join(ask(root, "compare", "norm", "tent").stdout.split())]
    forge(result_of(copied, "tent"), lambda result: with_facts(result, weights_sha256="0" * 64))
    assert ask(root, "results", "add", str(copied), "--as", "a_colleague").exit_code == 0
    said.append(" ".join(ask(root, "compare", "norm", "a_colleague:tent").stdout.split()))

    assert [False, True] == ["different weights" in each for each in said]
    assert [False, True] == ["A is norm and B is a_colleague:tent" in each for each in said]
    assert "A error B error" in said[1]


def test_two_protocols_are_named_where_no_stream_is_common(root: Path, published: Path):
    """More results of both would not help."""
    ask(root, "results", "add", str(published), "--as", "alice")
    for key in ("clean-0", "contrast-3", "contrast-5", "gaussian_noise-3", "gaussian_noise-5"):
        path = result_of(root / "added" / "alice", "tent", key)
        forge(path, lambda result: with_facts(result, protocol="continual", seed=5))

    asked = in_one_line(ask(root, "compare", "tent", "alice:tent").stderr)

    assert "tent has results of the protocol reset_each_shift, but alice:tent of continual" in asked


def test_an_experiment_that_was_not_run_is_named_with_its_command(added: Path):
    """As if both were to be run, the error before said to evaluate the results of others too."""
    for key in ("clean-0", "contrast-3", "contrast-5", "gaussian_noise-3", "gaussian_noise-5"):
        result_of(added, "norm", key).unlink()

    asked = in_one_line(ask(added, "compare", "norm", "alice:norm").stderr)

    assert "norm has no results" in asked
    assert "run small --experiment norm" in asked


def test_an_experiment_that_nobody_added_is_unknown(added: Path):
    """The error names one that was."""
    asked = ask(added, "compare", "norm", "alice:tant")

    assert asked.exit_code == 2
    assert "did you mean alice:tent" in " ".join(asked.stderr.split())


def test_cells_that_others_left_out_are_not_asked_for(root: Path, copied: Path):
    """No command of one's own would evaluate them."""
    result_of(copied, "tent").unlink()
    assert ask(root, "results", "add", str(copied), "--as", "alice").exit_code == 0

    asked = ask(root, "compare", "norm", "alice:tent", "--cells", "--json")

    assert {"contrast|3", "gaussian_noise|3", "gaussian_noise|5", "clean|0"} == {
        f"{row['corruption']}|{row['severity']}" for row in json.loads(asked.stdout)[1:]
    }
    assert "to evaluate them" not in asked.stderr


def pack(folder: Path, archive: Path) -> Path:
    """Put *folder* into *archive*, in the form that the name of that has."""
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as zipped:
            for path in folder.rglob("*"):
                zipped.write(path, path.relative_to(folder))
    else:
        with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as tar:
            tar.add(folder, "folder/of/theirs")
    return archive


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip"])
def test_an_archive_is_added_like_its_folder(published: Path, tmp_path: Path, suffix: str):
    """On disk, and downloaded."""
    archive = pack(published, tmp_path / f"theirs{suffix}")

    with served(tmp_path) as url, addition.downloaded(f"{url}/{archive.name}") as downloaded:
        for name, path in (("web", downloaded), ("disk", archive)):
            added = addition.add_published(path, name, Locations(root=tmp_path / "data"))
            assert ("norm", "source", "tent") == added
            assert files_of(published / "results") == files_of(tmp_path / "data" / "added" / name / "results")


def test_who_has_no_benchmark_sees_what_others_published_at_a_url(published: Path, tmp_path: Path):
    """In a leaderboard; nothing else is needed here."""
    root = tmp_path / "data"
    pack(published, tmp_path / "theirs.tar")

    with served(tmp_path) as url:
        done = ask(root, "results", "add", f"{url}/theirs.tar", "--as", "web")

    assert 0 == done.exit_code, done.output
    assert files_of(published / "results") == files_of(root / "added" / "web" / "results")
    shown = json.loads(ask(root, "leaderboard", "--json").stdout)
    assert {"web:source", "web:norm", "web:tent"} == {row["experiment"] for row in shown}


def flip(path: Path) -> None:
    """Change one bit of *path*."""
    data = path.read_bytes()
    path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])


def link_away(path: Path) -> None:
    """Put a link to a file elsewhere in the place of *path*."""
    elsewhere = path.parents[4] / path.name
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def predictions_of(folder: Path) -> Path:
    """Return the predictions of a published result."""
    return min((folder / "results" / "small" / "contrast-5").glob("*.parquet"))


def edit_plan(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Return a function that edits the published plan of tent."""
    return lambda folder: change_plan(folder, "tent", change)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda folder: flip(result_of(folder, "tent")), "is damaged"),
    "flipped predictions": (lambda folder: flip(predictions_of(folder)), "has sha256"),
    "no predictions": (lambda folder: predictions_of(folder).unlink(), "is missing, or is a link"),
    "another number": (
        lambda folder: forge(result_of(folder, "tent"), lambda result: with_facts(result, num_correct=3)),
        "num_correct",
    ),
    "other predictions": (
        lambda folder: forge(result_of(folder, "tent"), lambda r: with_facts(r, predictions_sha256="0" * 64)),
        "has different predictions from",
    ),
    "another benchmark": (
        lambda folder: forge(result_of(folder, "tent"), lambda result: replace(result, benchmark="other")),
        "is in the wrong folder",
    ),
    "a link": (lambda folder: link_away(result_of(folder, "tent")), "is missing, or is a link"),
    "linked predictions": (lambda folder: link_away(predictions_of(folder)), "is missing, or is a link"),
    "a way out": (edit_plan(lambda plan: plan["streams"][0].__setitem__(0, "../../../../x")), "expected letters"),
    "a script": (edit_plan(lambda plan: plan["labels"].update(model="<script>")), "expected letters"),
    "another name": (edit_plan(lambda plan: plan["labels"].update(experiment="norm")), "is the plan for norm"),
    "text for a number": (
        edit_plan(lambda plan: plan["labels"]["shifts"]["contrast"].update(shift_position="first")),
        "expected a whole number",
    ),
    "a number for text": (edit_plan(lambda plan: plan["streams"][0][2][0].__setitem__(0, 5)), "is not a plan"),
    "no plan": (edit_plan(dict.clear), "is not a plan"),
    "no plans": (lambda folder: shutil.rmtree(folder / "results" / "small" / "plans"), "expected a folder that"),
    "no results": (edit_plan(lambda plan: plan.update(streams=[])), "has no results"),
}  # fmt: skip
"""What may be wrong with a folder of others, and what is said."""


@pytest.mark.parametrize(("damage", "expected"), DAMAGES.values(), ids=DAMAGES.keys())
def test_what_does_not_prove_itself_is_refused_whole(
    copied: Path, tmp_path: Path, damage: Callable[[Path], object], expected: str
):
    """One line, and nothing is taken: neither the file nor those beside it."""
    damage(copied)

    done = ask(tmp_path / "data", "results", "add", str(copied), "--as", "alice")

    assert done.exit_code == 1, done.output
    (line,) = in_one_line(done.stderr).splitlines()
    assert expected in line
    assert not files_of(tmp_path / "data")
    assert not list(tmp_path.glob("data/added/*"))


def test_results_by_other_code_are_added_too(root: Path, copied: Path):
    """They are what others measured; only one's own plan asks for the present code.

    To remove the folder is all it takes to drop what was added.
    """
    forge_fingerprint(copied, "tent", "contrast-5", code="0" * 64)

    done = ask(root, "results", "add", str(copied), "--as", "alice")

    assert 0 == done.exit_code, done.output
    (row,) = rows(root, "SELECT num_cells FROM leaderboard WHERE experiment = 'alice:tent'")
    assert 4 == row["num_cells"]

    shutil.rmtree(root / "added" / "alice")
    assert {"source", "norm", "tent"} == {row["experiment"] for row in rows(root, "FROM leaderboard")}


@pytest.mark.parametrize(
    ("archive", "expected"),
    [
        ("cut.tar.gz", "cannot be unpacked"),
        ("out.tar", "cannot be unpacked"),
        ("none.tar", "No such file"),
        ("picture.png", "is neither a folder nor a known archive"),
    ],
)
def test_an_archive_that_harms_is_refused(published: Path, tmp_path: Path, archive: str, expected: str):
    """A cut one, one that writes beside its folder, and what is no archive."""
    data = pack(published, tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(data[: len(data) // 2])
    with tarfile.open(tmp_path / "out.tar", "w") as tar:
        tar.add(published / "README.md", "../../README.md")
    (tmp_path / "picture.png").write_bytes(b"")

    done = ask(tmp_path / "data", "results", "add", str(tmp_path / archive), "--as", "alice")

    assert done.exit_code == 1
    assert expected in " ".join(in_one_line(done.stderr).split())
    assert not (tmp_path / "data" / "added").exists()


@pytest.mark.parametrize("suffix", [".tar", ".zip"])
def test_an_archive_that_would_fill_the_disk_is_refused(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
):
    """What its members say they have is added up before one is written."""
    monkeypatch.setattr(addition, "_MOST_UNPACKED_BYTES", 100)
    archive = pack(published, tmp_path / f"theirs{suffix}")

    done = ask(tmp_path / "data", "results", "add", str(archive), "--as", "alice")

    assert (1, True) == (done.exit_code, "unpacks to more than 100 bytes" in in_one_line(done.stderr))
    assert not (tmp_path / "data" / "added").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("../alice", "expected letters"),
        ("a:b", "expected letters"),
        ("", "expected letters"),
        ("alice", "already exists"),
    ],
)
def test_a_name_is_plain_and_free(added: Path, published: Path, name: str, expected: str):
    """It becomes a folder, and the beginning of names of experiments."""
    before = files_of(added / "added")

    done = ask(added, "results", "add", str(published), "--as", name)

    assert (1, True) == (done.exit_code, expected in in_one_line(done.stderr))
    assert before == files_of(added / "added")
