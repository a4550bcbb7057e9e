"""Result files: one for each measurement, named by the hashes of its inputs and of its content.

    <data root>/results/<benchmark>/
      fog-5/<fingerprint>-<content>.json       an evaluation: one segment of a stream, with all of its cells and batches
      fog-5/<fingerprint>-<predictions>.parquet  the prediction for each of its samples, if they were kept
      held_out/speckle_noise-5/...             an evaluation of a tuning's trial
      tunings/..., trainings/...               a choice of hyperparameters; the training of a source model
      loaders/<time>-<content>.json            a measurement of loaders, which is never repeated
      plans/<experiment>.json                  the results that the experiment requires now, see `plans`
      fog-5/<fingerprint>-<content>.void       why a file counts nowhere, see `void_result`

Names have the first 16 and 8 hex digits of two sha256: of everything that determines the result, and of the bytes of
the file. So a file proves itself, equal names are equal files, and files of several machines may be copied into one
folder. A file is renamed into its place once, and never written again.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic_core import from_json

from tta_pipeline.errors import RecordError
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.names import RESULT_NAME, problem_of_place, void_name
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline.results.tuning_record import TuningRun
from tta_pipeline.util.files import advice, write_atomically
from tta_pipeline.util.json_values import JsonObject

Kind = Literal["evaluation", "training", "tuning", "loaders"]
FORMAT = 7
"""Version of the form of result files; only this one is read."""
_TEXTS = ("kind", "benchmark", "key", "run_id", "started_at", "finished_at")
_FIELDS = {"format", *_TEXTS, "fingerprint", "previous", "versions", "payload"}
_ADVICE = "move it out of the results folder, or restore the original file"
MADE_EARLIER = (
    "was made by an earlier version of tta_pipeline; expected a result of this version: run "
    "`tta-pipeline run BENCHMARK` to measure it again"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A measurement with its origin.

    Raises:
        RecordError: a fact is not finite, or facts contradict each other, on writing or reading.
    """

    kind: Kind
    benchmark: str
    """Name of the benchmark: of its file, or `<file>/<dataset>`."""
    key: str
    """Folder below the benchmark's results, such as `fog-5`."""
    fingerprint: str | None
    """sha256 of everything that determines the result; None for a measurement of loaders."""
    previous: str | None = None
    """sha256 of the previous segment's file, from whose state this segment continued; None for the first."""
    run_id: str
    started_at: str
    finished_at: str
    """Times in UTC; they order files only if nothing else does."""
    versions: Mapping[str, str]
    evaluations: tuple[Evaluation, ...] = ()
    """Evaluation of each cell of the segment, in order."""
    training: TrainingRun | None = None
    tuning: TuningRun | None = None
    loaders: JsonObject | None = None

    def encoded(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            ValueError: a number is infinite or NaN.
        """
        content = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in (*_TEXTS, "fingerprint", "previous")},
            "versions": dict(self.versions),
            "payload": self._payload(),
        }
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()

    def _payload(self) -> JsonObject:
        if self.training is not None:
            return self.training.facts()
        if self.tuning is not None:
            return self.tuning.facts()
        if self.loaders is not None:
            return self.loaders
        cells = [row.facts() for row in self.evaluations]
        shared = {name: value for name, value in cells[0].items() if all(cell[name] == value for cell in cells)}
        return {"shared": shared, "cells": [{k: v for k, v in cell.items() if k not in shared} for cell in cells]}


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResult:
    """A result in its file."""

    result: Result
    path: Path
    sha256: str
    """sha256 of the bytes of the file."""


def utc_now() -> str:
    """Return the current time in UTC, in the format of result files."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def store_result(
    benchmark_results: Path, result: Result, *, before: Callable[[str], None] = lambda _: None
) -> StoredResult:
    """Write *result* into its folder under *benchmark_results*, the folder of its benchmark's results.

    Args:
        benchmark_results: Folder of the results of the benchmark.
        result: The measurement.
        before: Called with the sha256 of the file before it appears.

    Raises:
        RecordError: a fact is not finite, facts contradict each other, or the file cannot be written.
    """
    folder = benchmark_results / result.key
    try:
        data = result.encoded()
        stored = parse_result(folder / name_of(result, data), data)
        before(stored.sha256)
        write_atomically(stored.path, data)
    except RecordError as error:
        raise RecordError(
            f"{folder}: a result of run {result.run_id} is inconsistent and was not written: {error}"
        ) from error
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{folder}: a result of run {result.run_id} cannot be written ({error}); expected finite numbers and free "
            "disk space"
        ) from error
    return stored


def name_of(result: Result, data: bytes) -> str:
    """Return the name of the file of *result*, whose bytes are *data*."""
    if result.fingerprint is None:
        first = datetime.fromisoformat(result.finished_at).strftime("%Y%m%dT%H%M%S")
    else:
        first = result.fingerprint[:16]
    return f"{first}-{hashlib.sha256(data).hexdigest()[:8]}.json"


