"""Random realistic faults during a small sweep, repeatedly: `python -m bench.soak --rounds 200`.

Each round causes one fault in a data root that can occur in practice (a run killed at a random moment, a shard cut,
flipped or removed, a damaged manifest, record or database, a left-over folder, a full disk), repeats the plain command
as a user would, and compares everything with an undisturbed sweep:

    lost     results, manifests or rows of the database that are missing afterwards
    torn     partial files: records, manifests, shards, models or databases that cannot be read
    silent   shards, predictions or counts that differ from the undisturbed sweep, without any message
    stuck    repeating the command and following the advice of its error did not help

All counts must be 0. Every run is a separate process, forked after all imports and before any computation.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet  # noqa: F401 - imported before forking, as is all that runs need
import torch  # noqa: F401
from dagster._cli import cli
from rich.console import Console
from rich.table import Table

import tta_pipeline.data.sources.kinds.digits
import tta_pipeline.definitions
import tta_pipeline.evaluation.runner
import tta_pipeline.extras.training.source_training
import tta_pipeline.report.pictures
import tta_pipeline.shards.shard_set_writing
from tta_pipeline.errors import PipelineError
from tta_pipeline.results.database.database import open_metrics, publish_metrics
from tta_pipeline.results.records import latest_record, read_record, record_paths
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.verification import find_shard_problems
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.locations import Locations
from tta_pipeline.util.partitions import CLEAN, TRAIN, Cell

BENCHMARK = """
title: Few digits, few cells
source: {kind: digits, seed: 0, num_test: 60, severity_table: imagenet_c}
corruptions: [gaussian_noise, contrast]
severities: [3, 5]
image_size: 32
shards: {num_shards: 2}
models:
  cnn: {kind: trained, epochs: 1, width: 4}
experiments:
  source: {model: cnn, method: source}
  tent: {model: cnn, method: tent, preset: cifar, batch_size: 32}
"""
NAME = "small"
RANGE = "gaussian_noise|3...contrast|5"
CELLS = tuple(Cell(corruption=c, severity=s) for c in ("gaussian_noise", "contrast") for s in (3, 5))
EXPERIMENTS = ("source", "tent")
BAD = ("lost", "torn", "silent", "stuck")
_MAX_REPEATS = 4
_FORK = multiprocessing.get_context("fork")
_SAME = ("num_samples", "num_correct", "predictions_sha256", "order_hash")
_TO_MOVE = re.compile(r"RecordError: (\S+) is not a result record")


def say(line: str) -> None:
    """Print *line* at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run the rounds, print the problems found, and exit with 1 if anything was lost, torn, silent or stuck."""
    parser = argparse.ArgumentParser(description="Random real faults over a whole small sweep.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="Stop after this time, if rounds are left.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tta-soak-") as folder:
        counts = soak(Path(folder), rounds=arguments.rounds, seed=arguments.seed, until_s=arguments.minutes * 60)
    sys.exit(1 if any(counts[kind] for kind in BAD) else 0)


def soak(folder: Path, *, rounds: int, seed: int, until_s: float) -> Counter[str]:
    """Run the rounds in *folder*, and return how often each fault was caused, and how often each problem was found."""
    project = Project(folder=folder)
    project.create()
    started = time.monotonic()
    first = project.run()
    if first.exit_code:
        sys.exit(f"the undisturbed sweep failed: {first.said[-3000:]}")
    whole_s = time.monotonic() - started
    golden = in_child(_read_facts, project)
    say(f"undisturbed sweep: {whole_s:.1f} s, {len(golden)} facts to keep; seed {seed}")
    counts: Counter[str] = Counter()
    for number in range(1, rounds + 1):
        if time.monotonic() - started > until_s:
            break
        rng = random.Random(f"{seed}-{number}")  # noqa: S311 - each round can be repeated separately
        fault = rng.choice(FAULTS)
        did = fault(project, rng, whole_s)
        repeats = list(project.repeat(and_rebuild=fault is record_damaged))
        counts.update(["rounds", fault.__name__], repeats=len(repeats), helped=sum(advice != "" for advice in repeats))
        problems = in_child(_find_problems, project, golden)
        if repeats[-1]:
            problems.append(("stuck", repeats[-1]))
        counts.update(kind for kind, _ in problems)
        for kind, problem in problems:
            say(f"round {number}, {did}: {kind.upper()}: {problem}")
        if number % 10 == 0:
            elapsed_s = time.monotonic() - started
            bad = ", ".join(f"{counts[kind]} {kind}" for kind in BAD)
            say(f"{number} of {rounds} rounds, {elapsed_s / number:.1f} s each: {bad}; latest: {did}")
    _print(counts, time.monotonic() - started)
    return counts


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended."""

    exit_code: int
    said: str


