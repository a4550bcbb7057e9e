"""`tta-pipeline shards bench --model`: forward passes by each reader, alone and in processes of `torchrun`."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tta_pipeline.benchmarks.shard_settings import ShardSettings
from tta_pipeline.cli import main
from tta_pipeline.errors import EvaluationError, StreamError
from tta_pipeline.extras.loader_bench.forward_pass import compare_forward
from tta_pipeline.extras.loader_bench.indexed_loader import IndexedLoader
from tta_pipeline.extras.loader_bench.loaders import LOADERS, Loader
from tta_pipeline.extras.loader_bench.measure import Settings
from tta_pipeline.extras.loader_bench.prepared_data import generate_shards
from tta_pipeline.loading.reader import Batch
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import Project, launcher

MODEL = "torchvision:squeezenet1_1"
ONCE = Settings(repeats=1, num_threads=(0,))
# Workers are forked, whatever threads the test process has; and webdataset leaves shards open.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning", "ignore:unclosed file:ResourceWarning"
)


def test_each_reader_has_the_figures_of_a_forward_pass(shard_set: ShardSet, project: Project):
    """Wall time, images/s, the first batch and its compute, memory, and how the samples are shuffled."""
    done = project.run(
        "tta-pipeline", "shards", "bench", str(shard_set.folder), "--model", MODEL, "--threads", "1", "--batch-size",
        "6", "--repeats", "2", "--json",
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr
    assert "6 of 6 passes: imagefolder, 1 threads: " in done.stderr
    rows = json.loads(done.stdout)
    assert [*LOADERS] == [row["loader"] for row in rows]
    assert ["none", "shards by 64, samples by 1,000", "none"] == [row["shuffle"] for row in rows]
    for row in rows:
        assert ("permuted, seed 7", MODEL, 20, 6, 1, "cpu", 32, 2, None) == (
            row["stored_order"], row["model"], row["num_samples"], row["batch_size"], row["num_ranks"], row["device"],
            row["image_size"], row["repeats"], row["peak_cuda_gib"],
        )  # fmt: skip
        assert 0 < row["time_to_first_batch_s"] + row["first_batch_compute_s"] <= 20 / row["images_per_s_min"]
        assert row["images_per_s_min"] <= row["images_per_s"] <= row["images_per_s_max"]
        assert row["peak_memory_mib"] > 0


def test_processes_of_torchrun_read_their_shares(shard_set: ShardSet, project: Project):
    """The first prints one table, of the samples of both."""
    done = project.run(
        "torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", str(launcher().python), "-m",
        "tta_pipeline", "shards", "bench", str(shard_set.folder), "--model", MODEL, "--threads", "0", "--repeats",
        "1", "--json",
    )  # fmt: skip

    assert 0 == done.returncode, done.stderr[-3000:]
    assert [(2, 20, name) for name in LOADERS] == [
        (row["num_ranks"], row["num_samples"], row["loader"]) for row in json.loads(done.stdout)
    ]
    assert 1 == done.stderr.count("3 of 3 passes: imagefolder")


def test_torchrun_without_a_model_is_refused(shard_set: ShardSet):
    """Each process would measure everything."""
    done = CliRunner().invoke(main, ["shards", "bench", str(shard_set.folder)], env={"WORLD_SIZE": "2"})

    assert 2 == done.exit_code
    assert "torchrun is used without --model" in done.stderr


class ForgetfulLoader(IndexedLoader):
    """A reader that loses the last batch."""

    def __iter__(self) -> Iterator[Batch]:
        """Yield every batch but the last."""
        yield from list(super().__iter__())[:-1]


def test_a_reader_that_delivers_fewer_samples_fails(shard_set: ShardSet):
    """No figure comes out."""
    forgetful = Loader(module=__name__, class_name="ForgetfulLoader", package="tta_pipeline")
    settings = replace(ONCE, batch_size=6)

    with pytest.raises(StreamError, match=r"\bmine\b.* 18 .* 20\b"):
        compare_forward(str(shard_set.folder), MODEL, {"mine": forgetful}, settings, lambda _: None)


def test_a_model_that_does_not_take_the_images_is_refused(tmp_path: Path):
    """Before anything is read; the error names it."""
    folder = generate_shards(tmp_path, num_images=2, image_size=16, settings=ShardSettings(num_shards=1))

    with pytest.raises(EvaluationError, match=rf"{MODEL}\b.*\b16x16\b"):
        compare_forward(str(folder), MODEL, LOADERS, ONCE, lambda _: None)
