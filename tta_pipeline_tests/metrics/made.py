"""Result records as an evaluation writes them, with figures made up for a test."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tta_pipeline.locations import Locations
from tta_pipeline.records.evaluation import CalibrationBins, Evaluation
from tta_pipeline.records.files import Record, packed, publish_record, read_record

NUM_CLASSES = 4
STARTED_AT = "2026-01-01T00:00:00+00:00"


def evaluation_facts(*, error: float = 0.25, num_samples: int = 80, **changes: Any) -> dict[str, Any]:
    """Return the facts of an evaluation with *error*, every other one as in *changes* or some plausible value.

    What follows from others is made to: counts, errors of calibration, images/s.
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
    if "images_per_s" in changes:
        changes["wall_s"] = num_samples / changes["images_per_s"]
    wall_s = changes.get("wall_s", 1.25)
    return {
        "benchmark": "made", "experiment": "tent", "model": "cnn", "architecture": "made cnn", "weights": "made up",
        "weights_sha256": "0" * 64, "mean": [0.5], "std": [0.5], "method": "tent", "protocol": "reset_each_shift",
        "corruption": "fog", "severity": 5, "subset": "all", "subset_sha256": None,
        "stream": f"{changes.get('corruption', 'fog')}|{changes.get('severity', 5)}", "position": 0,
        "generated": False, "seed": 0, "fingerprint": "f" * 64, "fingerprint_parts": None, "code_sha256": "c" * 64,
        "copied_from": None, "metrics_version": 2, "num_samples": num_samples, "num_correct": num_correct,
        "num_correct_top5": num_samples, "error": 1 - num_correct / num_samples, "top5_error": 0.0, "nll": 1.5,
        "brier": 0.4, "ece": calibration.ece, "max_calibration_error": calibration.max_error,
        "rms_calibration_error": calibration.rms_error, "calibration": bins,
        "class_counts": _split(num_samples, num_correct), "num_predicted_classes": NUM_CLASSES, "order_hash": "0" * 64,
        "predictions_sha256": "p" * 64, "samples_sha256": None, "manifest_sha256": "1" * 64,
        "num_images": num_samples, "num_classes_found": NUM_CLASSES, "num_shards": 1, "payload_bytes": 90_000,
        "shard_bytes": 100_000, "stored_order": "permuted, seed 0", "stream_order": "stored", "device": "cpu",
        "gpu_name": None, "cpu_model": "made", "num_cores": 2, "decode_threads": 2, "compute_threads": 2,
        "num_processes": 1, "batch_size": 40, "precision": "fp32", "compile": "off", "pinned_memory": False,
        "load_average": 0.5, "num_batches": 2, "staging_s": 0.0, "metadata_scan_s": 0.1, "pipeline_setup_s": 0.2,
        "time_to_first_batch_s": 0.1, "first_batch_compute_s": 0.5, "wall_s": wall_s,
        "images_per_s": num_samples / wall_s, "data_wait_s": 0.2, "host_to_device_s": 0.0, "compute_s": 0.8,
        "peak_cuda_gib": None, "peak_rss_gib": 0.5, "num_forwards": num_samples, "num_backwards": num_samples,
        "num_adapted_samples": num_samples, "num_unadapted": 0, "num_updates": 2, "num_resets": 0,
        "num_nonfinite_batches": 0, "diverged": False, "config": "{}",
        "batches": {
            "num_samples": [num_samples // 2, num_samples - num_samples // 2], "data_wait_s": [0.1, 0.1],
            "host_to_device_s": [0.0, 0.0], "compute_s": [0.5, 0.3],
        },
        "first_samples": {"positions": [0], "predictions": [0], "confidences": [0.5]},
        **changes,
    }  # fmt: skip


def with_error(facts: Mapping[str, Any], error: float) -> dict[str, Any]:
    """Return *facts* with another error, and whatever follows from it."""
    made = evaluation_facts(num_samples=facts["num_samples"], error=error)
    return {**facts, **{name: made[name] for name in _OF_ERROR}}


_OF_ERROR = (
    "num_correct", "error", "calibration", "class_counts", "ece", "max_calibration_error", "rms_calibration_error",
    "num_correct_top5", "top5_error",
)  # fmt: skip


def evaluation(**changes: Any) -> Evaluation:
    """Return the evaluation of `evaluation_facts`."""
    return Evaluation.from_facts(evaluation_facts(**changes))


_SINCE_VERSION_2 = (
    "architecture", "fingerprint_parts", "code_sha256", "copied_from", "samples_sha256", "num_images",
    "num_classes_found", "num_shards", "payload_bytes", "shard_bytes", "stored_order", "stream_order", "gpu_name",
    "cpu_model", "num_cores", "decode_threads", "compute_threads", "num_processes", "pinned_memory", "load_average",
    "first_samples",
)  # fmt: skip
_SINCE_METRICS_VERSION_2 = (
    "metrics_version", "num_correct_top5", "top5_error", "nll", "brier", "max_calibration_error",
    "rms_calibration_error", "class_counts", "precision", "compile", "host_to_device_s", "staging_s", "subset",
    "subset_sha256", "stream", "position", "num_adapted_samples", "num_unadapted", "num_predicted_classes",
)  # fmt: skip


def facts_of_version_1(*, metrics_version: int = 2, **changes: Any) -> dict[str, Any]:
    """Return the facts of an evaluation as records of version 1 have them, of the first ones with metrics version 1."""
    facts = evaluation_facts(**changes)
    lacking = (*_SINCE_VERSION_2, *(_SINCE_METRICS_VERSION_2 if metrics_version == 1 else ()))
    columns = facts["batches"]
    batches = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    first = {f"first_{name}": values for name, values in facts["first_samples"].items()}
    return {name: value for name, value in facts.items() if name not in lacking} | {"batches": batches, **first}


def record(locations: Locations, *, run_id: str = "first", started_at: str = STARTED_AT, **changes: Any) -> Record:
    """Write an evaluation's record."""
    return write(locations, evaluation_facts(**changes), run_id=run_id, started_at=started_at)


def write(
    locations: Locations, facts: Mapping[str, Any], *, run_id: str = "first", started_at: str = STARTED_AT
) -> Record:
    """Write *facts* of an evaluation as a record."""
    return publish_record(
        locations.results(facts["benchmark"]),
        kind="evaluations",
        name=f"{facts['experiment']}/{facts['corruption']}-{facts['severity']}",
        run_id=run_id,
        started_at=started_at,
        facts=facts,
    )


def write_version_1(locations: Locations, facts: Mapping[str, Any], *, sequence: int = 1) -> Path:
    """Write *facts* as a file of version 1, which has no hash."""
    name = f"{facts['experiment']}/{facts['corruption']}-{facts['severity']}"
    path = locations.results(facts["benchmark"]) / "evaluations" / name / f"{sequence:06d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "version": 1, "kind": "evaluations", "run_id": "old", "started_at": STARTED_AT, "versions": {}, "facts": facts,
    }  # fmt: skip
    path.write_text(json.dumps(content))
    return path


def forge(path: Path, *, frame: Mapping[str, Any] | None = None, **changes: Any) -> None:
    """Edit the facts of a record, or what is around them, and compute its hash again, as a careful hand would."""
    record = json.loads(path.read_bytes())["record"]
    record |= {"facts": record["facts"] | changes, **(frame or {})}
    path.write_bytes(packed(record))


def evaluation_at(path: Path) -> Evaluation:
    """Return the evaluation that is recorded at *path*."""
    found = read_record(path).evaluation
    assert found
    return found


def _split(num_samples: int, num_correct: int) -> dict[str, list[int]]:
    """Return counts of classes whose sums these are; correct ones are never more than samples."""
    samples = [num_samples // NUM_CLASSES + (number < num_samples % NUM_CLASSES) for number in range(NUM_CLASSES)]
    correct, left = [], num_correct
    for count in samples:
        correct.append(min(count, left))
        left -= correct[-1]
    return {"num_samples": samples, "num_correct": correct}
