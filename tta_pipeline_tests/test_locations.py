"""A data root works whatever it is called, or is refused at once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from tta_pipeline.cli import main
from tta_pipeline.doctor import examine
from tta_pipeline.errors import DataRootError, LoaderError
from tta_pipeline.locations import Locations
from tta_pipeline.metrics.database import open_metrics, publish_metrics
from tta_pipeline.progress import quiet
from tta_pipeline.shards.read_back import publish_shard_set
from tta_pipeline.shards.verification import find_shard_sets, verify
from tta_pipeline.streaming.baselines.webdataset_loader import WebDatasetLoader
from tta_pipeline.streaming.order import as_stored
from tta_pipeline.streaming.reader import Stream
from tta_pipeline_tests.conftest import SMALL
from tta_pipeline_tests.metrics.made import record
from tta_pipeline_tests.shards.cell import CLASS_MAP, QUIET

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
    assert [()] == [verdict.problems for verdict in verify(find_shard_sets([locations.root]), quiet)]
    stream = Stream(shard_set=shard_set, order=as_stored(shard_set.index), batch_size=20, image_size=32)
    assert [20] == [len(batch.indices) for batch in stream]
    findings = {finding.subject: finding for finding in examine(locations)}
    assert {"ok"} == {findings[subject].mark for subject in ("data root", "left-overs", "results", "small")}


def test_webdataset_names_a_path_that_it_cannot_open(tmp_path: Path, write: Callable[..., object]):
    """It would look for another file."""
    write(tmp_path / "a#b")
    shard_set = publish_shard_set(tmp_path / "a#b", CLASS_MAP, QUIET).shard_set

    with pytest.raises(LoaderError, match="which webdataset takes for a URL"):
        next(
            iter(
                WebDatasetLoader(
                    shard_set=shard_set, order=as_stored(shard_set.index), batch_size=4, image_size=32, folder=tmp_path,
                    output="uint8",
                )
            )
        )  # fmt: skip


@pytest.mark.parametrize("name", ["a?b", "a\nb", "a\x1bb", "a\udcffb"])
def test_a_data_root_that_cannot_work_is_refused_at_once(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    """DuckDB reads a question mark as the end of a name; logs have a line for each thing."""
    with pytest.raises(DataRootError, match=r"the data root is '.*a.+b'; expected"):
        Locations(root=tmp_path / name)

    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / name))
    finished = CliRunner().invoke(main, ["doctor"])

    assert 1 == finished.exit_code
    assert finished.stderr.startswith("DataRootError: the data root is ")
    assert 1 == len(finished.stderr.splitlines())
    assert not list(tmp_path.iterdir())
