"""Scopes of assets: the cells of a benchmark, an extra set of images, or the streams of an experiment."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from types import CodeType
from typing import Any, Generic, Self, TypeVar

import dagster as dg

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.stream_plans import stream_keys
from tta_pipeline.defs.user_errors import with_one_line_errors
from tta_pipeline.domain.cells import CLEAN, TRAIN, WHOLE, Cell, PartitionKey, StreamKey, parse_key
from tta_pipeline.errors import PartitionKeyError
from tta_pipeline.util.environment import read_positive_int

K_co = TypeVar("K_co", bound=PartitionKey, covariant=True)
Context = dg.AssetExecutionContext | dg.AssetCheckExecutionContext


@dataclass(frozen=True, kw_only=True)
class Scope(ABC, Generic[K_co]):
    """The part of a benchmark that an asset covers, with one partition for each key in it."""

    benchmark: Benchmark
    resource_prefix: str = ""
    """Prefix of the keys of the resources that its assets and checks require."""

    @property
    @abstractmethod
    def partitions(self) -> dg.PartitionsDefinition[str] | None:
        """The partitions of its assets; None if they have none."""

    @abstractmethod
    def keys(self, context: Context) -> tuple[K_co, ...]:
        """Return the keys that a run covers, checked against the keys of the benchmark.

        Raises:
            PartitionKeyError: the run was started with a key that the benchmark does not have, or with an empty range.
        """

    def key(self, *parts: str) -> dg.AssetKey:
        """Return the asset key `<benchmark>/<parts>`."""
        return asset_key(self.benchmark, *parts)

    def group(self) -> str:
        """Return the group of its images and shards; see `Benchmark.group_of` for the groups of experiments."""
        return f"{self.benchmark.dagster_name}_images"

    def depends_on(self, key: dg.AssetKey) -> dg.AssetDep:
        """Return the dependency on all parts of the asset *key* that a partition of this scope needs."""
        return dg.AssetDep(key)

    def depends_on_other(self, benchmark_name: str, *parts: str) -> dg.AssetDep:
        """Return the dependency on the asset *parts* of another benchmark, for the same cells."""
        return dg.AssetDep(_key_of(benchmark_name, *parts))

    def asset(
        self, *parts: str, is_whole: bool = False, **options: Any
    ) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
        """Return the decorator for the asset `<benchmark>/<parts>`: `dg.asset` with the options of all assets.

        Args:
            *parts: Parts of the key below the benchmark's.
            is_whole: Whether the asset is about the whole benchmark, and has no partitions.
            **options: Further options of `dg.asset`.
        """
        partitions = None if is_whole else self.partitions
        defaults = {
            "group_name": self.group(),
            # Unpartitioned assets need it too: only then can one command run a whole benchmark over a range.
            "backfill_policy": backfill_policy() if partitions else dg.BackfillPolicy.single_run(),
        }
        decorator: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
            key=self.key(*parts), partitions_def=partitions, **{**defaults, **options}
        )
        return lambda function: decorator(self.body(function))

    def body(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return *function* as the body of an asset or of checks: one-line errors, resources by their prefixed keys."""
        return with_one_line_errors(_with_prefixed_resources(_attach_signature(function), self.resource_prefix))


@dataclass(frozen=True, kw_only=True)
class CellScope(Scope[Cell]):
    """The cells of a benchmark, by corruption and severity."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell of the scope."""
        return self.benchmark.cells

    @property
    def partitions(self) -> dg.MultiPartitionsDefinition:
        """The grid of cells."""
        return cell_partitions(self.benchmark.corruptions, self.benchmark.severities)

    def keys(self, context: Context) -> tuple[Cell, ...]:
        """Return the cells that a run covers; see `Scope.keys`."""
        found = _requested_keys(context, self.partitions)
        if not found:
            raise PartitionKeyError(
                "The partition range has no cells; expected start and end in the order of corruptions and of "
                "severities, such as 'fog|1...contrast|5': swap start and end"
            )
        return tuple(parse_key(key, self.cells) for key in found)


