"""Faults in benchmark files, shown as assets: users look there for a missing experiment or benchmark."""

import logging
import re
from collections import defaultdict
from collections.abc import Iterator

import dagster as dg

from tta_pipeline.benchmarks.load_files import Fault, LoadedBenchmarks
from tta_pipeline.defs.user_errors import with_one_line_errors
from tta_pipeline.util.identifiers import MAX_NAME_LENGTH, is_benchmark_name

BENCHMARK_FILE = "benchmark_file"
"""Last part of the asset key `<file>/benchmark_file` of a file that is left out as a whole."""
_log = logging.getLogger(__name__)


def fault_assets(loaded: LoadedBenchmarks) -> Iterator[dg.AssetsDefinition]:
    """Yield an asset for each experiment and each file that is left out, and log each fault.

    An experiment keeps its usual key; a file gets the key `<file>/benchmark_file`. The description shows the fault,
    and materializing the asset fails with the same sentence. These assets have no partitions: the partitions of
    an experiment that cannot be read are unknown.
    """
    sentences: dict[dg.AssetKey, list[str]] = defaultdict(list)
    for fault in loaded.faults:
        _log.warning("left out: %s", fault.sentence)
        sentences[fault_key(fault)].append(fault.sentence)
    for key, found in sentences.items():
        is_whole = key.path[-1] == BENCHMARK_FILE
        names = key.path[:-1] if is_whole else key.path[:-2]
        # Otherwise a faulty second file of the same name would make runs over the first file's group fail.
        group = "__".join(names) + ("_faulty" if is_whole and "/".join(names) in loaded.benchmarks else "")
        yield _faulty_asset(key, group, "\n".join(found))


def fault_key(fault: Fault) -> dg.AssetKey:
    """Return the asset key of *fault*."""
    benchmark = [_dagster_name(name) for name in fault.benchmark.split("/")]
    if fault.experiment is None:
        return dg.AssetKey([*benchmark, BENCHMARK_FILE])
    return dg.AssetKey([*benchmark, "evaluation", _dagster_name(fault.experiment)])


def _dagster_name(name: str) -> str:
    """Return *name* in a form that Dagster accepts: unchanged, unless the name itself is the fault."""
    if is_benchmark_name(name):
        return name
    return "faulty_" + re.sub(r"[^A-Za-z0-9_]", "_", name)[:MAX_NAME_LENGTH]


def _faulty_asset(key: dg.AssetKey, group: str, sentence: str) -> dg.AssetsDefinition:
    @dg.asset(
        key=key,
        group_name=group,
        description=f"Left out. {sentence}",
        kinds={"fault"},
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    @with_one_line_errors
    def asset() -> None:
        raise dg.Failure(description=sentence, allow_retries=False)

    return asset
