"""Whatever a verb is given, it ends soon with one line that says what was found, and status 1 or 2."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import tta_pipeline as tta
from tta_pipeline.cli import main
from tta_pipeline.errors import SettingsError, ShardError
from tta_pipeline.evaluation.machine import Machine
from tta_pipeline.util.local_paths import url_problem
from tta_pipeline_tests.conftest import in_one_line, launcher, write_tree
from tta_pipeline_tests.faults.full_disk import run_limited

PLACES = ("file", "empty", "missing", "x" * 300, "noise.tar", "empty.tar", "folders", "listed", "foldered")
VERBS: dict[str, Callable[[str], list[str]]] = {
    "make": lambda place: ["shards", "make", place, "out"],
    "make --class-map": lambda place: ["shards", "make", "tree", "out", "--class-dir-depth", "0", "--class-map", place],
    "verify": lambda place: ["shards", "verify", place],
    "index": lambda place: ["shards", "index", place],
    "index --class-map": lambda place: ["shards", "index", "empty", "--class-map", place],
    "index --devkit": lambda place: ["shards", "index", "empty", "--devkit", place],
    "split": lambda place: ["shards", "split", place, "out", "--parts", "2"],
    "bench": lambda place: ["shards", "bench", place, "--loader", "indexed", "--repeats", "1"],
    "new-benchmark": lambda place: ["new-benchmark", "x", place, "--output", "-"],
}
URL = "s3://bucket/x"
AT_A_URL: tuple[list[str], ...] = (
    ["shards", "make", "tree", URL, "--class-dir-depth", "0", "--num-shards", "1"],
    ["shards", "make", URL, "out", "--class-dir-depth", "0", "--num-shards", "1"],
    ["shards", "make", "--config", "at_a_url.yaml"],
    ["shards", "split", "tree", URL, "--parts", "2"],
    ["shards", "split", URL, "out", "--parts", "2"],
    ["shards", "verify", URL],
    ["shards", "index", "hf://datasets/a/b", "--into", URL],
    ["results", "publish", "digits_c", URL],
    ["results", "reproduce", URL],
    ["leaderboard", "--output", URL],
    ["compare", "a", "b", "--output", URL],
    ["new-benchmark", "later", "--output", URL],
    ["new-benchmark", "later", URL],
    ["download", "imagenet_c", URL],
    ["init", URL],
    ["run", "digits_c", "--cache-dir", URL],
    ["prune", "--dry-run", "--decoded", URL],
)
FAULTS = (
    ["shards", "make", "tree", "out", "--expect-md5", "without"],
    ["shards", "make", "tree", "out", "--expect-md5", "noise.tar=12"],
    ["shards", "make", "tree", "out", "--class-pattern", "("],
    ["shards", "make", "tree", "out", "--class-dir-depth", "0", "--num-shards", "-1"],
    ["shards", "make", "tree", "out", "--class-dir-depth", "0", "--order", "dirichlet", "--delta", "nan"],
    ["shards", "make", "tree", "file", "--class-dir-depth", "0"],
    ["shards", "make", "tree", "file/below", "--class-dir-depth", "0"],
    ["shards", "index", "http://[", "--into", "out"],
    ["shards", "index", "s3://", "--into", "out"],
    ["shards", "bench", "http://["],
    ["new-benchmark", "later", "--output", "empty"],
    ["new-benchmark", "later", "--output", "file/below"],
    ["new-benchmark", "../../up"],
    ["leaderboard", "--output", "empty"],
    ["leaderboard", "--rows", "0"],
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each place that is none."""
    root = tmp_path_factory.mktemp("wrong")
    write_tree(root / "tree", classes={"n01": 2, "n02": 2})
    (root / "file").write_text("x")
    (root / "empty.tar").touch()
    (root / "noise.tar").write_bytes(b"\xff" * 2048)
    for folder in ("empty", "folders/a.tar", "listed", "foldered/manifest.json"):
        (root / folder).mkdir(parents=True)
    (root / "listed" / "manifest.json").write_text("[1, 2]")
    assert CliRunner().invoke(main, ["results", "rebuild"], env={"TTA_DATA_ROOT": str(root / "data")}).exit_code == 0
    return root


