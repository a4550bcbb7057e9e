"""A data root works whatever it is called, or is refused at once."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.benchmarks.open_images import load_class_map
from tta_pipeline.cli import main
from tta_pipeline.data.labels.class_map import pin_class_map
from tta_pipeline.defs.history import find_home
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import DataRootError, LoaderError
from tta_pipeline.extras.doctor import examine
from tta_pipeline.extras.loader_bench.webdataset_loader import WebDatasetLoader
from tta_pipeline.loading.reader import Stream
from tta_pipeline.loading.stream_order import stored_order
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.verification import find_shard_sets, verify_shard_sets
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import SMALL, in_one_line
from tta_pipeline_tests.results.database.made import record
from tta_pipeline_tests.shards.cell import CELL, CLASS_MAP, QUIET

STRANGE = "da[t]a* {a,b} '\"ü$x #%41&|~;"


def test_a_data_root_with_signs_of_patterns_works(
    tmp_path: Path, write: Callable[..., object], monkeypatch: pytest.MonkeyPatch
):
    """Shards, the stream, records, the database and the doctor take brackets, stars, quotes and spaces for names."""
    locations = Locations(root=tmp_path / STRANGE)
    monkeypatch.setenv("TTA_DATA_ROOT", str(locations.root))
    folder = locations.root / "made" / "shards" / "fog" / "5"
    write(folder)
    shard_set = publish_shard_set(folder, CLASS_MAP, QUIET).shard_set
    record(locations)
    locations.benchmark_files.mkdir()
    (locations.benchmark_files / "small.yaml").write_text(SMALL)

    assert 1 == publish_metrics(locations).num_added
    assert 0 == publish_metrics(locations).num_added
    with open_metrics(locations.metrics) as connection:
        assert [("made",)] == connection.execute("SELECT benchmark FROM evaluations").fetchall()
    assert [()] == [
        verdict.problems for verdict in verify_shard_sets(find_shard_sets([locations.root]), quiet_reporter)
    ]
    stream = Stream(shard_set=shard_set, order=stored_order(shard_set.index), batch_size=20, image_size=32)
    assert [20] == [len(batch.indices) for batch in stream]
    findings = {finding.subject: finding for finding in examine(locations, home=find_home(locations))}
    assert {"ok"} == {findings[subject].mark for subject in ("data root", "left-overs", "results", "small")}


def test_webdataset_names_a_path_that_it_cannot_open(tmp_path: Path, write: Callable[..., object]):
    """It would look for another file."""
    write(tmp_path / "a#b")
    shard_set = publish_shard_set(tmp_path / "a#b", CLASS_MAP, QUIET).shard_set

    with pytest.raises(LoaderError, match=rf"{re.escape(str(shard_set.folder))} .*#"):
        next(
            iter(
                WebDatasetLoader(
                    shard_set=shard_set, order=stored_order(shard_set.index), batch_size=4, image_size=32,
                    folder=tmp_path, num_threads=0, output="uint8",
                )
            )
        )  # fmt: skip


@pytest.mark.parametrize("name", ["a?b", "a\nb", "a\x1bb", "a\udcffb"])
def test_a_data_root_that_cannot_work_is_refused_at_once(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """DuckDB reads a question mark as the end of a name; logs have a line for each thing."""
    with pytest.raises(DataRootError, match=re.escape(repr(str(tmp_path / name)))):
        Locations(root=tmp_path / name)

    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / name))
    finished = CliRunner().invoke(main, ["doctor"])

    assert 1 == finished.exit_code
    assert finished.stderr.startswith("error: ")
    assert 1 == len(in_one_line(finished.stderr).splitlines())
    assert not list(tmp_path.iterdir())


@pytest.fixture
def store(tmp_path: Path) -> Locations:
    """An own data root and a store with shards and weights of `small`."""
    for name in ("shards", "source_models"):
        (tmp_path / "lab" / "small" / name).mkdir(parents=True)
    (tmp_path / "lab" / "small" / "source_models" / "cnn.safetensors").touch()
    (tmp_path / "lab" / "benchmarks").mkdir()
    return Locations(root=tmp_path / "own", store=tmp_path / "lab")


def test_a_store_has_shards_and_the_own_root_has_results(store: Locations):
    """What others made is read where they keep it; results, trainings, and benchmarks of one's own are one's own."""
    of_the_store = (store.shards("small", CELL), store.class_map("small"), store.source_model("small", "cnn"))
    own = (
        store.results("small"), store.states("small"), store.training("small", "cnn"),
        store.source_model("small", "of_mine"), store.shards("mine", CELL), store.class_map("mine"), store.metrics,
    )  # fmt: skip

    assert all(path.is_relative_to(store.store) for path in of_the_store)
    assert all(path.is_relative_to(store.root) for path in own)
    for path in own:
        store.require_own(path)
    keeper = rf"{re.escape(str(store.store))} \(TTA_SHARDS_ROOT\) .*\b{store.store.owner()}\b"
    for path in of_the_store:
        with pytest.raises(DataRootError, match=rf"{re.escape(str(path))} .* {keeper}"):
            store.require_own(path)


def test_no_classes_are_pinned_in_a_store(store: Locations):
    """Only the classes that its keeper pinned count there."""
    benchmark = Benchmark.model_validate({**yaml.safe_load(SMALL), "name": "small"})
    pinned_at = store.class_map("small")

    with pytest.raises(DataRootError, match=re.escape(str(pinned_at))):
        load_class_map(benchmark, store, find_classes=lambda: CLASS_MAP.classes)
    assert pin_class_map(pinned_at, lambda: CLASS_MAP.classes) == load_class_map(benchmark, store)


def test_shards_in_both_places_are_refused(store: Locations):
    """Which of them an evaluation would read could not be seen in its result."""
    (store.root / "small" / "shards").mkdir(parents=True)

    with pytest.raises(DataRootError, match=r"\bsmall\b.*/own/small/shards\b.*/lab .*\bTTA_SHARDS_ROOT\b"):
        store.shards("small", CELL)


def test_a_store_that_is_not_there_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without it every benchmark would be made anew; and a store in the own root would be written to."""
    monkeypatch.setenv("TTA_SHARDS_ROOT", str(tmp_path / "lab"))
    with pytest.raises(DataRootError, match=r"TTA_SHARDS_ROOT .*/lab\b"):
        Locations.from_environment()

    (tmp_path / "lab").mkdir()
    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path))
    with pytest.raises(DataRootError, match=r"TTA_SHARDS_ROOT .*/lab\b.*\bTTA_DATA_ROOT\b"):
        Locations.from_environment()

    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / "lab"))
    assert Locations.from_environment().store is None


