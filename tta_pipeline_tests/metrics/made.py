"""Result records as an evaluation writes them, with figures made up for a test."""

from collections.abc import Mapping
from typing import Any

from tta_pipeline.locations import Locations
from tta_pipeline.metrics.records import publish_record

NUM_CLASSES = 4


def evaluation_facts(*, error: float = 0.25, num_samples: int = 80, **changes: Any) -> dict[str, Any]:
    """Return the facts of an evaluation with *error*, every other one as in *changes* or some plausible value."""
    num_correct = round(num_samples * (1 - error))
    by_class = [num_samples // NUM_CLASSES] * NUM_CLASSES
    bins = {
        "counts": [0] * 7 + [num_samples] + [0] * 7,
        "confidence_sums": [0.0] * 7 + [num_samples / 2] + [0.0] * 7,
        "correct_counts": [0] * 7 + [num_correct] + [0] * 7,
    }
    batches = [{"num_samples": 40, "data_wait_s": 0.1, "host_to_device_s": 0.0, "compute_s": 0.4}] * 2
    return {
        "benchmark": "made", "experiment": "tent", "model": "cnn", "weights": "made up", "weights_sha256": "0" * 64,
        "mean": [0.5], "std": [0.5], "method": "tent", "protocol": "reset_each_shift", "corruption": "fog",
        "severity": 5, "generated": False, "seed": 0, "fingerprint": "f" * 64, "metrics_version": 2,
        "num_samples": num_samples, "num_correct": num_correct, "num_correct_top5": num_samples, "error": error,
        "top5_error": 0.0, "nll": 1.5, "brier": 0.4, "ece": abs(num_correct / num_samples - 0.5),
        "max_calibration_error": 0.3, "rms_calibration_error": 0.2, "calibration": bins,
        "class_counts": {"num_samples": by_class, "num_correct": [num_correct // NUM_CLASSES] * NUM_CLASSES},
        "order_hash": "0" * 64, "predictions_sha256": "p" * 64, "manifest_sha256": "1" * 64, "device": "cpu",
        "batch_size": 40, "precision": "fp32", "compile": "off", "num_batches": 2, "staging_s": 0.0,
        "metadata_scan_s": 0.1, "pipeline_setup_s": 0.2, "time_to_first_batch_s": 0.1, "first_batch_compute_s": 0.5,
        "wall_s": 1.25, "images_per_s": num_samples / 1.25, "data_wait_s": 0.2, "host_to_device_s": 0.0,
        "compute_s": 0.8, "peak_cuda_gib": None, "peak_rss_gib": 0.5, "num_forwards": num_samples,
        "num_backwards": num_samples, "num_updates": 2, "num_resets": 0, "num_nonfinite_batches": 0,
        "diverged": False, "config": "{}", "batches": batches, "first_predictions": [0], "first_confidences": [0.5],
        **changes,
    }  # fmt: skip


OF_VERSION_1 = (
    "metrics_version", "num_correct_top5", "top5_error", "nll", "brier", "max_calibration_error",
    "rms_calibration_error", "class_counts", "precision", "compile", "host_to_device_s", "staging_s",
)  # fmt: skip
"""What records of the first versions lack."""


def record(
    locations: Locations, *, run_id: str = "first", started_at: str = "2026-01-01T00:00:00+00:00", **changes: Any
) -> None:
    """Write an evaluation's record."""
    write(locations, evaluation_facts(**changes), run_id=run_id, started_at=started_at)


def write(
    locations: Locations,
    facts: Mapping[str, Any],
    *,
    run_id: str = "first",
    started_at: str = "2026-01-01T00:00:00+00:00",
) -> None:
    """Write *facts* of an evaluation as a record."""
    publish_record(
        locations.results(facts["benchmark"]),
        kind="evaluations",
        name=f"{facts['experiment']}/{facts['corruption']}-{facts['severity']}",
        run_id=run_id,
        started_at=started_at,
        facts=facts,
    )
