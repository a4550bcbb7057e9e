"""Loaders are measured in processes of their own, over every sample of the manifest, and compared by medians."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.cli import main
from tta_pipeline.errors import LoaderError, StreamError
from tta_pipeline.extras.loader_bench.loaders import LOADERS, select_loaders
from tta_pipeline.extras.loader_bench.measure import (
    LoaderConfig,
    Measurement,
    Settings,
    _best_row,
    _sum_parts,
    measure,
)
from tta_pipeline.extras.loader_bench.prepared_data import generate_shards, prepared
from tta_pipeline.extras.loader_bench.process_memory import watched
from tta_pipeline.extras.loader_bench.timed_read import ReadTimes
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.shards.cell import CLASS_MAP, QUIET

FIGURES = [field.name for field in fields(Measurement)]


def test_a_row_has_the_medians_and_the_range_of_its_repeats(shard_set: ShardSet):
    """A loader has one row, which says how fast every repeat was; progress stands apart from it.

    Whatever a loader does by itself, bytes come out where the device is to normalise them.
    """
    asked = CliRunner().invoke(main, [
        "shards", "bench", str(shard_set.folder), "--loader", "webdataset", "--threads", "1", "--repeats", "2",
        "--normalization", "device", "--json",
    ])  # fmt: skip

    assert 0 == asked.exit_code, asked.output
    assert ["1 of 2 passes: webdataset, 1 threads", "2 of 2 passes: webdataset, 1 threads"] == [
        line.rpartition(": ")[0] for line in asked.stderr.splitlines()
    ]
    (row,) = json.loads(asked.stdout)
    assert ("webdataset", 20, 2) == (row["loader"], row["num_samples"], row["repeats"])
    assert ("uint8", "device") == (row["output"], row["normalization"])
    assert row["staging_mb_per_s"] is None
    assert (row["images_per_s_min"] + row["images_per_s_max"]) / 2 == pytest.approx(row["images_per_s"])
    assert 0 < row["time_to_first_batch_s"] <= 20 / row["images_per_s_min"]
    assert row["cpu_s_per_image"] > 0
    assert row["peak_memory_mib"] >= row["base_memory_mib"] > 0


def test_processes_that_share_a_pass_are_as_slow_as_the_slowest(shard_set: ShardSet):
    """Their samples and CPU times add up; their waits overlap."""
    times = [
        ReadTimes(num_samples=8, wall_s=2.0, time_to_first_batch_s=0.5, cpu_s=3.0),
        ReadTimes(num_samples=12, wall_s=4.0, time_to_first_batch_s=0.25, cpu_s=2.0),
    ]
    with prepared(shard_set.folder, select_loaders(["indexed"])) as data:
        found = _sum_parts(data, times, peak_mib=9.0, base_mib=4.0)

    assert (5.0, 0.5, 0.25) == (found.images_per_s, found.time_to_first_batch_s, found.cpu_s_per_image)
    assert shard_set.manifest.payload_bytes / 4e6 == found.mb_per_s


def test_the_row_is_of_the_number_of_threads_with_the_fastest_median(shard_set: ShardSet):
    """Not of the one with the fastest repeat, nor of another loader's."""
    speeds = {("webdataset", 0): (1, 2, 9), ("webdataset", 1): (3, 4, 5), ("indexed", 2): (8, 8, 8)}
    measured = {
        LoaderConfig(name=name, loader=LOADERS[name], num_threads=num_threads): [
            Measurement(**dict.fromkeys(FIGURES, 1.0) | {"images_per_s": speed}) for speed in repeats
        ]
        for (name, num_threads), repeats in speeds.items()
    }
    with prepared(shard_set.folder, select_loaders(["webdataset"])) as data:
        row = _best_row(data, "webdataset", measured, Settings(num_threads=(0, 1)))

    assert (1, 3, 4) == (row.num_threads, row.repeats, row.images_per_s)


def test_a_loader_that_delivers_fewer_samples_fails(shard_set: ShardSet):
    """Where a shard is cut between members webdataset ends in silence; the count finds it, and no figure comes out."""
    loaders = select_loaders(["webdataset"])
    with prepared(shard_set.folder, loaders) as data:
        path = shard_set.folder / shard_set.manifest.shards[1].name
        os.truncate(path, int(shard_set.index.offsets[shard_set.index.shards == 1].max()) - 512)

        with pytest.raises(StreamError, match=r"\bwebdataset\b.* 19 .* 20\b"):
            measure(data, loaders, Settings(repeats=1, num_threads=(0,), normalization="device"), lambda _: None)


def test_other_forms_of_the_data_are_removed(shard_set: ShardSet):
    """The loose files are there while loaders are measured, and not afterwards."""
    with prepared(shard_set.folder, select_loaders(["imagefolder"])) as data:
        folder = data.prepared_folder(shard_set.folder, "imagefolder")
        assert 20 == len([path for path in folder.rglob("*") if path.is_file()])

    assert not data.folder.exists()


def test_generated_images_become_a_shard_set(tmp_path: Path):
    """As many images of the size and format asked for."""
    folder = generate_shards(
        tmp_path, num_images=7, image_size=16, settings=ShardSettings(num_shards=2, format="tensor")
    )
    manifest = ShardSet.open(folder).manifest

    assert (7, 2, "tensor") == (manifest.num_samples, len(manifest.shards), manifest.encoding.format)
    with prepared(folder, select_loaders(["indexed"])) as data:
        assert 16 == data.image_size


def test_images_that_are_not_square_are_refused(write: Callable[..., object], tree, tmp_path: Path):
    """Batches have one size; the error names what was found."""
    for path in (tree.root / "fog/5").rglob("*.JPEG"):
        Image.open(io.BytesIO(jpeg(1))).resize((40, 32)).save(path)
    write(tmp_path / "wide")
    publish_shard_set(tmp_path / "wide", CLASS_MAP, QUIET)

    loaders = select_loaders(["indexed"])
    with pytest.raises(LoaderError, match="32x40"), prepared(tmp_path / "wide", loaders):
        pass


def test_the_memory_of_a_process_and_its_children_is_seen():
    """A process whose child takes 64 MiB shows them."""
    child = "import time; data = bytearray(64 << 20); print('there', flush=True); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert b"there\n" == process.stdout.readline()
        with watched([process.pid]) as seen:
            pass
        os.killpg(process.pid, 9)

    assert seen.base_mib > 64
