"""Results in the form that evaluations write, with some figures made up for tests."""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.evaluation_parts import CalibrationBins, ShiftFacts
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.results.names import find_results
from tta_pipeline.results.plans import (
    Labels,
    Plan,
    PlannedSegment,
    PlannedStream,
    folder_of_key,
    read_plan,
    write_plan,
)
from tta_pipeline.results.result_files import Result, StoredResult, read_result, store_result
from tta_pipeline.results.shard_set_rows import write_shard_set_row
from tta_pipeline_tests.flat_facts import flat_row, nested, put

NUM_CLASSES = 4
STARTED_AT = "2026-01-01T00:00:00+00:00"


def evaluation_facts(*, error: float = 0.25, num_samples: int = 80, **changes: Any) -> dict[str, Any]:
    """Return the facts of a real evaluation, but with *error*, predictable figures, and *changes*.

    Derived figures are kept consistent: counts, calibration errors, images/s.
    """
    num_correct = round(num_samples * (1 - error))
    bins = {
        "counts": [0] * 7 + [num_samples] + [0] * 7,
        "confidence_sums": [0.0] * 7 + [num_samples / 2] + [0.0] * 7,
        "correct_counts": [0] * 7 + [num_correct] + [0] * 7,
    }
    bins = changes.pop("bins", bins)
    num_samples, num_correct = sum(bins["counts"]), sum(bins["correct_counts"])
    calibration = CalibrationBins(**{name: tuple(values) for name, values in bins.items()})
    num_streamed = num_samples + changes.get("num_unknown", 0)
    if "images_per_s" in changes:
        changes["wall_s"] = num_streamed / changes["images_per_s"]
    wall_s = changes.get("wall_s", 1.25)
    parts = json.dumps({**json.loads(changes.pop("fingerprint_parts", "{}")), "of": _identity(changes)})
    halves = {"num_samples": [num_streamed // 2, num_streamed - num_streamed // 2]}
    if "num_unknown" in changes:
        halves["num_unknown"] = [changes["num_unknown"], 0]
    batches = changes.pop("batches", {**_BATCHES, **halves})
    entropies = [1.0] * len(batches["num_samples"])
    batches = {**_NO_MORE_OF_BATCHES, "predicted_class_entropy": entropies, **batches}
    return {
        **json.loads(_evaluated()),
        **_SUBJECT,
        **_shift_facts(changes.get("dataset", "imagenet_c"), changes.get("corruption", "fog")),
        "fingerprint": hashlib.sha256(parts.encode()).hexdigest(), "fingerprint_parts": parts,
        "stream": f"{changes.get('corruption', 'fog')}|{changes.get('severity', 5)}",
        "num_samples": num_samples, "num_correct": num_correct, "error": 1 - num_correct / num_samples,
        "top5_error": 0.0, "nll": 1.5,
        "ece": calibration.ece, "bins": bins,
        "class_counts": _split(num_samples, num_correct),
        "metadata_scan_s": 0.1, "pipeline_setup_s": 0.2, "wall_s": wall_s, "images_per_s": num_streamed / wall_s,
        "data_wait_s": 0.2, "compute_s": 0.8,
        "batches": {"num_correct": _filled(batches["num_samples"], num_correct), **batches},
        **{name: value for name, value in changes.items() if name != "fingerprint"},
    }  # fmt: skip


def _identity(changes: Mapping[str, Any]) -> list[object]:
    """Return what makes results with *changes* results of other fingerprints."""
    decisive = ("experiment", "model", "method", "seed", "subset", "protocol", "position", "manifest_sha256")
    return [changes.get("fingerprint", [changes.get(name) for name in decisive])]


_SUBJECT = {
    "dataset": "imagenet_c", "model": "cnn", "protocol": "reset_each_shift",
    "manifest_sha256": "1" * 64, "cpu_model": "made", "num_cores": 2, "compute_threads": 2,
    "other_load": 0.0,
}  # fmt: skip
"""Facts of the subject and the machine on which tests rely."""
_NO_MORE_OF_BATCHES = dict.fromkeys(
    ("num_unadapted", "num_resets", "num_unknown", "mean_entropy", "mean_confidence", "source_agreement")
)
_BATCHES = {"data_wait_s": [0.1, 0.1], "host_to_device_s": [0.0, 0.0], "compute_s": [0.5, 0.3]}
_FACTS = "TTA_PIPELINE_TESTS_MADE"


@cache
def _evaluated() -> str:
    """Return, as JSON, the facts of Tent on 80 images of four classes, as `tta_pipeline.evaluate` gives them."""
    if _FACTS in os.environ:
        return os.environ[_FACTS]
    import torch

    import tta_pipeline as tta
    from tta_pipeline_tests.conftest import write_tree

    by_colour = torch.nn.Linear(3, NUM_CLASSES, bias=False)
    by_colour.weight.data = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, -1.0]])
    model = torch.nn.Sequential(
        torch.nn.BatchNorm2d(3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), by_colour
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        write_tree(Path(folder, "images"), classes={f"n{number}": 20 for number in range(NUM_CLASSES)})
        shards = tta.shard(Path(folder, "images"), Path(folder, "made", "fog", "5"), num_shards=1, jobs=1)
        method = tta.build("tent", model, num_classes=NUM_CLASSES)
        return json.dumps(flat_row(tta.evaluate(method, shards, batch_size=40, num_threads=2)))


def made_environment() -> dict[str, str]:
    """Return the environment for a process that uses this module, which then need not evaluate or import torch."""
    return {**os.environ, _FACTS: _evaluated()}


def with_error(facts: Mapping[str, Any], error: float) -> dict[str, Any]:
    """Return *facts* with another error and all figures that depend on it."""
    made = evaluation_facts(num_samples=facts["num_samples"], error=error)
    batches = facts["batches"]
    left = sum(batches["num_correct"]) + made["num_correct"] - facts["num_correct"]
    batches = {**batches, "num_correct": _filled(batches["num_samples"], left)}
    return {**facts, **{name: made[name] for name in _OF_ERROR}, "batches": batches}


_OF_ERROR = ("num_correct", "error", "bins", "class_counts", "ece", "top5_error")


def evaluation(**changes: Any) -> Evaluation:
    """Return the evaluation of `evaluation_facts`."""
    return evaluation_of(evaluation_facts(**changes))


def evaluation_of(facts: Mapping[str, Any]) -> Evaluation:
    """Return the evaluation with *facts* by name."""
    return Evaluation.from_facts(nested(facts))


def record(locations: Locations, *, run_id: str = "first", finished_at: str = "", **changes: Any) -> StoredResult:
    """Store an evaluation, later than what was stored before, and let the plan of its experiment ask for it.

    Results of an experiment that differ in nothing that decides them have the same fingerprint; `fingerprint` in
    *changes* gives them another, or several experiments the same.
    """
    return write(locations, evaluation_facts(**changes), run_id=run_id, finished_at=finished_at)


def record_of_part(locations: Locations, part: str, **changes: Any) -> StoredResult:
    """Store an evaluation under the dataset *part* of a benchmark with several datasets."""
    return write(locations, evaluation_facts(dataset=part, **changes), part=part)


def write(
    locations: Locations, facts: Mapping[str, Any], *, run_id: str = "first", finished_at: str = "", part: str = ""
) -> StoredResult:
    """Store *facts* of an evaluation as the next segment of its stream, and let the plan of its experiment ask for it.

    A position after the first continues from the newest result of the segment before.
    """
    row = evaluation_of(facts)
    benchmark = f"{row.cell.benchmark}/{part}" if part else row.cell.benchmark
    finished_at = finished_at or f"{STARTED_AT[:-6]}.{next(_NUMBERS):06d}+00:00"
    before = _ask_for(locations, benchmark, row)
    folder = locations.results(benchmark) / folder_of_key(row.cell.stream)
    earlier = [read_result(path) for path in find_results(folder, before)] if before else []
    previous = max(earlier, key=lambda each: each.result.finished_at).sha256 if earlier else None
    result = Result(
        kind="evaluation", benchmark=benchmark, key=folder_of_key(row.cell.stream), fingerprint=row.setup.fingerprint,
        previous=previous, run_id=run_id, started_at=finished_at, finished_at=finished_at, versions={"python": "3"},
        evaluations=(row,),
    )  # fmt: skip
    return store_result(locations.results(benchmark), result)


_NUMBERS = itertools.count()
SHARD_SET = {
    "benchmark": "made", "dataset": "imagenet_c", "corruption": "fog", "severity": 5, "source_kind": "folder",
    "generated": False, "manifest_sha256": "1" * 64, "order_hash": "3" * 64, "stored_order": "permuted, seed 0",
    "num_classes": 10, "num_classes_found": 4, "num_samples": 80, "num_shards": 1, "payload_bytes": 1000,
    "shard_bytes": 10240, "num_inodes": 8, "num_loose_inodes": 91, "inode_reduction": 91 / 8, "write_wall_s": 0.1,
    "write_images_per_s": 800.0, "read_back_wall_s": 0.2,
}  # fmt: skip
"""The row of a shard set."""


def record_shard_set(locations: Locations, **changes: Any) -> None:
    """Store the measurements of a shard set of the evaluations made here."""
    row = {**SHARD_SET, **changes}
    folder = locations.root / row["benchmark"] / "shards" / row["corruption"] / str(row["severity"])
    folder.mkdir(parents=True, exist_ok=True)
    write_shard_set_row(folder, row, run_id="first", started_at=STARTED_AT)


def _ask_for(locations: Locations, benchmark: str, row: Evaluation) -> str | None:
    """Let the plan of its experiment ask for *row*; return the fingerprint of the segment before."""
    cell, fingerprint = row.cell, row.setup.fingerprint
    plan = read_plan(locations, benchmark, row.labels.experiment)
    own = PlannedSegment(fingerprint=fingerprint, cells=(cell.key,))
    others = [each for each in (plan.streams if plan else ()) if (each.key, each.seed) != (cell.stream, cell.seed)]
    stream = [each for each in (plan.streams if plan else ()) if (each.key, each.seed) == (cell.stream, cell.seed)]
    segments = list(stream[0].segments) if stream else []
    if not cell.position:
        segments = [each for each in segments[:1] if each.fingerprint == fingerprint]
    if fingerprint not in stream_fingerprints(segments):
        segments.append(own)
    position = stream_fingerprints(segments).index(fingerprint)
    shifts = {**_facts_of_set(row.labels.dataset), **(plan.labels.shifts if plan else {})}
    labels = Labels(
        experiment=row.labels.experiment, model=row.labels.model, dataset=row.labels.dataset,
        hyperparameters_origin=row.labels.hyperparameters_origin, tuning=row.labels.tuning,
        shifts={**shifts, cell.corruption: row.labels.shift},
    )  # fmt: skip
    streams = (*others, PlannedStream(key=cell.stream, seed=cell.seed, segments=tuple(segments)))
    write_plan(locations, Plan(benchmark=benchmark, file_sha256="", labels=labels, streams=streams))
    return segments[position - 1].fingerprint if position else None


def stream_fingerprints(segments: Sequence[PlannedSegment]) -> list[str]:
    """Return the fingerprint of each of *segments*."""
    return [each.fingerprint or "" for each in segments]


def forge(path: Path, *, frame: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """Edit the facts of a result or the fields around them, and name it as it hashes now, as a careful forger would.

    Returns:
        Where it lies now.
    """
    content = json.loads(path.read_bytes())
    for name, value in changes.items():
        put(content["payload"]["shared"], name, value)
    content |= frame or {}
    data = json.dumps(content, separators=(",", ":")).encode()
    path.unlink()
    forged = path.with_name(f"{content['fingerprint'][:16]}-{hashlib.sha256(data).hexdigest()[:8]}.json")
    forged.write_bytes(data)
    return forged


def evaluation_at(path: Path) -> Evaluation:
    """Return the one evaluation of the result at *path*."""
    (found,) = read_result(path).result.evaluations
    return found


def _shift_facts(dataset: str, shift: str) -> dict[str, Any]:
    """Return the facts that a benchmark's dataset gives a record; none if it does not come with the project."""
    known = shipped_sets().get(dataset)
    return asdict(known.facts_of(shift)) if known and shift in (*known.names, "clean") else {}


@cache
def _facts_of_set(dataset: str) -> Mapping[str, ShiftFacts]:
    """Return the facts of every corruption or split of a dataset that comes with the project."""
    known = shipped_sets().get(dataset)
    if known is None:
        return {}
    facts = {name: asdict(known.facts_of(name)) for name in known.names}
    return {name: ShiftFacts(**{key: of[key] for key in ShiftFacts.__annotations__}) for name, of in facts.items()}


def _split(num_samples: int, num_correct: int) -> dict[str, list[int]]:
    """Return counts by class with these sums; no class has more correct samples than samples."""
    samples = [num_samples // NUM_CLASSES + (number < num_samples % NUM_CLASSES) for number in range(NUM_CLASSES)]
    return {"num_samples": samples, "num_correct": _filled(samples, num_correct)}


def _filled(sizes: Sequence[int], total: int) -> list[int]:
    """Return counts that sum to *total*, none above its size."""
    counts = []
    for size in sizes:
        counts.append(min(size, total))
        total -= counts[-1]
    return counts
