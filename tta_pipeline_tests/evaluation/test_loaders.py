"""An experiment's loader decides how fast samples come, and neither which come nor what is predicted."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.data.sources.folder_tree import FolderTree
from tta_pipeline.errors import LoaderError, StreamError
from tta_pipeline.evaluation.evaluator import Evaluator
from tta_pipeline.evaluation.open_stream import OpenStream, open_stream
from tta_pipeline.loading.front_to_back import FrontToBackLoader
from tta_pipeline.loading.loose_files import LooseFileLoader, LooseFiles
from tta_pipeline.loading.reader import Batch, Stream
from tta_pipeline.loading.stream_order import StreamOrder, shuffled_order, stored_order
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.locations import Locations
from tta_pipeline_tests.conftest import jpeg
from tta_pipeline_tests.evaluation.small import CONTRAST_5, SEVERITY_5, evaluated, results_of, runner_of
from tta_pipeline_tests.evaluation.test_evaluator import evaluator, recorded
from tta_pipeline_tests.shards.cell import CELL

# Workers are forked, whatever threads the test process has; there are more of them than cores; and webdataset leaves
# shards open.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:This DataLoader will create",
    "ignore:unclosed file:ResourceWarning",
)
OTHERS = ("imagefolder", "webdataset")


@pytest.fixture(scope="module", autouse=True)
def close_what_is_left_open() -> Iterator[None]:
    """Have the files that nobody closes closed behind the last test, while that is no error."""
    yield
    gc.collect()


def opened(shard_set: ShardSet, tree: FolderTree, loader: str) -> OpenStream:
    """Return the stream of *shard_set* in stored order for *loader*."""
    return open_stream([shard_set.folder], list_files=tree.listing if loader == "imagefolder" else None)


def evaluation(by: Evaluator, shard_set: ShardSet, stream: OpenStream) -> Evaluation:
    """Return the evaluation of *stream*, which is that of *shard_set*."""
    by.start(shard_set.manifest, seed=0)
    return recorded(by, stream)


def batches(loader: Stream | FrontToBackLoader | LooseFileLoader) -> list[Batch]:
    """Return the batches of *loader*; a stream writes over its images."""
    return [batch._replace(images=batch.images.clone()) for batch in loader]


def loader_of(name: str, shard_set: ShardSet, tree: FolderTree, order: StreamOrder, *, num_threads: int):
    """Return the loader called *name* over *shard_set* in batches of three."""
    settings = {"order": order, "batch_size": 3, "image_size": 32, "num_threads": num_threads, "shard_set": shard_set}
    if name == "imagefolder":
        files = LooseFiles.of([(shard_set, tree.listing(CELL))])
        return LooseFileLoader(files=files, pin_memory=False, **settings)
    return FrontToBackLoader(pin_memory=False, **settings) if name == "webdataset" else Stream(**settings)


def assert_same_batches(expected: list[Batch], found: list[Batch]) -> None:
    """Labels, positions and every pixel are equal, batch by batch."""
    assert len(expected) == len(found)
    for one, other in zip(expected, found, strict=True):
        for part, other_part in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, other_part)


@pytest.mark.parametrize("method", ["source", "tent"])
def test_predictions_are_those_of_every_loader(method: str, shard_set: ShardSet, tree: FolderTree):
    """The same model over shards by offset, shards front to back and loose files has one hash of predictions."""
    rows = [
        evaluation(evaluator(method, loader=loader), shard_set, opened(shard_set, tree, loader))
        for loader in ("indexed", *OTHERS)
    ]

    assert 1 == len({row.predictions_sha256 for row in rows})
    assert 1 == len({(row.error, row.nll, row.order_hash) for row in rows})
    assert ["indexed", *OTHERS] == [row.loader for row in rows]
    assert [len(shard_set.manifest.shards), 20, len(shard_set.manifest.shards)] == [row.num_inodes for row in rows]


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("num_threads", [0, 3])
def test_batches_are_whole_and_in_order_with_any_number_of_workers(
    name: str, num_threads: int, shard_set: ShardSet, tree: FolderTree
):
    """20 samples in batches of three come as our own reader gives them, the last with two."""
    order = stored_order(shard_set.index)
    expected = batches(loader_of("indexed", shard_set, tree, order, num_threads=0))

    assert_same_batches(expected, batches(loader_of(name, shard_set, tree, order, num_threads=num_threads)))


@pytest.mark.parametrize("name", OTHERS)
def test_a_part_of_the_samples_is_read(name: str, shard_set: ShardSet, tree: FolderTree):
    """As one of several processes, or a subset, has it: every other sample of the stored order."""
    stored = stored_order(shard_set.index)
    order = replace(stored, indices=stored.indices[::2])
    expected = batches(loader_of("indexed", shard_set, tree, order, num_threads=0))

    assert_same_batches(expected, batches(loader_of(name, shard_set, tree, order, num_threads=2)))


def test_loose_files_come_in_any_order_and_shards_front_to_back_only_in_theirs(shard_set: ShardSet, tree: FolderTree):
    """A shuffled stream of loose files is that of our own reader; webdataset refuses it."""
    order = shuffled_order(shard_set.index, seed=1)
    expected = batches(loader_of("indexed", shard_set, tree, order, num_threads=0))

    assert_same_batches(expected, batches(loader_of("imagefolder", shard_set, tree, order, num_threads=2)))
    with pytest.raises(StreamError, match=r"order shuffled\(seed=1\); expected one that never goes back"):
        batches(loader_of("webdataset", shard_set, tree, order, num_threads=0))


def file_of(shard_set: ShardSet, tree: FolderTree, *, of: int = 0) -> Path:
    """Return the loose file of a sample of *shard_set*."""
    return tree.folder(CELL) / f"{shard_set.index.keys[of]}.JPEG"


def test_other_bytes_of_a_loose_file_are_never_a_result(shard_set: ShardSet, tree: FolderTree):
    """A file of the same size and other content is found after the pass, before anything is recorded."""
    path = file_of(shard_set, tree)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    stream = opened(shard_set, tree, "imagefolder")

    with pytest.raises(StreamError, match=rf"{path}: found sha256 .* as in the manifest, so no result was recorded"):
        evaluation(evaluator("source", loader="imagefolder"), shard_set, stream)


def test_a_loose_file_that_changes_while_it_is_read_is_never_a_result(shard_set: ShardSet, tree: FolderTree):
    """Its bytes may be right again by the end: the time of its change is not."""
    stream = opened(shard_set, tree, "imagefolder")
    path = file_of(shard_set, tree)
    path.write_bytes(path.read_bytes())

    with pytest.raises(StreamError, match=rf"{path} was changed since .* no result was recorded"):
        evaluation(evaluator("source", loader="imagefolder"), shard_set, stream)


def test_a_sample_without_its_loose_file_is_refused_before_the_pass(shard_set: ShardSet, tree: FolderTree):
    """A file that is gone, or has another size, is named when the stream is opened."""
    file_of(shard_set, tree, of=3).unlink()
    with pytest.raises(StreamError, match=rf"sample {shard_set.index.keys[3]}: found no such file"):
        opened(shard_set, tree, "imagefolder")

    file_of(shard_set, tree, of=3).write_bytes(jpeg(1, size=64))
    with pytest.raises(StreamError, match=r"found .* bytes; expected the loose file of \d+ bytes"):
        opened(shard_set, tree, "imagefolder")


@pytest.mark.parametrize("num_threads", [0, 1])
@pytest.mark.parametrize("name", OTHERS)
def test_an_image_of_another_size_is_named(name: str, num_threads: int, shard_set: ShardSet, tree: FolderTree):
    """A worker's error comes as one sentence, without the traceback of its process."""
    loader = loader_of(name, shard_set, tree, stored_order(shard_set.index), num_threads=num_threads)

    with pytest.raises(StreamError) as caught:
        batches(replace(loader, image_size=48))

    assert shard_set.index.keys[0] in str(caught.value)
    assert "found pixels of shape (32, 32, 3); expected an image of 48x48 pixels" in str(caught.value)
    assert "set `resize: 54` and `center_crop: 48` under shards" in str(caught.value)


