"""Result records in the form that evaluations write, with some figures made up for tests."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tta_pipeline.data.shifts.shift_set_files import shipped_sets
from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.evaluation_record import CalibrationBins, Evaluation
from tta_pipeline.results.records import Record, encode_record, publish_record, read_record

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
    bins = changes.pop("calibration", bins)
    num_samples, num_correct = sum(bins["counts"]), sum(bins["correct_counts"])
    calibration = CalibrationBins(**{name: tuple(values) for name, values in bins.items()})
    num_streamed = num_samples + changes.get("num_unknown", 0)
    if "images_per_s" in changes:
        changes["wall_s"] = num_streamed / changes["images_per_s"]
    wall_s = changes.get("wall_s", 1.25)
    parts = changes.pop("fingerprint_parts", json.dumps({"of": changes.pop("fingerprint", "f")}))
    halves = {"num_samples": [num_streamed // 2, num_streamed - num_streamed // 2]}
    if "num_unknown" in changes:
        halves["num_unknown"] = [changes["num_unknown"], 0]
    batches = changes.pop("batches", {**_BATCHES, **halves})
    entropies = [1.0] * len(batches["num_samples"])
    batches = {**_NO_MORE_OF_BATCHES, "predicted_class_entropy": entropies, **batches}
    return {
        **json.loads(_evaluated()),
        **_SUBJECT,
        **_shift_facts(changes.get("shift_set", "imagenet_c"), changes.get("corruption", "fog")),
        "fingerprint": hashlib.sha256(parts.encode()).hexdigest(), "fingerprint_parts": parts,
        "stream": f"{changes.get('corruption', 'fog')}|{changes.get('severity', 5)}",
        "num_images": num_samples, "num_samples": num_samples, "num_correct": num_correct,
        "num_correct_top5": num_samples, "error": 1 - num_correct / num_samples, "top5_error": 0.0, "nll": 1.5,
        "ece": calibration.ece, "max_calibration_error": calibration.max_error,
        "rms_calibration_error": calibration.rms_error, "calibration": bins,
        "class_counts": _split(num_samples, num_correct),
        "metadata_scan_s": 0.1, "pipeline_setup_s": 0.2, "wall_s": wall_s, "images_per_s": num_streamed / wall_s,
        "data_wait_s": 0.2, "compute_s": 0.8,
        "batches": {"num_correct": _filled(batches["num_samples"], num_correct), **batches},
        **changes,
    }  # fmt: skip


_SUBJECT = {
    "shift_set": "imagenet_c", "model": "cnn", "protocol": "reset_each_shift",
    "manifest_sha256": "1" * 64, "cpu_model": "made", "num_cores": 2, "compute_threads": 2,
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
        return json.dumps(tta.evaluate(method, shards, batch_size=40, num_threads=2).facts())


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


_OF_ERROR = (
    "num_correct", "error", "calibration", "class_counts", "ece", "max_calibration_error", "rms_calibration_error",
    "num_correct_top5", "top5_error",
)  # fmt: skip


def evaluation(**changes: Any) -> Evaluation:
    """Return the evaluation of `evaluation_facts`."""
    return Evaluation.from_facts(evaluation_facts(**changes))


def record(locations: Locations, *, run_id: str = "first", started_at: str = STARTED_AT, **changes: Any) -> Record:
    """Write an evaluation's record."""
    return write(locations, evaluation_facts(**changes), run_id=run_id, started_at=started_at)


def record_of_part(locations: Locations, part: str, **changes: Any) -> Record:
    """Write the record of an evaluation under the shift set *part* of a benchmark with several shift sets."""
    return write(locations, evaluation_facts(shift_set=part, **changes), part=part)


def write(
    locations: Locations,
    facts: Mapping[str, Any],
    *,
    run_id: str = "first",
    started_at: str = STARTED_AT,
    part: str = "",
) -> Record:
    """Write *facts* of an evaluation as a record."""
    return publish_record(
        locations.results(f"{facts['benchmark']}/{part}"),
        kind="evaluations",
        name=f"{facts['experiment']}/{facts['corruption']}-{facts['severity']}",
        run_id=run_id,
        started_at=started_at,
        facts=facts,
    )


def forge(path: Path, *, frame: Mapping[str, Any] | None = None, **changes: Any) -> None:
    """Edit the facts of a record or the fields around them, and recompute its hash, as a careful forger would."""
    record = json.loads(path.read_bytes())["record"]
    record |= {"facts": record["facts"] | changes, **(frame or {})}
    path.write_bytes(encode_record(record))


def evaluation_at(path: Path) -> Evaluation:
    """Return the evaluation that is recorded at *path*."""
    found = read_record(path).evaluation
    assert found
    return found


def _shift_facts(shift_set: str, shift: str) -> dict[str, Any]:
    """Return the facts that a benchmark's shift set gives a record; none if it does not come with the project."""
    known = shipped_sets().get(shift_set)
    return asdict(known.facts_of(shift)) if known and shift in (*known.names, "clean") else {}


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
