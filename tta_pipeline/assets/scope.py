"""What an asset covers: every cell of a benchmark by partition, or one set beside them such as the clean images."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.streams import WHOLE, stream_keys
from tta_pipeline.errors import PartitionKeyError
from tta_pipeline.partitions import Cell, parse_cell


@dataclass(frozen=True, kw_only=True)
class Scope:
    """A benchmark's cells, or one set of images beside them."""

    benchmark: Benchmark
    single: Cell | None = None
    """The set without partitions; None for the cells."""

    @property
    def partitions(self) -> dg.MultiPartitionsDefinition | None:
        """The grid of cells, for assets that have one."""
        if self.single:
            return None
        return cell_partitions(self.benchmark.corruptions, self.benchmark.severities)

    def key(self, *parts: str) -> dg.AssetKey:
        """Return the asset key `<benchmark>/<parts>`, or `<benchmark>/clean/<parts>` for the clean images."""
        return dg.AssetKey([self.benchmark.name, *([self.single.corruption] if self.single else []), *parts])

    def keys(self, context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> tuple[str, ...]:
        """Return the keys of the cells that a run is about; see `cells`."""
        return tuple(cell.key for cell in self.cells(context))

    def cells(self, context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> tuple[Cell, ...]:
        """Return the cells that a run is about, after comparing its keys with the benchmark's own.

        Raises:
            PartitionKeyError: the run was started with a key that is none of the benchmark's, or with a range that
                holds no cell.
        """
        if self.single:
            return (self.single,)
        keys = _requested_keys(context, self.partitions)
        if not keys:
            raise PartitionKeyError(
                "found a partition range without any cell; expected start and end in order for corruption and for "
                "severity, such as 'fog|1...contrast|5': exchange them"
            )
        return tuple(parse_cell(key, self.benchmark.cells) for key in keys)

    def partition(self, key: str) -> str | None:
        """Return the partition that events on *key*, that of a cell, belong to."""
        if self.single:
            return None
        corruption, severity = key.split("|")
        return dg.MultiPartitionKey({"corruption": corruption, "severity": severity})

    def group(self, name: str | None = None) -> str:
        """Return the group that its assets stand in, or those of the group *name* of the benchmark file."""
        return f"{self.benchmark.name}_{name}" if name else self.benchmark.name

    def depends_on(self, key: dg.AssetKey) -> dg.AssetDep:
        """Return the dependency on all that an asset at *key* has for a partition of this scope."""
        return dg.AssetDep(key)

    def asset(self, *parts: str, **options: Any) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
        """Return the decorator for the asset `<benchmark>/<parts>`: `dg.asset` with what all assets have in common."""
        decorator: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
            key=self.key(*parts),
            partitions_def=self.partitions,
            # Unpartitioned assets say so too: only then can one command run a whole benchmark over a range.
            backfill_policy=dg.BackfillPolicy.single_run(),
            **{"group_name": self.group(), **options},
        )
        return lambda function: decorator(with_signature(function))


@dataclass(frozen=True, kw_only=True)
class StreamScope(Scope):
    """The streams of an experiment over several cells: one for each severity, or one for the whole benchmark.

    In a group of their own, since a run over a range of cells can have no other partitions.
    """

    experiment: str

    @property
    def partitions(self) -> dg.StaticPartitionsDefinition | None:  # type: ignore[override]
        """The severities, if there is a stream for each."""
        keys = stream_keys(self.benchmark, self.experiment)
        return None if keys == (WHOLE,) else dg.StaticPartitionsDefinition(list(keys))

    def group(self, name: str | None = None) -> str:
        """Return the group that its assets stand in, or those of the group *name* of the benchmark file."""
        return f"{super().group(name)}_streams"

    def depends_on(self, key: dg.AssetKey) -> dg.AssetDep:
        """Return the dependency on all cells that a stream is made of."""
        mapping = dg.MultiToSingleDimensionPartitionMapping("severity") if self.partitions else None
        return dg.AssetDep(key, partition_mapping=mapping)

    def keys(self, context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext) -> tuple[str, ...]:
        """Return the keys of the streams that a run is about.

        Raises:
            PartitionKeyError: the run was started with a key that is none of the experiment's.
        """
        known = stream_keys(self.benchmark, self.experiment)
        if self.partitions is None:
            return known
        found = tuple(_requested_keys(context, self.partitions))
        if not found or set(found) - set(known):
            raise PartitionKeyError(f"found partition keys {', '.join(found)}; expected some of {', '.join(known)}")
        return found

    def partition(self, key: str) -> str | None:
        """Return the partition that events on the stream *key* belong to."""
        return key if self.partitions else None


def with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return *function* with its signature beside it, which `inspect` then takes from there.

    Dagster asks for it 17 times for each asset, and the functions of all experiments have the same.
    """
    function.__signature__ = _signature(function.__code__, function)  # type: ignore[attr-defined]
    return function


_SIGNATURES: dict[CodeType, inspect.Signature] = {}


def _signature(code: CodeType, function: Callable[..., Any]) -> inspect.Signature:
    if code not in _SIGNATURES:
        _SIGNATURES[code] = inspect.signature(function)
    return _SIGNATURES[code]


@cache
def cell_partitions(corruptions: tuple[str, ...], severities: tuple[int, ...]) -> dg.MultiPartitionsDefinition:
    """Return the grid corruption x severity."""
    return dg.MultiPartitionsDefinition(
        {
            "corruption": dg.StaticPartitionsDefinition(list(corruptions)),
            "severity": dg.StaticPartitionsDefinition([str(severity) for severity in severities]),
        }
    )


def _requested_keys(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, partitions: dg.PartitionsDefinition[str] | None
) -> list[str]:
    # Before Dagster resolves it: a key that a run tag smuggled in must reach our own check as it is.
    run = context.run if isinstance(context, dg.AssetExecutionContext) else context.op_execution_context.run
    single = run.tags.get("dagster/partition")
    if single is not None:
        return [single]
    op_context = context.op_execution_context
    if isinstance(context, dg.AssetCheckExecutionContext) and partitions and not op_context.has_partitions:
        return _made(context, partitions)
    return [str(key) for key in op_context.partition_keys]


def _made(context: dg.AssetCheckExecutionContext, partitions: dg.PartitionsDefinition[str]) -> list[str]:
    """Return the keys of what there is to check: the web UI starts checks on their own without any partition."""
    asset_key = next(iter(context.selected_asset_check_keys)).asset_key
    made = context.instance.get_materialized_partitions(asset_key)
    keys = [key for key in partitions.get_partition_keys() if key in made]
    if not keys:
        raise PartitionKeyError(
            f"found no partition of {asset_key.to_user_string()} that is materialized; expected one to check: "
            "materialize it first"
        )
    return keys
