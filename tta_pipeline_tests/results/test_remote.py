"""Records that travel by a server of objects arrive whole, once each, in an order."""

import hashlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import StreamError
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.record_exchange import FetchResult, Sender, fetch_records
from tta_pipeline.results.records import latest_record, read_record, record_paths
from tta_pipeline_tests.conftest import SMALL, Project, copy_benchmark, new_project, start_python
from tta_pipeline_tests.loading.servers import s3_server
from tta_pipeline_tests.results.database.made import made_environment, record, record_of_part

URL = "s3://results/of/mine"
FETCHER = """
import sys
from pathlib import Path
from tta_pipeline.results import record_exchange
take = record_exchange._store_record
def slowly(*arguments):
    take(*arguments)
    print("took", flush=True)
    sys.stdin.readline()
record_exchange._store_record = slowly
record_exchange.fetch_records(Path(sys.argv[1]), sys.argv[2])
"""
"""Waits after each record that it has taken over."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server that speaks S3."""
    with s3_server() as address:
        yield address


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An empty bucket on the server, which is named in the environment with its keys."""
    import s3fs

    for name, value in {"ENDPOINT_URL": server, "ACCESS_KEY_ID": "me", "SECRET_ACCESS_KEY": "secret"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    s3fs.S3FileSystem.clear_instance_cache()
    file_system = s3fs.S3FileSystem(use_listings_cache=False)
    file_system.mkdir("s3://results")
    yield file_system
    file_system.rm("s3://results", recursive=True)


@pytest.fixture
def machines(tmp_path: Path) -> tuple[Locations, Locations, Locations]:
    """The data roots of two machines that evaluate, and of the user."""
    one, other, user = (Locations(root=tmp_path / name) for name in ("one", "other", "user"))
    return one, other, user


def runs(locations: Locations) -> list[str]:
    """Return the runs of the records of one cell in their order; each is read and proved."""
    found = [read_record(path) for path in record_paths(locations.root)]
    assert list(range(1, len(found) + 1)) == [each.sequence for each in found]
    return [each.run_id for each in found]


@pytest.mark.usefixtures("bucket")
def test_records_of_two_machines_follow_those_that_are_here(machines: tuple[Locations, Locations, Locations]):
    """Both have a first and a second record of a cell; in the end there are five, once each, ordered by their start."""
    one, other, user = machines
    record(user, run_id="mine", started_at="2026-02-01T00:00:00+00:00")
    for day, (locations, run_id) in enumerate(((one, "one-1"), (other, "other-1"), (one, "one-2"), (other, "other-2"))):
        record(locations, run_id=run_id, started_at=f"2026-01-0{day + 1}T00:00:00+00:00")
    senders = [Sender(root=each.root, url=URL) for each in (one, other)]

    assert [2, 2] == [sender.send() for sender in senders]
    assert [0, 0] == [sender.send() for sender in senders]
    assert 0 == Sender(root=one.root, url=URL).send()
    assert FetchResult(num_fetched=4, num_known=0, set_aside=()) == fetch_records(user.root, URL)
    assert ["mine", "one-1", "other-1", "one-2", "other-2"] == runs(user)

    before = {path: path.read_bytes() for path in record_paths(user.root)}
    assert FetchResult(num_fetched=0, num_known=4, set_aside=()) == fetch_records(user.root, URL)
    assert before == {path: path.read_bytes() for path in record_paths(user.root)}


@pytest.mark.usefixtures("bucket")
def test_what_was_fetched_is_not_sent_as_another_record(machines: tuple[Locations, Locations, Locations]):
    """A record that has another number here is the same; only what is new here goes there."""
    one, _, user = machines
    record(user, run_id="mine")
    record(one, run_id="one")
    Sender(root=one.root, url=URL).send()
    fetch_records(user.root, URL)

    assert 1 == Sender(root=user.root, url=URL).send()
    assert 1 == fetch_records(one.root, URL).num_fetched
    assert ["one", "mine"] == runs(one)
    assert 0 == Sender(root=one.root, url=URL).send()


@pytest.mark.usefixtures("bucket")
def test_records_of_several_sets_and_kept_predictions_come_along(machines: tuple[Locations, Locations, Locations]):
    """Each arrives in the folder that it had, and the file of predictions that a record names lies where it did."""
    one, _, user = machines
    record_of_part(one, "imagenet_r")
    data = b"predictions of each sample"
    sha256 = hashlib.sha256(data).hexdigest()
    made = record(one, samples_sha256=sha256)
    kept = one.predictions("made") / made.path.relative_to(one.results("made") / "evaluations").parent
    kept.mkdir(parents=True)
    (kept / f"{sha256}.parquet").write_bytes(data)
    Sender(root=one.root, url=URL).send()

    fetch_records(user.root, URL)

    expected = {path.relative_to(one.root) for path in one.root.rglob("*.*") if path.is_file()}
    assert expected == {path.relative_to(user.root) for path in user.root.rglob("*.*") if path.is_file()} - {
        Path(".fetch.lock")
    }
    assert data == (user.root / kept.relative_to(one.root) / f"{sha256}.parquet").read_bytes()


def test_damaged_and_foreign_objects_are_set_aside(machines: tuple[Locations, Locations, Locations], bucket: Any):
    """A changed byte, another's name or folder, nothing: each is named; what is sound arrives."""
    one, _, user = machines
    record(one, run_id="sound")
    record(one, run_id="damaged")
    Sender(root=one.root, url=URL).send()
    sound, damaged = sorted(bucket.find(URL))
    data = bucket.cat_file(damaged)
    bucket.pipe_file(damaged, data.replace(b'"run_id":"damaged"', b'"run_id":"forgery"'))
    bucket.pipe_file(f"{sound.rpartition('/')[0]}/000001-{'0' * 64}.json", bucket.cat_file(sound))
    bucket.pipe_file(sound.replace("/made/", "/other/"), bucket.cat_file(sound))
    bucket.pipe_file(f"{sound.rpartition('/')[0]}/000002-{'1' * 64}.json", b"")
    bucket.pipe_file(f"{URL}/notes.txt", b"of somebody")
    bucket.pipe_file(f"{URL}/../../../evil/results/evaluations/x/000001-{'0' * 64}.json", b"{}")

    fetched = fetch_records(user.root, URL)

    assert (1, 0) == (fetched.num_fetched, fetched.num_known)
    assert ["sound"] == runs(user)
    assert 4 == len(fetched.set_aside)
    told = "\n".join(fetched.set_aside)
    assert "is damaged: it hashes to" in told
    assert "is foreign: its identity is" in told
    assert "is foreign: it is" in told
    assert "remove it there" in told
    assert f"{'1' * 64}.json" in told