@dataclass(frozen=True, kw_only=True)
class Project:
    """A data root and a Dagster home in one folder."""

    folder: Path

    @property
    def locations(self) -> Locations:
        """The paths under the data root."""
        return Locations(root=self.folder / "data")

    def create(self) -> None:
        """Write the benchmark file and the settings of Dagster."""
        self.locations.benchmark_files.mkdir(parents=True)
        (self.locations.benchmark_files / f"{NAME}.yaml").write_text(BENCHMARK)
        home = self.folder / "dagster"
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\npython_logs: {python_log_level: INFO}\n")

    def run(
        self, *, kill_after_s: float | None = None, max_file_bytes: int | None = None, remeasure: bool = False
    ) -> RunResult:
        """Materialize the whole benchmark over its range with Dagster's command line, in a separate process."""
        log = self.folder / "run.log"
        process = _FORK.Process(target=_materialize, args=(self, log, max_file_bytes, remeasure))
        process.start()
        process.join(kill_after_s)
        if process.is_alive():
            _kill_group(process)
        process.join()
        return RunResult(exit_code=process.exitcode or 0, said=log.read_text(errors="replace"))

    def repeat(self, *, and_rebuild: bool) -> Iterator[str]:
        """Yield the error of each repeated run, and follow its advice; the last is empty if a run succeeds.

        Args:
            and_rebuild: Whether the database is also rebuilt each time, which reads every record; a run reads only new
                records and the newest ones.
        """
        for _ in range(_MAX_REPEATS):
            ended = self.run()
            said = _cause(ended.said) if ended.exit_code else in_child(_rebuild, self) if and_rebuild else ""
            yield said
            if not said:
                return
            for path in _TO_MOVE.findall(said):
                with suppress(FileNotFoundError):
                    Path(path).unlink()


def in_child(function: Callable[..., Any], *arguments: object) -> Any:
    """Call *function* in a separate process, and return its result: this process must never start a thread."""
    receiver, sender = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=lambda: sender.send(function(*arguments)))
    process.start()
    sender.close()
    result = receiver.recv()
    process.join()
    return result


def _materialize(project: Project, log: Path, max_file_bytes: int | None, remeasure: bool) -> None:  # noqa: FBT001
    os.setsid()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ |= {
        "TTA_DATA_ROOT": str(project.locations.root),
        "DAGSTER_HOME": str(project.folder / "dagster"),
        "PYTHONWARNINGS": "ignore",
    }
    # Dagster uses the module as imported, which was before this data root existed.
    tta_pipeline.definitions.defs = tta_pipeline.definitions.build_definitions(project.locations)
    if max_file_bytes:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    config = {
        "resources": {"compute": {"config": {"device": "cpu", "decode_threads": 1}}},
        "ops": {f"{NAME}__{asset}": {"config": {"remeasure": remeasure}} for asset in _evaluations()},
    }
    cli.main([
        "asset", "materialize", "-m", "tta_pipeline.definitions", "--select", _SELECTED, "--partition-range", RANGE,
        "--config-json", json.dumps(config),
    ])  # fmt: skip


def _rebuild(project: Project) -> str:
    try:
        publish_metrics(project.locations, rebuild=True)
    except PipelineError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _evaluations() -> list[str]:
    return [f"{clean}evaluation__{name}" for clean in ("", "clean__") for name in EXPERIMENTS]


# Everything except the report, whose figures would take most of a round.
_SELECTED = ",".join(
    f"{NAME}/{asset}"
    for asset in (
        *(
            f"{part}{step}"
            for part in ("", "clean/", "train/")
            for step in ("source_split", "tar_shards", "shard_manifest")
        ),
        "source_model",
        *(asset.replace("__", "/") for asset in _evaluations()),
    )
)


def _kill_group(process: Any) -> None:
    # Before the child has made its own group, there is nothing else to kill.
    with suppress(ProcessLookupError):
        if os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _cause(said: str) -> str:
    named = re.findall(r"^(?:tta_pipeline\.errors\.)?(\w+Error: .*)$", said, re.MULTILINE)
    return (named[-1] if named else said[-300:])[:600]


