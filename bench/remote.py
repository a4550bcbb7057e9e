"""Reading shards from a URL behind a slow link, against webdataset and litdata: `python -m bench.remote`.

The link is a local server with 20 ms latency and 200 Mbit/s for all connections together. Each pass is a separate
process with an empty cache; its time begins after all imports, and ends with the last sample. The ratio is the shards'
bytes per second divided by the link's rate. litdata is left out unless it is installed; it reads its own chunks with
the same files, from the same server, by the S3 protocol.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.figures import spread
from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.extras.loader_bench.synthetic_photographs import make_jpeg_tree
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.shards.write_cell import shard_split

REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))
LATENCY_S, BYTES_PER_S = 0.020, 200e6 / 8
BATCH_SIZE, IMAGE_SIZE, NUM_THREADS = 64, 224, 2
ASKED = {"this reader": ">= 0.9"}


class PassTimes(NamedTuple):
    """Times and samples of one pass."""

    first_s: float
    """Seconds until the first batch or sample."""
    wall_s: float
    num_samples: int


def main() -> None:
    """Make the shards, measure in turns, and print a table."""
    root = Path(os.environ.get("TTA_DATA_ROOT", "data")).absolute() / "bench" / "remote"
    tree = make_jpeg_tree(root / "images", num_images=2_000, size=IMAGE_SIZE, copies=6)
    settings = ShardSettings(num_shards=12)
    shard_set = shard_split(tree, root / "shards", cell=CLEAN, settings=settings, benchmark_name="bench")
    systems = dict(SYSTEMS)
    if find_spec("litdata") is None:
        systems = {name: read for name, read in systems.items() if "litdata" not in name}
    else:
        _prepare_litdata(shard_set, root / "litdata")
    found: dict[str, list[PassTimes]] = {name: [] for name in systems}
    say = Console(stderr=True).print
    with slow_server(root) as url:
        for _ in range(REPEATS):
            for name, passes in found.items():
                passes.append(_run_pass(name, url, root))
                say(f"{name}: {passes[-1]}")
    Console(width=150).print(_table(found, shard_set))


def _table(found: Mapping[str, list[PassTimes]], shard_set: ShardSet) -> Table:
    size_bytes = shard_set.manifest.shard_bytes
    title = (
        f"{size_bytes / 1e6:,.0f} MB, {LATENCY_S * 1e3:.0f} ms, {BYTES_PER_S * 8 / 1e6:.0f} Mbit/s: medians \\[range]"
    )
    table = Table(title=title, box=None)
    for column in ("what", "MB/s", "of the link", "asked", "first, s"):
        table.add_column(column)
    for name, passes in found.items():
        assert {each.num_samples for each in passes} == {shard_set.manifest.num_samples}, name
        rates = [size_bytes / each.wall_s for each in passes]
        table.add_row(
            name,
            "" if "fetched" in name else spread([rate / 1e6 for rate in rates], digits=1),
            "" if "fetched" in name else spread([rate / BYTES_PER_S for rate in rates], digits=2),
            ASKED.get(name, ""),
            spread([each.first_s for each in passes], digits=2),
        )
    return table


@contextmanager
def slow_server(folder: Path) -> Iterator[str]:
    """Serve *folder* behind the link, from another process, and yield its URL."""
    command = [sys.executable, "-m", "bench.slow_server", str(folder), str(LATENCY_S), str(BYTES_PER_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _run_pass(system: str, url: str, root: Path) -> PassTimes:
    """Run a pass in another process with its own temporary folder."""
    with tempfile.TemporaryDirectory(prefix="bench-remote-") as folder:
        command = [sys.executable, "-m", "bench.remote", system, url, str(root)]
        environment = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return PassTimes(*json.loads(done.stdout.splitlines()[-1]))


def _time_pass(batches: Callable[[], Iterator[int]]) -> PassTimes:
    """Time an iteration over *batches*, which yields the number of samples in each batch."""
    started = time.perf_counter()
    first_s, num_samples = 0.0, 0
    for size in batches():
        first_s = first_s or time.perf_counter() - started
        num_samples += size
    return PassTimes(first_s, time.perf_counter() - started, num_samples)


def _ours(url: str, root: Path) -> PassTimes:
    from tta_pipeline.evaluation.open_stream import open_stream
    from tta_pipeline.loading.reader import Stream

    del root
    folder = _locate(f"{url}/shards")
    _adopt(folder)

    def batches() -> Iterator[int]:
        opened = open_stream([folder])
        shard_set = opened.joined.sets[0]
        stream = Stream(
            shard_set=shard_set,
            order=opened.order,
            batch_size=BATCH_SIZE,
            image_size=IMAGE_SIZE,
            num_threads=NUM_THREADS,
        )
        for batch in stream:
            yield len(batch.labels)

    return _time_pass(batches)


def _manifest_fetched(url: str, root: Path) -> PassTimes:
    del root

    def batches() -> Iterator[int]:
        yield _adopt(_locate(f"{url}/shards"))

    return _time_pass(batches)


def _manifest_made(url: str, root: Path) -> PassTimes:
    names = sorted(path.name for path in (root / "shards").glob("*.tar"))
    folder = _locate(*(f"{url}/shards/{name}" for name in names), has_manifest=False)

    def batches() -> Iterator[int]:
        yield _adopt(folder)

    return _time_pass(batches)


def _locate(*urls: str, has_manifest: bool = True) -> Path:
    from tta_pipeline.data.images.remote_shards import RemoteShards, write_remote_cell

    folder = Path(tempfile.mkdtemp(prefix="cell-")) / "clean" / "0"
    found = RemoteShards(urls=(), elsewhere=((CLEAN, urls),)).at(CLEAN)
    write_remote_cell(found if has_manifest else found.model_copy(update={"manifest": None}), folder)
    return folder


def _adopt(folder: Path) -> int:
    """Make the manifest of the shards whose URLs *folder* lists; return the number of samples."""
    from tta_pipeline.data.labels.class_map import ClassMap
    from tta_pipeline.shards.adopt_remote import adopt_remote
    from tta_pipeline.util.progress import quiet_reporter

    published = adopt_remote(
        folder,
        CLEAN,
        quiet_reporter("", 0),
        benchmark_name="bench",
        pin_classes=lambda find_classes: ClassMap(classes=find_classes()),
    )
    return published.shard_set.manifest.num_samples


def _webdataset(url: str, root: Path, *, num_workers: int = 0, decodes: bool = False) -> PassTimes:
    import webdataset as wds

    names = sorted(path.name for path in (root / "shards").glob("*.tar"))
    urls = [f"pipe:curl -s -L {url}/shards/{name}" for name in names]
    dataset = wds.WebDataset(urls, shardshuffle=False, empty_check=False)
    if decodes:
        dataset = dataset.decode("rgb8", only=["jpeg", "jpg"])
    dataset = dataset.map(_key).batched(BATCH_SIZE, collation_fn=list)
    loader: Any = wds.WebLoader(dataset, batch_size=None, num_workers=num_workers) if num_workers else dataset

    def batches() -> Iterator[int]:
        for batch in loader:
            yield len(batch)

    return _time_pass(batches)


def _key(sample: Mapping[str, Any]) -> str:
    return str(sample["__key__"])


def _webdataset_workers(url: str, root: Path) -> PassTimes:
    return _webdataset(url, root, num_workers=2)


def _webdataset_decoding(url: str, root: Path) -> PassTimes:
    return _webdataset(url, root, num_workers=2, decodes=True)


def _curl(url: str, root: Path) -> PassTimes:
    """Download the shards, four at once, and do nothing with them."""
    names = sorted(path.name for path in (root / "shards").glob("*.tar"))
    urls = [f"{url}/shards/{name}" for name in names]

    def batches() -> Iterator[int]:
        wanted = [part for each in urls for part in ("-o", os.devnull, each)]
        subprocess.run(["curl", "-s", "-Z", "--parallel-max", "4", *wanted], check=True)
        yield ShardSet.open(root / "shards").manifest.num_samples

    return _time_pass(batches)


def _prepare_litdata(shard_set: ShardSet, folder: Path) -> None:
    from bench.other_loaders import LitdataLoader

    if not (folder / "index.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        LitdataLoader.prepare(shard_set, folder)


def _litdata(url: str, root: Path) -> PassTimes:
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # The local server has no certificate.
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}  # noqa: SLF001
    del root
    options = {"endpoint_url": url, "aws_access_key_id": "me", "aws_secret_access_key": "secret"}
    cache = tempfile.mkdtemp(prefix="litdata-")
    dataset = StreamingDataset("s3://litdata", cache_dir=cache, storage_options=options)

    def batches() -> Iterator[int]:
        for batch in StreamingDataLoader(dataset, batch_size=BATCH_SIZE, num_workers=NUM_THREADS):
            yield len(batch["position"])

    return _time_pass(batches)


SYSTEMS: dict[str, Callable[[str, Path], PassTimes]] = {
    "curl, four at once, nothing read": _curl,
    "this reader": _ours,
    "the manifest, fetched": _manifest_fetched,
    "the manifest, made by a pass": _manifest_made,
    "webdataset, pipe:curl, bytes only": _webdataset,
    "webdataset, pipe:curl, bytes only, 2 workers": _webdataset_workers,
    "webdataset, pipe:curl, decoding, 2 workers": _webdataset_decoding,
    "litdata, s3, decoding, 2 workers": _litdata,
}


if __name__ == "__main__":
    if sys.argv[1:]:
        sys.stdout.write(f"{json.dumps(SYSTEMS[sys.argv[1]](sys.argv[2], Path(sys.argv[3])))}\n")
    else:
        main()