def test_a_path_that_webdataset_takes_for_a_url_is_refused(shard_set: ShardSet, tree: FolderTree):
    """With a #, it would look for a fragment."""
    odd = shard_set.folder.rename(shard_set.folder.with_name("no #1"))
    loader = loader_of("webdataset", replace(shard_set, folder=odd), tree, stored_order(shard_set.index), num_threads=0)

    with pytest.raises(LoaderError, match="has a # or"):
        batches(loader)


@pytest.mark.parametrize(
    "settings",
    [{"protocol": "mixed"}, {"protocol": {"order": "shuffled"}}, {"seeds": [0, 1]}, {"protocol": "slow"}],
)
def test_webdataset_is_refused_for_orders_that_it_cannot_give(settings: dict[str, object]):
    """When the file is read, with what to do."""
    with pytest.raises(ValueError, match=r"loader webdataset with samples in the order \w+ and shift \w+; expected"):
        Experiment(model="cnn", method="source", loader="webdataset", **settings)


def test_a_loader_has_results_of_its_own(data: Locations):
    """What another loader has predicted finishes nothing, so both have times; the errors are the same."""
    rows = {}
    for loader in ("indexed", *OTHERS):
        own = results_of(data, method="norm", loader=loader)
        with runner_of(own) as runner:
            assert runner.plan(CONTRAST_5)
        (rows[loader],) = evaluated(own, CONTRAST_5)

    assert 1 == len({row["predictions_sha256"] for row in rows.values()})
    assert 3 == len({row["fingerprint"] for row in rows.values()})
    assert {"indexed": 3, "imagefolder": 150, "webdataset": 3} == {
        loader: row["num_inodes"] for loader, row in rows.items()
    }


def test_loose_files_of_several_cells_are_mixed(data: Locations):
    """A stream that mixes cells by their loose files has the predictions of their shards."""
    mixed = {"method": "norm", "protocol": "mixed", "severities": [5]}
    hashes = [
        [row["predictions_sha256"] for row in evaluated(results_of(data, loader=loader, **mixed), SEVERITY_5)]
        for loader in ("indexed", "imagefolder")
    ]

    assert 2 == len(hashes[0])
    assert hashes[0] == hashes[1]
