"""The verbs `results void` and `results verify`: a result that counts nowhere, and files that changed since."""

import json
import shutil
from pathlib import Path

import pytest

from tta_pipeline_tests.conftest import Project, copied_results
from tta_pipeline_tests.extras.reproduction.folders import ask, result_of

BECAUSE = "the labels were shuffled"


@pytest.fixture
def root(sweep: Project, tmp_path: Path) -> Path:
    """A data root with results."""
    return copied_results(sweep, tmp_path).locations.root


def num_cells(root: Path, experiment: str = "tent") -> int:
    """Return how many cells of *experiment* the leaderboard has."""
    sql = f"SELECT num_cells FROM leaderboard WHERE experiment = '{experiment}'"
    ((found,),) = (row.values() for row in json.loads(ask(root, "query", "--json", sql).stdout))
    return int(found)


def test_a_void_result_counts_nowhere_until_its_note_is_removed(root: Path, tmp_path: Path):
    """It stays as it is; the note beside it says why, and travels with the files."""
    path = result_of(root, "tent")
    before = path.read_bytes()

    done = ask(root, "results", "void", path.name, "--because", BECAUSE)

    assert done.exit_code == 0, done.output
    assert str(path.relative_to(root)) in done.stdout
    note = path.with_suffix(".void")
    assert BECAUSE == json.loads(note.read_text())["because"]
    assert before == path.read_bytes()
    assert 3 == num_cells(root)
    shutil.copytree(root / "results", tmp_path / "copy" / "results")
    assert 3 == num_cells(tmp_path / "copy")
    sql = "SELECT void FROM results WHERE void IS NOT NULL"
    assert [{"void": BECAUSE}] == json.loads(ask(root, "query", "--json", sql).stdout)
    note.unlink()
    assert 4 == num_cells(root)


def test_a_result_is_named_by_the_beginning_of_its_name(root: Path):
    """Or by its path, as one of two copies is below."""
    path = result_of(root, "tent")

    assert 0 == ask(root, "results", "void", path.name[:12], "--because", BECAUSE).exit_code
    assert [path.with_suffix(".void")] == list(root.rglob("*.void"))


def test_what_is_void_is_evaluated_again(root: Path):
    """It is unfinished, and `why` says so."""
    assert 0 == ask(root, "why", "small", "tent", "contrast|5", "--device", "cpu").exit_code
    ask(root, "results", "void", result_of(root, "tent").name, "--because", BECAUSE)

    assert 1 == ask(root, "why", "small", "tent", "contrast|5", "--device", "cpu").exit_code


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "is '', which matches no result"),
        ("x123", "is 'x123', which matches no result"),
        ("first", "the beginning of 2 results"),
    ],
)
def test_a_name_that_is_not_of_one_result_is_refused(root: Path, name: str, expected: str):
    """And nothing is void."""
    if name == "first":
        path = result_of(root, "tent")
        name = path.name[:8]
        path.with_name(f"{path.name[:21]}0000.json").write_bytes(b"{}")

    done = ask(root, "results", "void", name, "--because", BECAUSE)

    assert (2, True) == (done.exit_code, expected in " ".join(done.stderr.split())), done.stderr
    assert not list(root.rglob("*.void"))


def test_one_of_two_copies_is_named_by_its_path(root: Path, tmp_path: Path):
    """What others published may be one's own result; each counts for itself."""
    assert 0 == ask(root, "results", "publish", "small", str(tmp_path / "out")).exit_code
    assert 0 == ask(root, "results", "add", str(tmp_path / "out"), "--as", "alice").exit_code
    theirs = result_of(root / "added" / "alice", "tent")

    by_name = ask(root, "results", "void", theirs.name, "--because", BECAUSE)
    by_path = ask(root, "results", "void", str(theirs), "--because", BECAUSE)

    assert (2, 0) == (by_name.exit_code, by_path.exit_code)
    assert (4, 3) == (num_cells(root), num_cells(root, "alice:tent"))


def test_intact_results_are_verified(root: Path):
    """The answer says how many there are."""
    done = ask(root, "results", "verify")

    num_results = len(list((root / "results").rglob("*-*.json")))
    assert (0, f"{num_results} results, 0 problems") == (done.exit_code, done.stdout.splitlines()[-1])


def test_each_damaged_file_is_a_line(root: Path):
    """Also where its size is the same, which the leaderboard cannot see; the exit status is then 1."""
    rotten, cut = result_of(root, "tent"), result_of(root, "norm")
    rotten.write_bytes(rotten.read_bytes().replace(b"tent", b"tint"))
    cut.write_bytes(cut.read_bytes()[:100])
    predictions = sorted((root / "results" / "small" / "contrast-3").glob("*.parquet"))
    predictions[0].write_bytes(predictions[0].read_bytes()[::-1])
    predictions[1].unlink()

    done = ask(root, "results", "verify")

    *problems, last = done.stdout.splitlines()
    assert 1 == done.exit_code
    assert last.endswith("results, 4 problems")
    assert 4 == len(problems)
    for path in (rotten, cut, *predictions[:2]):
        assert 1 == sum(str(path) in problem for problem in problems)


def test_the_leaderboard_trusts_what_it_has_read(root: Path):
    """A bit that flipped since is for `results verify` to find."""
    ask(root, "leaderboard")
    path = result_of(root, "tent")
    path.write_bytes(path.read_bytes().replace(b"tent", b"tint"))

    assert (0, 1) == (ask(root, "leaderboard").exit_code, ask(root, "results", "verify").exit_code)


def test_results_of_others_are_verified_too(root: Path, tmp_path: Path):
    """They lie in the same data root."""
    ask(root, "results", "publish", "small", str(tmp_path / "out"))
    ask(root, "results", "add", str(tmp_path / "out"), "--as", "alice")
    theirs = result_of(root / "added" / "alice", "tent")
    theirs.write_bytes(b"{}")

    done = ask(root, "results", "verify")

    assert (1, True) == (done.exit_code, str(theirs) in done.stdout)