@pytest.mark.usefixtures("bucket")
def test_a_killed_fetch_is_finished_by_the_next(machines: tuple[Locations, Locations, Locations]):
    """After SIGKILL what had arrived is there, and the next takes the rest; each is there once."""
    one, _, user = machines
    for number in range(5):
        record(one, run_id=f"one-{number}", started_at=f"2026-01-0{number + 1}T00:00:00+00:00")
    Sender(root=one.root, url=URL).send()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with start_python(FETCHER, user.root, URL, env=made_environment(), **pipes) as fetcher:
        assert fetcher.stdout.readline()
        fetcher.stdin.write("\n")
        fetcher.stdin.flush()
        assert fetcher.stdout.readline()
        fetcher.kill()

    assert ["one-0", "one-1"] == runs(user)
    assert FetchResult(num_fetched=3, num_known=2, set_aside=()) == fetch_records(user.root, URL)
    assert [f"one-{number}" for number in range(5)] == runs(user)


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://example.org/results", r"'https:'.*\bs3, gs\b"),
        ("data/results", r"\bs3, gs\b"),
        ("s3://results/a b", r"' ' .*\bs3\b"),
    ],
)
def test_only_buckets_take_records(tmp_path: Path, url: str, found: str):
    """Other places cannot be written to whole; nothing is asked of them."""
    with pytest.raises(StreamError, match=found):
        fetch_records(tmp_path, url)
    with pytest.raises(StreamError, match=found):
        Sender(root=tmp_path, url=url).send()