# Faults. ------------------------------------------------------------------------------------------------------------


def killed(project: Project, rng: random.Random, whole_s: float) -> str:
    """Every process of a working run gets SIGKILL at a random moment."""
    undone = _undo(project, rng)
    after_s = rng.uniform(0, whole_s)
    ended = project.run(kill_after_s=after_s, remeasure=True)
    return f"killed after {after_s:.2f} s ({undone}, exit {ended.exit_code})"


def disk_full(project: Project, rng: random.Random, whole_s: float) -> str:  # noqa: ARG001
    """No file can grow beyond a limit, as on a full disk, while a run is working."""
    undone = _undo(project, rng)
    limit = int(2 ** rng.uniform(8, 22))
    ended = project.run(max_file_bytes=limit, remeasure=True)
    return f"files limited to {limit} bytes ({undone}, exit {ended.exit_code})"


def shard_damaged(project: Project, rng: random.Random, whole_s: float) -> str:  # noqa: ARG001
    """A shard is cut, has a flipped bit, or is gone."""
    return _damage(rng.choice(_find_files(project, "small/shards/*/*/*.tar")), rng)


def manifest_damaged(project: Project, rng: random.Random, whole_s: float) -> str:  # noqa: ARG001
    """The manifest, sample index, writer's record or note of verified files is cut, flipped or gone."""
    names = ("manifest.json", "samples.parquet", "writer.json", "verified.json")
    return _damage(rng.choice(_find_files(project, f"small/shards/*/*/{rng.choice(names)}")), rng)


def model_damaged(project: Project, rng: random.Random, whole_s: float) -> str:  # noqa: ARG001
    """The trained weights or their description are cut, flipped or gone."""
    return _damage(rng.choice(_find_files(project, "small/source_models/*")), rng)


def record_damaged(project: Project, rng: random.Random, whole_s: float) -> str:  # noqa: ARG001
    """A result record is truncated to nothing or to a part, as by a file system that lost its end."""
    path = rng.choice(_find_files(project, "small/results/*/**/[0-9]*.json"))
    os.truncate(path, rng.choice((0, rng.randrange(path.stat().st_size))))
    return f"cut {path.relative_to(project.folder)} to {path.stat().st_size} bytes"


def database_damaged(project: Project, rng: random.Random, whole_s: float) -> str:  # noqa: ARG001
    """metrics.duckdb is cut, flipped or gone, or has a foreign write-ahead log next to it."""
    path = project.locations.metrics
    if rng.random() < 0.5:
        return _damage(path, rng)
    path.with_name(f"{path.name}.wal").write_bytes(rng.randbytes(rng.randrange(1, 5000)))
    return "a stray metrics.duckdb.wal"


def leftovers(project: Project, rng: random.Random, whole_s: float) -> str:  # noqa: ARG001
    """Unpublished folders and files of a long-dead process are left over."""
    cell = project.locations.shards(NAME, rng.choice(CELLS))
    for parent in (cell.parent, cell, project.locations.root):
        folder = parent / f".unpublished-{rng.getrandbits(128):032x}-{cell.name}"
        folder.mkdir()
        (folder / "half.tar").write_bytes(rng.randbytes(1000))
        (parent / f".unpublished-{rng.getrandbits(128):032x}-manifest.json").write_bytes(b"{")
        os.utime(folder, (1e9, 1e9))
    return f"left-overs in {cell.parent.name}"


FAULTS = (
    killed, killed, killed, disk_full, shard_damaged, manifest_damaged, model_damaged, record_damaged,
    database_damaged, leftovers,
)  # fmt: skip


def _undo(project: Project, rng: random.Random) -> str:
    """Bring the data root into a state that gives a run some work, and return the state."""
    state = rng.choice(("from nothing", "a cell missing", "all measured again"))
    locations = project.locations
    if state == "from nothing":
        shutil.rmtree(locations.root / NAME)
        locations.metrics.unlink(missing_ok=True)
    elif state == "a cell missing":
        shutil.rmtree(locations.shards(NAME, rng.choice((*CELLS, CLEAN, TRAIN))))
    return state


