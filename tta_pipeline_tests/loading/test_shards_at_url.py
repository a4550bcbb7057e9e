"""Shards at a URL are opened, evaluated and adopted by their address, without a benchmark file."""

import json
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

import tta_pipeline as tta
from tta_pipeline.cli import main
from tta_pipeline.errors import ImagesError, ManifestError, StreamError
from tta_pipeline.loading.dataset import Shards
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import write_tree
from tta_pipeline_tests.loading.servers import Web, web_server


@pytest.fixture
def web(shard_set: ShardSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    """A server of the shard set at `/data/fog/5`, and a $TMPDIR of its own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    shutil.copytree(shard_set.folder, tmp_path / "web" / "data" / "fog" / "5")
    with web_server(tmp_path / "web") as server:
        yield server


@pytest.fixture
def url(web: Web) -> str:
    """The URL of the shard set."""
    return f"{web.url}/data/fog/5"


def without_manifest(tmp_path: Path) -> None:
    """Leave a folder of shards that nobody has described."""
    for name in ("manifest.json", "samples.parquet", "checksums.bin"):
        (tmp_path / "web" / "data" / "fog" / "5" / name).unlink(missing_ok=True)


def images(shards: Shards) -> np.ndarray:
    """Return all images in stored order."""
    return np.concatenate([batch.images.numpy().copy() for batch in shards.stream(batch_size=6)])


def adopt(*arguments: object) -> Result:
    """Run the verb."""
    return CliRunner().invoke(main, ["shards", "index", *map(str, arguments)])


@pytest.mark.parametrize("is_described", [True, False])
def test_a_url_opens_as_a_folder_does(shard_set: ShardSet, url: str, tmp_path: Path, *, is_described: bool):
    """Samples and pixels are those of the disk, by the shards' own manifest or by a listing; no shard is kept."""
    if not is_described:
        without_manifest(tmp_path)
    here = tta.open_shards(shard_set.folder)

    far = tta.open_shards(url)

    assert here.manifest.shards == far.manifest.shards
    assert here.manifest.cell == far.manifest.cell
    np.testing.assert_array_equal(images(here), images(far))
    assert not list((tmp_path / "tmp").rglob("fog-5-*.tar"))


def test_ranks_share_the_samples_at_a_url(shard_set: ShardSet, url: str):
    """Each rank reads every third one."""
    whole = images(tta.open_shards(shard_set.folder))

    for rank in range(3):
        np.testing.assert_array_equal(whole[rank::3], images(tta.open_shards(url, rank=rank, num_ranks=3)))


def test_a_url_that_was_opened_is_not_read_again(url: str, web: Web, tmp_path: Path):
    """What was found is kept in $TMPDIR, and compared with what the server has."""
    without_manifest(tmp_path)
    tta.open_shards(url)
    num_read = sum(not line.endswith("=0-0") for line in web.requests())

    tta.open_shards(url)

    assert num_read == sum(not line.endswith("=0-0") for line in web.requests())


def test_other_shards_at_the_url_are_described_anew(url: str, tmp_path: Path):
    """A shard that was replaced on the server is not taken for the one before."""
    without_manifest(tmp_path)
    before = tta.open_shards(url).manifest
    served = tmp_path / "web" / "data" / "fog" / "5"
    (served / before.shards[-1].name).unlink()

    after = tta.open_shards(url).manifest

    assert before.shards[:-1] == after.shards


def test_a_method_is_evaluated_on_a_url(shard_set: ShardSet, url: str):
    """The predictions are those of the folder, in Python and by the verb."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 3))
    here, far = (
        tta.evaluate(tta.build("source", model, num_classes=3), place, num_threads=1)
        for place in (shard_set.folder, url)
    )
    assert here.predicted.predictions_sha256 == far.predicted.predictions_sha256

    command = ["evaluate", url, "--model", "torchvision:shufflenet_v2_x0_5", "--weights", "none", "--limit", "4"]
    done = CliRunner().invoke(main, [*command, "--json", "--device", "cpu"])
    assert 4 == json.loads(done.stdout)["num_samples"], done.stderr


def test_shards_at_urls_are_adopted_where_they_are(shard_set: ShardSet, web: Web, tmp_path: Path):
    """Each gets a manifest in the folder of its cell; they share the classes of the first; the second time is quick."""
    whole, fewer = (tmp_path / "web" / "data" / "fog" / severity for severity in "35")
    fewer.rename(whole)
    write_tree(tmp_path / "images", classes=dict.fromkeys(shard_set.manifest.classes[1:], 2))
    tta.shard(tmp_path / "images", fewer, num_shards=1, jobs=1)
    for folder, name in product((whole, fewer), ("manifest.json", "samples.parquet", "checksums.bin")):
        (folder / name).unlink(missing_ok=True)
    every = f"{web.url}/data/fog/{{3,5}}"

    first, second = (adopt(every, "--into", tmp_path / "made", "--json") for _ in range(2))

    assert [True, True] == [each["was_built"] for each in json.loads(first.stdout)], first.stderr
    assert [False, False] == [each["was_built"] for each in json.loads(second.stdout)]
    adopted, second_set = (tta.open_shards(tmp_path / "made" / "fog" / severity) for severity in "35")
    assert shard_set.manifest.shards == adopted.manifest.shards
    assert shard_set.manifest.classes == second_set.manifest.classes
    np.testing.assert_array_equal(images(tta.open_shards(shard_set.folder)), images(adopted))
    assert not list((tmp_path / "made").rglob("*.tar"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "--into"),
        (["--into", "made", "--files", "a.tar"], "--files"),
    ],
)
def test_options_that_do_not_go_with_a_url_are_refused(options: list[str], said: str):
    """Nothing is asked of a server."""
    refused = adopt("https://example.invalid/fog/5", *options)

    assert (2, True) == (refused.exit_code, said in refused.stderr)


def test_only_urls_of_servers_have_their_manifests_elsewhere(tmp_path: Path):
    """The error names the schemes; nothing is written."""
    refused = adopt(f"file://{tmp_path}", "--into", tmp_path / "made")

    assert "'file:'" in refused.stderr
    assert not (tmp_path / "made").exists()


def test_a_folder_takes_no_other_place_for_its_manifests(tmp_path: Path):
    """The option for URLs is refused with a folder; so is a folder that is not there."""
    assert "--into" in adopt(tmp_path, "--into", tmp_path).stderr
    assert str(tmp_path / "nothing") in adopt(tmp_path / "nothing").stderr


def test_a_url_without_shards_says_what_was_expected(web: Web, tmp_path: Path):
    """No manifest is spoken of that somebody should materialize."""
    (tmp_path / "web" / "data" / "fog" / "1").mkdir()
    with pytest.raises(ImagesError, match=f"{web.url}/data/fog/1"):
        tta.open_shards(f"{web.url}/data/fog/1")
    with pytest.raises(StreamError, match=r"'ftp:'.*\bhttp, https, s3, gs, az, hf\b"):
        tta.open_shards("ftp://host/fog/5")


def test_a_manifest_of_another_cell_than_the_url_names_is_refused(web: Web, tmp_path: Path):
    """A folder that was copied to the wrong place is not evaluated."""
    shutil.copytree(tmp_path / "web" / "data" / "fog" / "5", tmp_path / "web" / "data" / "snow" / "5")
    with pytest.raises(ManifestError, match=r"snow/5/manifest\.json.*\bfog\|5.*\bsnow\|5"):
        tta.open_shards(f"{web.url}/data/snow/5")