def own_sweep(folder: Path, sweep: Project) -> Project:
    """Return a copy of the small benchmark with its shards and model, but without results and database."""
    folder.mkdir()
    project = new_project(folder)
    project.add_benchmark("small", SMALL)
    copy_benchmark(sweep, project, without=("results", "report", "states", "source"))
    return project


@pytest.mark.slow
@pytest.mark.usefixtures("bucket")
def test_two_machines_evaluate_and_the_user_has_everything(
    tmp_path: Path, sweep: Project, monkeypatch: pytest.MonkeyPatch
):
    """One is killed in the middle and starts again; the user's command brings what both recorded into one database."""
    monkeypatch.setenv("TTA_RESULTS_URL", URL)
    one, other = (own_sweep(tmp_path / name, sweep) for name in ("one", "other"))
    command = ["-m", "dagster", "asset", "materialize", "-m", "tta_pipeline.definitions", "--select"]
    norm = [sys.executable, *command, "small/evaluation/norm", "--partition-range", "contrast|3...contrast|5"]
    with subprocess.Popen(norm, env=other.environment, stderr=subprocess.DEVNULL) as killed:
        while not list(record_paths(other.locations.root)):
            assert killed.poll() is None
        killed.kill()
    again = other.materialize("small/evaluation/norm", "--partition-range", "contrast|3...contrast|5")
    assert 0 == again.returncode, again.stderr[-3000:]
    config = '{"ops": {"small__evaluation__source": {"config": {"keep_predictions": true}}}}'
    finished = one.materialize("small/evaluation/source", "--partition", "contrast|3", "--config-json", config)
    assert 0 == finished.returncode, finished.stderr[-3000:]
    assert f"{URL}: 1 record sent" in finished.stderr

    (tmp_path / "user").mkdir()
    user = new_project(tmp_path / "user")
    for number in range(2):
        fetched = user.run("tta-pipeline", "results", "fetch")
        assert 0 == fetched.returncode, fetched.stderr
        assert f"{3 * (1 - number)} records fetched, {3 * number} known" in fetched.stdout
    (facts,) = json.loads(user.run("tta-pipeline", "results", "fetch", "--json").stdout)
    assert (0, 3) == (facts["num_fetched"], facts["num_known"])
    assert "" == user.run("tta-pipeline", "results", "fetch", "--quiet").stdout

    with open_metrics(user.locations.metrics) as connection:
        rows = connection.execute("SELECT experiment, corruption, severity FROM evaluations").fetchall()
    expected = {("norm", "contrast", 3): 1, ("norm", "contrast", 5): 1, ("source", "contrast", 3): 1}
    assert expected == Counter(rows)
    newest = latest_record(user.locations.results("small"), kind="evaluations", name="source/contrast-3")
    assert newest is not None
    row = newest.evaluation
    kept = user.locations.predictions("small") / "source/contrast-3" / f"{row.samples_sha256}.parquet"
    assert row.predictions_sha256 == SamplePredictions.read(kept, sha256=row.samples_sha256).sha256


@pytest.mark.usefixtures("bucket")
def test_a_bucket_that_is_not_there_ends_a_run_before_it_computes(
    tmp_path: Path, sweep: Project, monkeypatch: pytest.MonkeyPatch
):
    """The error names the URL; nothing is evaluated that could not be sent."""
    monkeypatch.setenv("TTA_RESULTS_URL", "s3://nowhere/results")
    project = own_sweep(tmp_path / "one", sweep)

    refused = project.materialize("small/evaluation/source", "--partition", "contrast|3")

    assert 0 != refused.returncode
    assert "s3://nowhere/results: found" in refused.stderr
    assert not list(record_paths(project.locations.root))