@pytest.fixture
def refused(places: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that calls a verb and sees that it refuses in one line."""
    monkeypatch.chdir(places)

    def refused(arguments: list[str]) -> str:
        finished = CliRunner().invoke(main, arguments, env={"TTA_DATA_ROOT": str(places / "data")})
        assert isinstance(finished.exception, SystemExit), (arguments, finished.exception)
        return said_in_one_line(finished.exit_code, finished.stderr)

    return refused


def said_in_one_line(status: int, errors: str) -> str:
    """Return the one line that is no hint at the usage."""
    assert status in (1, 2), errors
    assert "Traceback" not in errors
    lines = [line for line in in_one_line(errors).splitlines() if line and not line.startswith(("Usage: ", "Try "))]
    assert 1 == len(lines), errors
    return lines[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("verb", VERBS)
def test_a_place_that_is_none_is_refused(verb: str, refused):
    """A file for a folder, nothing, foreign bytes, a folder for a file, and more."""
    for place in PLACES:
        refused(VERBS[verb](place))


@pytest.mark.parametrize("arguments", AT_A_URL, ids=lambda arguments: " ".join(arguments)[:60])
def test_a_url_in_place_of_a_path_is_refused(arguments: list[str], refused, places: Path):
    """No folder called `s3:` is made; the line says how what is written comes there, or what is there comes here."""
    (places / "at_a_url.yaml").write_text(f"sources: [tree]\noutput: {URL}\nnum_shards: 1\nclass_dir_depth: 0\n")

    assert URL in refused(arguments)
    assert not (places / "s3:").exists()


@pytest.mark.parametrize(
    "arguments", [["leaderboard"], ["init", "mine"], ["doctor"]], ids=lambda arguments: arguments[0]
)
def test_a_data_root_at_a_url_is_refused(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It would become a folder here."""
    monkeypatch.chdir(tmp_path)

    finished = CliRunner().invoke(main, arguments, env={"TTA_DATA_ROOT": URL})

    assert URL in said_in_one_line(finished.exit_code, finished.stderr)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", [URL, Path(URL)], ids=["text", "path"])
def test_shards_from_python_are_not_written_to_a_url(output: str | Path, places: Path):
    """Also where a `Path` has made one slash of two."""
    with pytest.raises(ShardError) as caught:
        tta.shard(places / "tree", output, num_shards=1)

    assert URL in str(caught.value)


@pytest.mark.parametrize("name", ["cache_dir", "local_scratch_dir"])
def test_a_folder_of_the_machine_is_not_at_a_url(name: str):
    """As a setting of the resource `compute`."""
    with pytest.raises(SettingsError) as caught:
        Machine(**{name: URL})

    assert name in str(caught.value)


def test_a_url_of_a_file_is_a_path():
    """Which the line has."""
    assert url_problem("file:///data/my%20shards").endswith(" /data/my shards")
    assert "" == url_problem("data/a:b")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("arguments", FAULTS, ids=lambda arguments: " ".join(arguments)[:60])
def test_an_argument_that_cannot_be_is_refused(arguments: list[str], refused):
    """Numbers that do not count, expressions that are none, and so with functions and locations."""
    refused(arguments)


def test_a_reader_that_has_enough_is_no_error(places: Path):
    """`| head -1` ends the verb in silence."""
    command = ["tta-pipeline", "query", "--format", "csv", "FROM range(1000000)"]
    environment = {**os.environ, "TTA_DATA_ROOT": str(places / "data")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    with launcher().start(command, env=environment, **pipes) as verb:
        assert "range\n" == verb.stdout.readline()
        verb.stdout.close()
        assert "" == verb.stderr.read()


@pytest.mark.parametrize("verb", ["leaderboard", "results rebuild", "new-benchmark"])
def test_a_data_root_that_is_a_file_is_refused(places: Path, verb: str):
    """In one line."""
    arguments = [*verb.split(), *(["x", "--like", "imagenet_c"] if verb == "new-benchmark" else [])]

    finished = CliRunner().invoke(main, arguments, env={"TTA_DATA_ROOT": str(places / "file")})

    assert isinstance(finished.exception, SystemExit), finished.exception
    said_in_one_line(finished.exit_code, finished.stderr)


ONE_AFTER_THE_OTHER = """
import sys
from tta_pipeline.cli import main
ended = []
for arguments in (
    ["query", "--format", "csv", "SELECT chr(228) AS letter"],
    ["new-benchmark", "later", "--like", "imagenet_c", "--output", sys.argv[1] + "/later.yaml"],
    ["shards", "verify", sys.argv[1]],
):
    try:
        main(arguments)
    except SystemExit as end:
        ended.append(end.code)
print(ended)
"""


def test_a_terminal_of_ascii_shows_other_letters_by_their_numbers(places: Path):
    """With neither HOME nor UTF-8, an answer and a path."""
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}
    environment |= {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii:strict"}
    (places / "Bär").mkdir(exist_ok=True)

    finished = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, "Bär"], cwd=places, check=False, capture_output=True, text=True,
        env=environment | {"TTA_DATA_ROOT": str(places / "data")}, errors="replace", timeout=240,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip

    assert 0 == finished.returncode, finished.stderr
    assert "Traceback" not in finished.stderr
    assert finished.stdout.startswith("letter\n\\xe4\n")
    assert finished.stdout.endswith("[0, 0, 1]\n")


def test_a_full_disk_is_one_line(places: Path):
    """As a bound on the size of files, which the kernel reports in the same way."""
    command = ("query", "--format", "csv", "--output", "answer.csv", "FROM range(1000000)")
    environment = {**os.environ, "TTA_DATA_ROOT": str(places / "data")}

    status, errors = run_limited(8192, *command, cwd=places, env=environment)

    assert "File too large" in said_in_one_line(status, errors)
    assert not [path for path in places.iterdir() if "answer.csv" in path.name]


@pytest.mark.skipif(os.getuid() != 0, reason="needs to become another user, whom a folder can keep out")
def test_a_folder_that_cannot_be_read_is_one_line(tmp_path: Path):
    """To a user who has no right to it."""
    tmp_path.chmod(0o711)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == 0 and parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o711)
    (tmp_path / "closed").mkdir(mode=0o700)
    script = (
        "import os, sys, tta_pipeline.cli, tta_pipeline.cli.index_everything, tta_pipeline.shards.verification\n"
        "import colorsys, mmap, tta_pipeline.cli.shard_everything, tta_pipeline.extras.new_project.draft_benchmark\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "tta_pipeline.cli.main(sys.argv[1:])\n"
    )
    for arguments in (["shards", "verify"], ["shards", "index"], ["new-benchmark", "x"], ["shards", "make"]):
        output = ["out"] if arguments == ["shards", "make"] else []
        command = ["python", "-c", script, *arguments, str(tmp_path / "closed"), *output]
        environment = {**os.environ, "TTA_DATA_ROOT": str(tmp_path / "closed" / "data")}

        finished = launcher().run(command, environment, timeout_s=240, folder=tmp_path)

        said_in_one_line(finished.returncode, finished.stderr)
