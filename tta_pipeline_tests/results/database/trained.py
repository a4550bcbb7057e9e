"""Results of trainings, with figures made up for tests."""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from tta_pipeline.domain.locations import Locations
from tta_pipeline.results.result_files import Result, StoredResult, store_result
from tta_pipeline.results.training_record import TrainingEpoch, TrainingRun
from tta_pipeline_tests.results.database.made import STARTED_AT

NUM_SAMPLES = 1000


def epoch(number: int, *, validation_error: float | None = 0.5, **changes: Any) -> TrainingEpoch:
    """Return an epoch of ten seconds with *changes*."""
    facts = {
        "epoch": number, "num_samples": NUM_SAMPLES, "train_loss": 2.3 * math.exp(-0.2 * number),
        "train_error": 0.9 * math.exp(-0.25 * number), "validation_error": validation_error,
        "validation_loss": None if validation_error is None else 2 * validation_error, "lr": 0.1, "wall_s": 10.0,
        "images_per_s": NUM_SAMPLES / 10.0, "data_wait_s": 0.5, "validation_s": 1.0,
        "peak_memory_mib": 700.0,
    }  # fmt: skip
    return TrainingEpoch(**facts | changes)


def training_run(
    *errors: float | None, selected: str = "last", epochs: Sequence[TrainingEpoch] = (), **changes: Any
) -> TrainingRun:
    """Return a run of *epochs*, or of epochs with these validation *errors*, with *changes*."""
    errors = errors or (0.5, 0.25, 0.375)
    epochs = epochs or [epoch(number, validation_error=error) for number, error in enumerate(errors, start=1)]
    is_validated = epochs[0].validation_error is not None
    facts = {
        "benchmark": "digits_c", "dataset": "imagenet_c", "model": "cnn", "architecture": "small 16",
        "num_parameters": 12_345, "fine_tuned": False, "fingerprint": "f" * 64, "weights_sha256": "a" * 64,
        "manifest_sha256": "1" * 64, "num_samples": NUM_SAMPLES, "settings": json.dumps({"kind": "trained"}),
        "num_epochs": len(epochs), "batch_size": 128, "optimizer": "sgd", "lr": 0.1,
        "augmentation": "simple", "loader": "indexed", "device": "cpu", "cpu_model": "made",
        "num_cores": 2, "compute_threads": 2, "num_ranks": 1, "torch_version": "2.0",
        "validated_on": "clean" if is_validated else None, "wall_s": 40.0, "time_to_first_batch_s": 0.2,
        "num_resumed": 0, "num_inodes": 4,
    }  # fmt: skip
    return TrainingRun.from_epochs(epochs, selected=selected, **facts | changes)


def record_training(locations: Locations, run: TrainingRun) -> StoredResult:
    """Write the result of *run*, later than what was written before, as the asset of the source model does."""
    finished_at = f"{STARTED_AT[:-6]}.{next(_NUMBERS):06d}+00:00"
    result = Result(
        kind="training", benchmark=run.benchmark, key="trainings", fingerprint=run.fingerprint, run_id="first",
        started_at=STARTED_AT, finished_at=finished_at, versions={"python": "3"}, training=run,
    )  # fmt: skip
    return store_result(locations.results(run.benchmark), result)


_NUMBERS = itertools.count()