def read_result(path: Path) -> StoredResult:
    """Read the result in *path*, and check its hash, its place and the consistency of its facts.

    Raises:
        RecordError: the file is unreadable, damaged, foreign or from an earlier version; the message has the path.
    """
    try:
        return parse_result(path, path.read_bytes())
    except OSError as error:
        raise RecordError(
            f"{path} cannot be read ({error.strerror}); expected a readable result file: {_ADVICE}"
        ) from error
    except RecordError as error:
        fix = "" if MADE_EARLIER in str(error) else f": {_ADVICE}"
        raise RecordError(f"{path} {error}{fix}") from error


def parse_result(path: Path, data: bytes) -> StoredResult:
    """Return the result in *data*, the content of the file at *path*.

    Raises:
        RecordError: the content is damaged, foreign or from an earlier version; the message omits its path.
    """
    sha256 = hashlib.sha256(data).hexdigest()
    content = _parse_content(data, sha256, path.name)
    payload = content.pop("payload")
    result = Result(**content, **_parse_payload(content["kind"], payload))
    if path.name != name_of(result, data):
        raise RecordError(f"has the content of another file; expected the name {name_of(result, data)}")
    if odd := next((row for row in result.evaluations if row.setup.fingerprint != result.fingerprint), None):
        raise RecordError(
            f"has an evaluation with the fingerprint {odd.setup.fingerprint[:16]}, which belongs to another segment; "
            "expected only evaluations of its own segment"
        )
    if problem := problem_of_place(path, result.benchmark, result.key):
        raise RecordError(problem)
    return StoredResult(result=result, path=path, sha256=sha256)


def predictions_path(folder: Path, row: Evaluation) -> Path | None:
    """Return the file in *folder* with the predictions of *row*; None if they were not kept."""
    if row.predicted.samples_sha256 is None:
        return None
    return folder / f"{row.setup.fingerprint[:16]}-{row.predicted.samples_sha256[:8]}.parquet"


def void_result(path: Path, because: str) -> Path:
    """Record why the result in *path* counts nowhere, in a file next to it; return that file.

    Raises:
        RecordError: there is no such result, or the file cannot be written.
    """
    if not RESULT_NAME.fullmatch(path.name) or not path.exists():
        raise RecordError(
            f"{path} is not a result file; expected the path of an existing file called <fingerprint>-<content>.json"
        )
    target = path.with_name(void_name(path.name))
    try:
        write_atomically(target, (json.dumps({"because": because, "voided_at": utc_now()}) + "\n").encode())
    except OSError as error:
        raise RecordError(
            f"{target} cannot be written ({error.strerror}), so the result was not withdrawn; expected a writable "
            f"folder: {advice(error)}"
        ) from error
    return target


def _parse_content(data: bytes, sha256: str, name: str) -> dict[str, Any]:
    """Return the fields of a result, without its format; *sha256* is the hash of *data*."""
    match = RESULT_NAME.fullmatch(name)
    if match is None:
        raise RecordError("is not a result file; expected a name such as <fingerprint>-<content>.json")
    if match[2] != sha256[:8]:
        raise RecordError(f"is damaged: it hashes to {sha256[:8]}; expected {match[2]}, as in its name")
    try:
        content = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise RecordError(f"is not a result file ({error!r:.200}); expected JSON") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RecordError(MADE_EARLIER)
    if content.keys() != _FIELDS:
        odd = sorted(map(str, content.keys() ^ _FIELDS))
        raise RecordError(
            f"is not a result file, with missing or unknown fields ({', '.join(odd[:5])}); expected the fields "
            f"{', '.join(sorted(_FIELDS))}"
        )
    expected: Sequence[tuple[str, Any, str]] = (
        *((name, str, "text") for name in _TEXTS),
        ("fingerprint", str | None, "text or null"),
        ("previous", str | None, "text or null"),
        ("versions", dict, "an object"),
        ("payload", dict, "an object"),
    )
    for field, kind, words in expected:
        if not isinstance(content[field], kind):
            raise RecordError(f"is not a result file: {field} is {content[field]!r:.60}; expected {words}")
    for field in ("started_at", "finished_at"):
        try:
            datetime.fromisoformat(content[field])
        except ValueError:
            raise RecordError(
                f"is not a result file: {field} is {content[field]!r:.60}; expected an ISO 8601 time"
            ) from None
    del content["format"]
    return content


def _parse_payload(kind: str, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload as a field of `Result`."""
    if kind == "training":
        return {"training": TrainingRun.from_facts(payload)}
    if kind == "tuning":
        return {"tuning": TuningRun.from_facts(payload)}
    if kind == "loaders":
        return {"loaders": payload}
    if kind != "evaluation":
        raise RecordError(
            f"is not a result file: its kind is {kind!r:.60}; expected evaluation, training, tuning or loaders"
        )
    if payload.keys() != {"shared", "cells"} or not payload["cells"]:
        raise RecordError("is not a result file: its payload has no cells; expected an evaluation of at least one cell")
    rows = [Evaluation.from_facts({**payload["shared"], **cell}) for cell in payload["cells"]]
    return {"evaluations": tuple(rows)}