@dataclass(frozen=True, kw_only=True)
class SetScope(Scope[Cell]):
    """One set of images outside the cells, without partitions: the clean or the training images."""

    cell: Cell

    @property
    def partitions(self) -> None:
        """None: one set of images has no partitions."""
        return

    def keys(self, context: Context) -> tuple[Cell, ...]:  # noqa: ARG002 - every run covers the whole set
        """Return the set."""
        return (self.cell,)

    def key(self, *parts: str) -> dg.AssetKey:
        """Return the asset key `<benchmark>/clean/<parts>`."""
        return asset_key(self.benchmark, self.cell.corruption, *parts)

    def group(self) -> str:
        """Return the group `<benchmark>_clean_images`, or `<benchmark>_training` with the models trained there."""
        return f"{self.benchmark.dagster_name}_{'training' if self.cell == TRAIN else 'clean_images'}"

    def depends_on_other(self, benchmark_name: str, *parts: str) -> dg.AssetDep:
        """Return the dependency on the same set of another benchmark."""
        return dg.AssetDep(_key_of(benchmark_name, self.cell.corruption, *parts))


@dataclass(frozen=True, kw_only=True)
class StreamScope(Scope[StreamKey]):
    """The streams of an experiment over several cells: one for each severity, or one for the whole benchmark.

    They are in a separate group, since a run over a range of cells cannot have other partitions.
    """

    experiment_name: str

    @property
    def partitions(self) -> dg.StaticPartitionsDefinition | None:
        """The severities, if there is a stream for each."""
        keys = stream_keys(self.benchmark, self.experiment_name)
        return None if keys == (WHOLE,) else dg.StaticPartitionsDefinition([key.key for key in keys])

    def keys(self, context: Context) -> tuple[StreamKey, ...]:
        """Return the keys of the streams that a run covers; see `Scope.keys`."""
        known = stream_keys(self.benchmark, self.experiment_name)
        if self.partitions is None:
            return known
        found = _requested_keys(context, self.partitions)
        if not found:
            raise PartitionKeyError(
                f"The partition range has no streams; expected any of {', '.join(key.key for key in known)}"
            )
        return tuple(parse_key(key, known) for key in found)

    def depends_on(self, key: dg.AssetKey) -> dg.AssetDep:
        """Return the dependency on all cells that a stream is made of."""
        return dg.AssetDep(key, partition_mapping=self._mapping if self.partitions else None)

    def depends_on_other(self, benchmark_name: str, *parts: str) -> dg.AssetDep:
        """Return the dependency on all cells of another benchmark, whose grid may differ."""
        mapping = dg.AllPartitionMapping() if self.partitions else None
        return dg.AssetDep(_key_of(benchmark_name, *parts), partition_mapping=mapping)

    @property
    def _mapping(self) -> dg.PartitionMapping:
        """Which cells a stream needs; Dagster cannot map a grid to some of its severities separately."""
        severities = self.benchmark.severities_of(self.experiment_name)
        if set(severities) == set(self.benchmark.severities):
            return dg.MultiToSingleDimensionPartitionMapping("severity")
        return dg.SpecificPartitionsPartitionMapping(
            [cell.key for cell in self.benchmark.cells if cell.severity in severities]
        )


CELLS_PER_RUN_VARIABLE = "TTA_CELLS_PER_RUN"


def backfill_policy() -> dg.BackfillPolicy:
    """Return how Dagster splits a backfill: into one run, or into runs of `TTA_CELLS_PER_RUN` cells.

    For a grid, Dagster makes one range for each value of one dimension, and splits each range by the policy. So a run
    covers cells of one severity or of one corruption, never a rectangle with unrequested cells. A command with
    `--partition-range` needs the first policy, so set the variable for the process of the web UI only.

    Raises:
        SettingsError: the environment variable is not a whole number.
    """
    cells = read_positive_int(CELLS_PER_RUN_VARIABLE)
    return dg.BackfillPolicy.multi_run(cells) if cells else dg.BackfillPolicy.single_run()


def asset_key(benchmark: Benchmark, *parts: str) -> dg.AssetKey:
    """Return the full key of an asset of *benchmark*; *parts* follow the benchmark's, and may contain slashes."""
    return _key_of(benchmark.name, *parts)


def _key_of(benchmark_name: str, *parts: str) -> dg.AssetKey:
    return dg.AssetKey("/".join((benchmark_name, *parts)).split("/"))