def _damage(path: Path, rng: random.Random) -> str:
    how = rng.choice(("cut", "flipped", "removed"))
    size = path.stat().st_size
    if how == "removed":
        path.unlink()
    elif how == "cut":
        os.truncate(path, rng.randrange(size))
    else:
        data, bit = bytearray(path.read_bytes()), rng.randrange(8 * size)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
    return f"{how} {path.name} of {path.parent.parent.name}/{path.parent.name}"


def _find_files(project: Project, pattern: str) -> list[Path]:
    return sorted(project.locations.root.glob(pattern))


# Comparisons. -------------------------------------------------------------------------------------------------------


def _read_facts(project: Project) -> Mapping[str, Any]:
    """Return the facts that must be the same after any fault, by name; missing ones are left out."""
    locations = project.locations
    facts: dict[str, Any] = {}
    for cell in (*CELLS, CLEAN, TRAIN):
        folder = locations.shards(NAME, cell)
        if (folder / "manifest.json").exists():
            manifest = ShardSet.open(folder).manifest
            facts[f"shards of {cell.key}"] = (*(shard.sha256 for shard in manifest.shards), manifest.samples_sha256)
    if locations.source_model(NAME, "cnn").exists():
        facts["source model"] = hash_file(locations.source_model(NAME, "cnn"))
    for experiment in EXPERIMENTS:
        for cell in (*CELLS, CLEAN):
            name = f"{experiment}/{cell.corruption}-{cell.severity}"
            record = latest_record(locations.results(NAME), kind="evaluations", name=name)
            if record:
                facts[f"record of {name}"] = tuple(record.facts[each] for each in _SAME)
    return facts


def _find_problems(project: Project, golden: Mapping[str, Any]) -> list[tuple[str, str]]:
    torn = list(_find_torn(project))
    if torn:
        return [("torn", problem) for problem in torn]
    state = _read_facts(project)
    lost = [("lost", name) for name in golden.keys() - state.keys()]
    silent = [("silent", f"{name}: {state[name]}") for name in golden if state.get(name, golden[name]) != golden[name]]
    return [*lost, *silent, *_find_wrong_rows(project, golden), *_find_wrong_records(project, golden)]


def _find_torn(project: Project) -> Iterator[str]:
    """Yield every file that cannot be read."""
    for cell in (*CELLS, CLEAN, TRAIN):
        try:
            yield from find_shard_problems(ShardSet.open(project.locations.shards(NAME, cell)))
        except PipelineError as error:
            yield str(error)
    for path in record_paths(project.locations.root):
        try:
            read_record(path)
        except PipelineError as error:
            yield str(error)
    try:
        with open_metrics(project.locations.metrics) as connection:
            connection.execute("SELECT * FROM leaderboard").fetchall()
    except (PipelineError, duckdb.Error) as error:
        yield str(error)


def _find_wrong_rows(project: Project, golden: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every newest record that is missing in the database, or has other values there."""
    with open_metrics(project.locations.metrics) as connection:
        columns = ", ".join(_SAME)
        sql = f"SELECT experiment, corruption, severity, {columns} FROM evaluations WHERE is_latest"  # noqa: S608
        found = connection.execute(sql)
        rows = {
            f"record of {name}/{corruption}-{severity}": same for name, corruption, severity, *same in found.fetchall()
        }
    for name in golden:
        if name.startswith("record of") and name not in rows:
            yield "lost", f"row of {name}"
        elif name.startswith("record of") and tuple(rows[name]) != golden[name]:
            yield "silent", f"row of {name}: {rows[name]}"


def _find_wrong_records(project: Project, golden: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield every record, older ones too, with a result that differs from the undisturbed sweep."""
    for path in record_paths(project.locations.root):
        name = f"record of {path.parent.parent.name}/{path.parent.name}"
        record = read_record(path)
        if record.kind == "evaluations" and tuple(record.facts[each] for each in _SAME) != golden[name]:
            yield "silent", f"{path} has another result"


def _print(counts: Counter[str], elapsed_s: float) -> None:
    table = Table(title=f"{counts['rounds']} rounds in {elapsed_s / 60:.1f} minutes", box=None)
    table.add_column("what")
    table.add_column("count", justify="right")
    for name in (*dict.fromkeys(fault.__name__ for fault in FAULTS), "repeats", "helped", *BAD):
        table.add_row(name, str(counts[name]))
    Console().print(table)


if __name__ == "__main__":
    main()