def test_an_own_benchmark_file_counts_instead_of_the_store_s(store: Locations):
    """Its experiments read the store's shards; files of other names are read from both."""
    for folder, name, title in (("lab", "small", "Theirs"), ("lab", "other", "Other"), ("own", "small", "Mine")):
        path = store.root.parent / folder / "benchmarks" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SMALL.replace("Few digits, few cells", title))

    loaded = load_all_benchmarks(store)

    assert ("Mine", "Other") == (loaded.benchmarks["small"].title, loaded.benchmarks["other"].title)
    assert () == loaded.faults


def test_a_data_root_inside_the_store_is_ones_own(tmp_path: Path):
    """What is written there is not written into the rest of the store."""
    locations = Locations(root=tmp_path / "store" / "me", store=tmp_path)

    locations.require_own(locations.results("small"))
    with pytest.raises(DataRootError, match=re.escape(str(tmp_path / "small"))):
        locations.require_own(tmp_path / "small")


def test_an_evaluation_that_is_only_compared_leaves_nothing_under_the_data_root(tmp_path: Path):
    """Results, states and text features are in its own folder."""
    compared = Locations(root=tmp_path / "data", scratch=tmp_path / "compared")
    written = (compared.results("small"), compared.states("small"), compared.text_features)

    assert all(path.is_relative_to(tmp_path / "compared") for path in written)