@dataclass(frozen=True, kw_only=True)
class Scopes:
    """A benchmark and the scopes of its assets: the input of each file of assets."""

    cells: CellScope
    shard_sets: tuple[Scope[Cell], ...]
    """The sets of images of which there are shards, the cells first."""
    experiments: tuple[tuple[Scope[PartitionKey], str], ...]
    """Each experiment in each scope that it has an asset for."""

    @classmethod
    def of(cls, benchmark: Benchmark, resource_prefix: str = "") -> Self:
        """Return the scopes of *benchmark*; see `Scope` for *resource_prefix*."""
        own: dict[str, Any] = {"benchmark": benchmark, "resource_prefix": resource_prefix}
        cells = CellScope(**own)
        evaluated = (cells, SetScope(**own, cell=CLEAN)) if benchmark.has_clean else (cells,)
        experiments: list[tuple[Scope[PartitionKey], str]] = []
        for name, experiment in benchmark.experiments.items():
            if experiment.protocol.partitioned_by == "cell":
                experiments += [(scope, name) for scope in evaluated]
            else:
                experiments.append((StreamScope(**own, experiment_name=name), name))
        return cls(
            cells=cells,
            shard_sets=(*evaluated, SetScope(**own, cell=TRAIN)) if benchmark.has_train else evaluated,
            experiments=tuple(experiments),
        )

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark."""
        return self.cells.benchmark


def partition_of(key: PartitionKey) -> str | None:
    """Return the Dagster partition of *key*; None for a set outside the cells and for a whole stream."""
    if isinstance(key, StreamKey):
        return None if key == WHOLE else key.key
    if key in (CLEAN, TRAIN):
        return None
    return dg.MultiPartitionKey({"corruption": key.corruption, "severity": str(key.severity)})


def _attach_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Attach the signature of *function* to it, where `inspect` finds it, and return the function.

    Dagster reads the signature 17 times for each asset, and the functions of all experiments have the same signature.
    """
    function.__signature__ = _cached_signature(function.__code__, function)  # type: ignore[attr-defined]
    return function


def _with_prefixed_resources(function: Callable[..., Any], prefix: str) -> Callable[..., Any]:
    """Return *function* with *prefix* before its parameters for resources: Dagster takes their names for the keys."""
    if not prefix:
        return function
    kinds = function.__annotations__
    own_names = {f"{prefix}{name}": name for name, kind in kinds.items() if _is_resource(kind)}
    keys = {name: key for key, name in own_names.items()}

    @wraps(function)
    def body(*args: Any, **given: Any) -> Any:
        return function(*args, **{own_names.get(name, name): value for name, value in given.items()})

    signature = inspect.signature(function)
    parameters = [each.replace(name=keys.get(each.name, each.name)) for each in signature.parameters.values()]
    body.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    body.__annotations__ = {keys.get(name, name): kind for name, kind in kinds.items()}
    return body


def _is_resource(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, dg.ConfigurableResource)


_SIGNATURES: dict[CodeType, inspect.Signature] = {}


def _cached_signature(code: CodeType, function: Callable[..., Any]) -> inspect.Signature:
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


def _requested_keys(context: Context, partitions: dg.PartitionsDefinition[str]) -> list[str]:
    # Read before Dagster resolves the keys, so that a bad key in a run tag reaches our own check unchanged.
    run = context.run if isinstance(context, dg.AssetExecutionContext) else context.op_execution_context.run
    single = run.tags.get("dagster/partition")
    if single is not None:
        return [single]
    op_context = context.op_execution_context
    if isinstance(context, dg.AssetCheckExecutionContext) and not op_context.has_partitions:
        return _materialized_keys(context, partitions)
    return [str(key) for key in op_context.partition_keys]


def _materialized_keys(context: dg.AssetCheckExecutionContext, partitions: dg.PartitionsDefinition[str]) -> list[str]:
    """Return the materialized keys, to be checked when the web UI starts the checks alone and names no partition."""
    asset_key = next(iter(context.selected_asset_check_keys)).asset_key
    made = context.instance.get_materialized_partitions(asset_key)
    keys = [key for key in partitions.get_partition_keys() if key in made]
    if not keys:
        raise PartitionKeyError(
            f"{asset_key.to_user_string()} has no materialized partition; expected at least one: materialize a "
            "partition first"
        )
    return keys
