"""The check `normalisation_fits`: would the model have a lower error on clean images under another normalisation?"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import dagster as dg

from tta_pipeline.benchmarks.model_specs import TrainedModel
from tta_pipeline.defs.reporting import CheckReport
from tta_pipeline.defs.resources import Compute
from tta_pipeline.defs.scope import Scope, SetScope
from tta_pipeline.util.files import read_file, write_atomically
from tta_pipeline.util.partitions import CLEAN, PartitionKey

if TYPE_CHECKING:
    from tta_pipeline.evaluation.experiment_results import ExperimentResults
    from tta_pipeline.evaluation.normalisation_fit import Fits

NORMALISATION = "normalisation_fits"
NORMALISATION_CHECK = {
    NORMALISATION: "On 256 clean images, drawn evenly over the classes, no usual normalisation is better than the mean "
    "and std of the benchmark file by more than chance: McNemar's exact test at 1 %, Bonferroni.",
}
_LIMIT = 256
_MOST_BYTES = 2**20
_SEED = 0
_VERSION = 1
"""Version of the computation; raising it invalidates the cached results."""


def has_normalisation_check(scope: Scope[PartitionKey], experiment_name: str) -> bool:
    """Return whether the asset of *experiment_name* has the check: it evaluates the source model on clean images.

    A model that the benchmark trains has a measured mean and std, so it needs no check.
    """
    spec = scope.benchmark.experiments[experiment_name]
    is_measured = isinstance(scope.benchmark.models[spec.model], TrainedModel)
    return isinstance(scope, SetScope) and spec.method == "source" and not is_measured


def normalisation_report(results: "ExperimentResults", compute: Compute, tell: Callable[[str], None]) -> CheckReport:
    """Return the finding of the check; its errors are cached for this model and these images.

    *tell* is called with a message if the check has to wait for a device.

    Raises:
        EvaluationError, ManifestError, StreamError: the model or the images cannot be read.
    """
    from tta_pipeline.evaluation.normalisation_fit import COLUMNS
    from tta_pipeline.report.tables import Table, as_markdown

    fits = _cached_fits(results, compute, tell)
    return CheckReport(
        check=NORMALISATION,
        passed=fits.better is None,
        severity=dg.AssetCheckSeverity.WARN,
        metadata={
            "found": fits.verdict,
            "num_samples": fits.declared.num_samples,
            "error": fits.declared.error,
            "best_error": fits.best.error,
            "best_normalisation": fits.best.normalisation.name,
            "errors": dg.MetadataValue.md(as_markdown(Table(columns=COLUMNS, rows=fits.rows))),
        },
    )


def _cached_fits(results: "ExperimentResults", compute: Compute, tell: Callable[[str], None]) -> "Fits":
    """Return the errors on clean images, from the cache if it has them and they can be read."""
    from tta_pipeline.evaluation.benchmark_model import load_benchmark_model
    from tta_pipeline.evaluation.device.leases import leased_device
    from tta_pipeline.evaluation.normalisation_fit import FITS, check_normalisation
    from tta_pipeline.shards.shard_set import ShardSet

    benchmark, machine = results.benchmark, compute.machine()
    model = load_benchmark_model(benchmark, results.spec.model, results.locations)
    shard_set = ShardSet.open(results.folder(CLEAN), results.expected_shard_set(CLEAN))
    image_size = benchmark.image_size_of(results.experiment_name)
    decisive = [_VERSION, _LIMIT, _SEED, image_size, shard_set.manifest.sha256, model.identity]
    name = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
    path = results.locations.normalisations(benchmark.name) / f"{name}.json"
    with suppress(OSError, ValueError):
        return FITS.validate_json(read_file(path, limit_bytes=_MOST_BYTES))
    with leased_device(machine.device, tell, num_streams=machine.streams_per_device) as device:
        fits = check_normalisation(
            model, shard_set, image_size=image_size, limit=_LIMIT, seed=_SEED, device=device,
            num_threads=machine.num_threads,
        )  # fmt: skip
    write_atomically(path, FITS.dump_json(fits))
    return fits
