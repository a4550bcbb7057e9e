"""The benchmark of a watched folder: `<benchmark>/stream`, a shift set whose shifts are the days of arrival."""

from datetime import date, timedelta
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.benchmarks.watch_settings import STREAM
from tta_pipeline.data.shifts.shift_set import ShiftSet
from tta_pipeline.data.sources.kinds.folder import FolderSource
from tta_pipeline.util.locations import Locations


def stream_benchmark(benchmark: Benchmark, locations: Locations, *, until: date | None = None) -> Benchmark:
    """Return the benchmark of the images that arrive at the folder that *benchmark* watches.

    Args:
        benchmark: A benchmark with a section `watch`.
        locations: Where the images of each day are kept.
        until: The last day; None: the last that has an image. Every day since the first is a shift, with or without
            images, so the position of a day in the set never changes.
    """
    watch = benchmark.watch
    assert watch is not None, "a benchmark that watches a folder"
    kept = locations.arrivals(benchmark.name)
    last = max(watch.since, until or _last_day(kept) or watch.since)
    days = tuple((watch.since + timedelta(days=number)).isoformat() for number in range((last - watch.since).days + 1))
    return benchmark.model_copy(
        update={
            "name": f"{benchmark.name}/{STREAM}",
            "title": f"{benchmark.title}: images as they arrive",
            "source": FolderSource(kind="folder", root=kept, group_depth=1, labels="none"),
            "shift_set": ShiftSet(name=STREAM, names=days, templates=benchmark.shift_set.templates),
            "corruptions": days,
            "severities": (0,),
            "shards": _without_stops(benchmark.shards),
            "train_shards": None,
            "transforms": {},
            "experiments": {name: benchmark.experiments[name] for name in watch.experiments},
            "matrix": (),
            "tuning": {},
            "alarm": None,
            "watch": None,
        }
    )


def _without_stops(settings: ShardSettings | None) -> ShardSettings:
    """Return *settings* for images that nobody has looked at: a damaged one must not stop a day, none has a class."""
    assert settings is not None, "images that arrive are written as shards"
    order = settings.order if settings.order in ("permuted", "source") else "permuted"
    return settings.model_copy(update={"damaged": "skip", "decode_all": True, "labels": False, "order": order})


def _last_day(kept: Path) -> date | None:
    """Return the last day in the folder *kept*, whose folders are days; None if there is none."""
    try:
        return max(map(date.fromisoformat, (path.name for path in kept.iterdir() if path.is_dir())), default=None)
    except FileNotFoundError:
        return None
