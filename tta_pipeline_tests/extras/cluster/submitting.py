"""A small benchmark, the verb `submit`, and the runs in the history."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess

import dagster as dg
import yaml
from dagster._core.storage.dagster_run import RunRecord

from tta_pipeline.defs.resources.queued_runs import PIECE_TAG, SUBMISSION_TAG
from tta_pipeline_tests.conftest import Project
from tta_pipeline_tests.extras.cluster.noting import Note
from tta_pipeline_tests.result_paths import results_of
from tta_pipeline_tests.web.server import is_running

ROOT = Path(__file__).parents[3]
EXPERIMENTS = ("source", "noting")
CELLS = tuple(f"{corruption}-{severity}" for corruption in ("gaussian_noise", "fog", "contrast") for severity in (3, 5))
FEW = """
title: Few digits, few cells
source: {kind: digits, seed: 0, num_test: 150, severity_table: imagenet_c}
corruptions: [gaussian_noise, fog, contrast]
severities: [3, 5]
image_size: 32
shards: {samples_per_shard: 60}
models:
  cnn: {kind: trained, epochs: 4, width: 8}
experiments:
  source: {model: cnn, method: source}
  noting: {model: cnn, method: "tta_pipeline_tests.extras.cluster.noting:NOTING", batch_size: 50}
  # A piece has two cells, so that one can be finished when its process is killed.
  slow: {model: cnn, method: "tta_pipeline_tests.extras.cluster.noting:NOTING", batch_size: 5, group: long}
  endless: {model: cnn, method: "tta_pipeline_tests.extras.cluster.noting:NOTING", batch_size: 1, group: long}
  failing: {model: cnn, method: "tta_pipeline_tests.extras.cluster.noting:FAILING", severities: [5], group: long}
"""
_OVER_S = 900.0


@dataclass(frozen=True, kw_only=True)
class SubmittingProject(Project):
    """A project on an engine, with the additional environment variables of its processes."""

    engine: str
    more: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a user who keeps data and history here."""
        python_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        own = super().environment
        path = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"  # Ray starts `dagster`, which it looks up
        return {**own, "OMP_NUM_THREADS": "1", "PATH": path, "PYTHONPATH": python_path, **self.more}

    def configure(self, source: Path) -> None:
        """Copy the `dagster.yaml` of the project, with its relative folders moved to this home."""
        self.home.mkdir(parents=True, exist_ok=True)
        text = source.read_text().replace(".dagster", str(self.home / ".dagster"))
        (self.home / "dagster.yaml").write_text(text)

    def submit(self, *options: str) -> CompletedProcess[str]:
        """Type `tta-pipeline submit few`."""
        return self.run("tta-pipeline", "submit", "few", *options)

    def submit_work(self, experiments: Iterable[str], *options: str) -> None:
        """Submit the unfinished work of some experiments; there must be some."""
        submitted = self.submit(*only(experiments), "--engine", self.engine, "--device", "cpu",
                                "--devices", "2", "--compute", "decode_threads=1", *options)  # fmt: skip
        assert 0 == submitted.returncode, submitted.stderr[-3000:]
        assert "submitted" in submitted.stderr, submitted.stderr

    def is_over(self) -> bool:
        """Return whether no piece of the newest submission runs or waits."""
        status = self.submit("--status")
        assert status.returncode in (0, 1), status.stderr[-3000:]
        waiting_or_running = [line.split()[2:4] for line in status.stdout.splitlines()[1:]]
        return bool(waiting_or_running) and all(["0", "0"] == counts for counts in waiting_or_running)

    def wait(self) -> None:
        """Wait until no piece of the newest submission runs or waits."""
        wait_until(self.is_over, what="the end of the submission", within_s=_OVER_S, every_s=3)

    def begin_endless(self) -> set[int]:
        """Submit work that takes hours, and return the process ids of its first two pieces."""
        began = time.time()
        self.submit_work(["endless"])
        wait_until(lambda: 2 == len(self.process_ids(since=began)), what="two pieces under way", within_s=300)
        return self.process_ids(since=began)

    def cancel(self, workers: set[int]) -> float:
        """Type `--cancel`, and return the seconds until the last of *workers* has ended."""
        with ThreadPoolExecutor(1) as threads:
            cancelling = threads.submit(self.submit, "--cancel")
            ended_s = wait_until(lambda: not any(map(is_running, workers)), what="the end of the workers", within_s=60)
            cancelled = cancelling.result()
        assert cancelled.returncode in (0, 1), cancelled.stderr
        sys.stderr.write(f"ended after {ended_s:.1f} s\n")
        return ended_s

    def process_ids(self, *, since: float) -> set[int]:
        """Return the ids of processes that predicted something after the time *since*, in seconds since 1970."""
        return {each.process_id for each in self.notes(since=since)}

    def runs(self) -> list[RunRecord]:
        """Return the runs of all submissions, the oldest first."""
        with self.instance() as instance:
            records = instance.get_run_records()
        return [record for record in reversed(records) if SUBMISSION_TAG in record.dagster_run.tags]

    def runs_of(self, experiment: str) -> list[RunRecord]:
        """Return the runs that evaluate an experiment, the oldest first."""
        return [
            record
            for record in self.runs()
            if any(experiment == key.path[-1] for key in record.dagster_run.asset_selection or ())
        ]

    def records(self, experiment: str) -> dict[str, str]:
        """Return the hash of the predictions of each result of an experiment's cells, by key and number."""
        found: dict[str, str] = {}
        for each in results_of(self.locations.root, "few", experiment):
            if not each.result.key.startswith("clean"):
                number = sum(name.startswith(f"{each.result.key}/") for name in found)
                found[f"{each.result.key}/{number}"] = each.result.evaluations[0].predicted.predictions_sha256
        return found

    def notes(self, *, since: float = 0.0) -> list[Note]:
        """Return the notes of the method `noting` after the time *since*, in seconds since 1970."""
        return [note for note in Note.read(self.locations.root) if note.began_at >= since]

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """Yield the instance with the history, without the settings of its `dagster.yaml` for launching."""
        folder = self.home / "reading"
        folder.mkdir(exist_ok=True)
        storage = yaml.safe_load((self.home / "dagster.yaml").read_text())["storage"]
        (folder / "dagster.yaml").write_text(yaml.safe_dump({"storage": storage, "telemetry": {"enabled": False}}))
        with dg.DagsterInstance.from_config(str(folder)) as instance:
            yield instance


def only(experiments: Iterable[str]) -> list[str]:
    """Return the options that name *experiments*."""
    return [word for name in experiments for word in ("--experiment", name)]


def piece_of(record: RunRecord) -> str:
    """Return the number of the piece of a run."""
    return record.dagster_run.tags[PIECE_TAG]


def first_records() -> list[str]:
    """Return the paths of an experiment's records if each of its cells was evaluated once."""
    return sorted(f"{cell}/0" for cell in CELLS)


def wait_until(condition: Callable[[], object], *, what: str, within_s: float, every_s: float = 0.1) -> float:
    """Wait until *condition* holds, and return the waiting time in seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s, f"waited {within_s:.0f} s for {what}"
        time.sleep(every_s)
    return time.monotonic() - began
