"""The package as people import it: its names, its page, its examples, and the verb that is the same on a shell."""

import ast
import importlib
import inspect
import json
import os
import pickle
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch.utils.data import DataLoader

import tta_pipeline as tta
from tta_pipeline.cli import main
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import StreamError
from tta_pipeline.results.database.publication import publish_metrics
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.conftest import SMALL, Project, in_one_line, launcher, start_python, write_tree
from tta_pipeline_tests.evaluation.test_evaluator import small_model
from tta_pipeline_tests.hub_server import hub_server
from tta_pipeline_tests.library_data import draw_cifar10, write_hub_folder
from tta_pipeline_tests.methods.own_method import Mirrored
from tta_pipeline_tests.models.onnx_file import write_onnx
from tta_pipeline_tests.ports import free_ports

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/guides/python.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture
def fog(tmp_path: Path) -> Path:
    """Class folders of fog at severity 5."""
    write_tree(tmp_path / "ImageNet-C/fog/5", classes={f"n{number:02d}": 12 for number in range(10)})
    return tmp_path / "ImageNet-C/fog/5"


def test_importing_the_package_costs_neither_torch_nor_dagster():
    """Nor anything else of weight, though every name is there to complete."""
    code = (
        "import sys, tta_pipeline as tta\n"
        "assert set(tta.__all__) <= set(dir(tta))\n"
        "print([name for name in ('torch', 'dagster', 'numpy', 'pyarrow', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "[]\n" == done.stdout


def test_every_name_is_documented_and_typed():
    """The stub has the names of the package; each function says what it takes, returns and raises."""
    stub = ast.parse((ROOT / "tta_pipeline/__init__.pyi").read_text())
    imported = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}

    assert imported | {"__version__"} == set(tta.__all__)
    for name in imported:
        found = getattr(tta, name)
        assert found.__doc__, name
        if inspect.isfunction(found):
            parameters = inspect.signature(found).parameters.values()
            assert all(parameter.annotation is not inspect.Parameter.empty for parameter in parameters), name
            assert "Raises:" in found.__doc__, name
    assert (ROOT / "tta_pipeline/py.typed").exists()
    with pytest.raises(AttributeError, match=r"'shards_of'.*\bEvaluation\b"):
        tta.shards_of  # noqa: B018


def test_the_page_runs_as_it_stands(fog: Path, sweep: Project, monkeypatch: pytest.MonkeyPatch, capsys):
    """Every block of docs/guides/python.md, one after the other, on class folders of ten classes."""
    monkeypatch.chdir(fog.parents[2])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("TTA_DATA_ROOT", str(sweep.locations.root))
    recipes = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guides/own-model.md").read_text(), re.DOTALL)
    Path("my_models.py").write_text(next(text for text in recipes if "SmallResNet" in text))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)  # of another test's folder
    names = {"model_weights": tta.load_model("torchvision:resnet18", num_classes=10, weights=None).network.state_dict()}

    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block.replace('"digits_c", "tent", "fog|5"', '"small", "tent", "contrast|5"'), names)

    assert not names["mistakes"].correct.any()
    assert ("fog|5", 120) == (names["result"].cell.key, names["result"].scores.num_samples)
    assert (0.5, 0.5, 0.5) == tuple(names["model"].mean.flatten().tolist())
    assert re.search(r"\d+\.\d%, ece \d+\.\d%, [\d,]+ images/s, order [0-9a-f]{8}", capsys.readouterr().out)
    assert {"source", "norm", "tent"} <= {row["experiment"] for row in names["table"].to_pylist()}


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of thirty images of ten classes."""
    folder = tmp_path_factory.mktemp("few")
    write_tree(folder / "images", classes={f"n{number:02d}": 3 for number in range(10)})
    tta.shard(folder / "images", folder / "shards/fog/5", num_shards=1)
    return folder / "shards/fog/5"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let huggingface_hub send to a server of this machine, and return the folder in which repositories arrive."""
    with hub_server(tmp_path / "hub") as address:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield tmp_path / "hub"


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_print_what_they_say(
    example: Path, sweep: Project, fog: Path, few: Path, monkeypatch: pytest.MonkeyPatch, *, capsys
):
    """Each is a script of at most forty lines of code, and its docstring shows what it prints, up to the numbers."""
    if example.stem == "hub_images":
        pytest.importorskip("datasets", reason="datasets, which is not in the extra dev, is not installed")
    small, tmp_path = sweep.locations.root / "small", fog.parents[2]
    shards, model = small / "shards", small / "source_models/cnn.safetensors"
    given = {
        "compare_methods": (shards / "contrast/5", model, tmp_path / "methods.png"),
        "continual": (model, shards / "gaussian_noise/5", shards / "contrast/5"),
        "filter_and_augment": (shards / "contrast/5", tmp_path / "mirrored/contrast/5"),
        "hub_images": (write_hub_folder(tmp_path / "you", "fog_5"), "0" * 40, tmp_path / "shards/fog/5"),
        "onnx_model": (tmp_path / "network.onnx", shards / "contrast/5"),
        "own_method": (shards / "contrast/5", model),
        "own_model": (shards / "contrast/5",),
        "push_to_hub": (shards, "you/digits_c"),
        "query_results": (sweep.locations.root,),
        "read_shards": (shards / "contrast/5",),
        "shard_folder": (fog, tmp_path / "shards/fog/5"),
        "torchvision_images": (draw_cifar10(tmp_path / "cifar", monkeypatch), tmp_path / "shards/clean/0"),
        "torchrun_forward": (shards / "contrast/5", model),
        "train_and_adapt": (few, few),
    }[example.stem]
    monkeypatch.setattr(sys, "argv", [str(example), *map(str, given)])
    monkeypatch.syspath_prepend(example.parent)
    write_onnx(tmp_path / "network.onnx", torch.nn.Linear(3 * 32 * 32, 10))
    publish_metrics(sweep.locations)

    runpy.run_path(str(example), run_name="__main__")

    printed = capsys.readouterr().out
    text = example.read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    # Which experiment is the best is a number, too.
    assert sorted(masked(docstring.partition("prints\n\n")[2])) == sorted(masked(printed))
    assert len(text.splitlines()) - len(docstring.splitlines()) <= 40
    assert f"examples/{example.name}" in docstring


def test_shards_go_to_the_hub_whole(
    sweep: Project, few: Path, hub: Path, monkeypatch: pytest.MonkeyPatch, *, tmp_path: Path
):
    """By the example and by the lines of the page; what arrives verifies, and has no note of this machine."""
    (lines,) = re.findall(
        r"```python\n(from huggingface_hub.*?)```", (ROOT / "docs/guides/publishing.md").read_text(), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    shutil.copytree(few.parents[1], "data/mine/shards")
    exec(lines, {})
    monkeypatch.setattr(sys, "argv", ["push_to_hub", str(few.parents[1]), "you/few"])
    runpy.run_path(str(ROOT / "examples/push_to_hub.py"), run_name="__main__")

    for repository in (hub / "you/mine", hub / "you/few"):
        assert all(not verdict.problems for verdict in tta.verify(repository))
        assert tta.open_shards(few).manifest == tta.open_shards(repository / "fog/5").manifest
        assert {"fog-5-00000.tar", "manifest.json", "samples.parquet", "checksums.xxh64"} == {
            path.name for path in (repository / "fog/5").iterdir()
        }


def masked(text: str) -> list[str]:
    """Return the lines of *text* with every number, and the room around it, as one sign."""
    return [re.sub(r"\s*[\d.,]*\d[\da-f]*%?\s*", "#", line.strip()) for line in text.strip().splitlines()]


def test_shards_are_a_dataset(fog: Path, tmp_path: Path):
    """Samples by number, a transform, workers, pickling; all batches together are all samples, each once."""
    cell = tta.shard(fog, tmp_path / "shards/fog/5", num_shards=3)
    whole = [(np.asarray(image), label) for image, label in (cell[number] for number in range(len(cell)))]
    as_tensors = tta.open_shards(tmp_path / "shards/fog/5", transform=lambda image: torch.tensor(np.asarray(image)))

    assert (120, 10, "fog|5") == (len(cell), len(cell.classes), cell.manifest.cell.key)
    np.testing.assert_array_equal(whole[-1][0], cell[-1][0])
    np.testing.assert_array_equal(whole[7][0], as_tensors[7][0].numpy())
    np.testing.assert_array_equal(whole[7][0], pickle.loads(pickle.dumps(cell))[7][0])
    streamed = torch.cat([batch.images.clone() for batch in cell.stream(batch_size=50)])
    np.testing.assert_array_equal(np.stack([image for image, _ in whole]), streamed.numpy())
    batches = pickle.loads(pickle.dumps(cell.batches(batch_size=16)))
    loader = DataLoader(batches, batch_size=None, num_workers=2)
    labels = torch.cat([labels for _, labels in loader])
    assert sorted(label for _, label in whole) == sorted(labels.tolist())
    with pytest.raises(IndexError):
        cell[120]


@pytest.mark.parametrize("num_ranks", [1, 2, 7, 30])
def test_ranks_share_the_samples(few: Path, tmp_path: Path, num_ranks: int):
    """Each comes once over all ranks, with its label, by number and in batches; sizes differ by one at most."""
    whole = tta.shard(few.parents[2] / "images", tmp_path / "shards/fog/5", num_shards=3)
    shares = [tta.open_shards(tmp_path / "shards/fog/5", rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
    index = whole.shard_set.index

    for rank, share in enumerate(shares):
        assert len(share) == len(range(rank, 30, num_ranks))
        np.testing.assert_array_equal(share[-1][0], whole[range(rank, 30, num_ranks)[-1]][0])
        assert share[0][1] == index.labels[rank]
        assert index.keys[rank::num_ranks] == share.shard_set.index.keys
        batches = share.batches(batch_size=16, shuffle_seed=rank)
        seen = torch.cat([labels for _, labels in DataLoader(batches, batch_size=None)])
        assert sorted(index.labels[rank::num_ranks]) == sorted(seen.tolist())
    by_number = [label for share in shares for _, label in (share[number] for number in range(len(share)))]
    assert sorted(index.labels) == sorted(by_number)


def test_a_rank_shuffles_as_all_samples_are_shuffled(fog: Path, tmp_path: Path):
    """The share has the order that its samples have in the permutation of the whole set, and workers divide it."""
    whole = tta.shard(fog, tmp_path / "shards/fog/5", num_shards=3)
    share = tta.open_shards(tmp_path / "shards/fog/5", rank=1, num_ranks=2)

    def keys(cell: tta.Shards) -> list[str]:
        order = np.concatenate([batch.indices for batch in cell.stream(batch_size=16, shuffle_seed=3)])
        return [cell.shard_set.index.keys[position] for position in order]

    own = {*share.shard_set.index.keys}
    assert [key for key in keys(whole) if key in own] == keys(share)
    workers = DataLoader(share.batches(batch_size=16, shuffle_seed=3), batch_size=None, num_workers=2)
    assert 60 == sum(len(labels) for _, labels in workers)
    assert 4 == len(share.batches(batch_size=16))


@pytest.mark.parametrize(
    ("rank", "num_ranks", "found"),
    [
        (-1, 2, r" -1 .* 2\b"),
        (2, 2, r" 2 .* 2\b"),
        (1, 1, r" 1 .* 1\b"),
        (0, 0, r" 0 .* 0\b"),
        (0, 121, r"121 .* 120 .*/shards/fog/5\b"),
    ],
)
def test_a_rank_that_is_none_is_refused(fog: Path, tmp_path: Path, rank: int, num_ranks: int, found: str):
    """So is a number of ranks that leaves one without a sample."""
    tta.shard(fog, tmp_path / "shards/fog/5", num_shards=1)

    with pytest.raises(StreamError, match=found):
        tta.open_shards(tmp_path / "shards/fog/5", rank=rank, num_ranks=num_ranks)


def test_a_result_of_a_share_says_so(sweep: Project):
    """It is a subset, and the predictions are those that the whole set has."""
    small = sweep.locations.root / "small"
    folder, model = small / "shards/contrast/5", tta.load_model(str(small / "source_models/cnn.safetensors"))
    method = tta.build("source", model, num_classes=10)

    whole = tta.evaluate(method, folder, keep=True)
    parts = [tta.evaluate(method, tta.open_shards(folder, rank=rank, num_ranks=2), keep=True) for rank in (0, 1)]

    assert ["rank 0 of 2", "rank 1 of 2"] == [part.cell.subset for part in parts]
    rows = [row for part in parts for row in part.predictions.select(["key", "prediction"]).to_pylist()]
    assert {row["key"]: row["prediction"] for row in rows} == dict(
        zip(*(whole.predictions[name].to_pylist() for name in ("key", "prediction")), strict=True)
    )
    few = tta.evaluate(method, tta.open_shards(folder, rank=1, num_ranks=2), limit=5)
    assert ("rank 1 of 2, first 5", 5) == (few.cell.subset, few.scores.num_samples)


EXAMPLE = """
import runpy, sys
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def test_two_processes_read_every_sample_once(sweep: Project):
    """The example, in the environment that torchrun gives, prints the samples of both, and the figures of each."""
    given = torchrun_arguments(sweep)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": str(free_ports(1)[0])}  # fmt: skip

    ranks = [
        start_python(
            EXAMPLE, *given, env={**environment, "RANK": rank, "LOCAL_RANK": rank}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in "01"
    ]  # fmt: skip
    printed, of_second = (rank.communicate(timeout=600)[0] for rank in ranks)

    assert [0, 0] == [rank.returncode for rank in ranks], printed + of_second
    assert has_both_shares(printed)


@pytest.mark.slow
def test_two_processes_of_torchrun_read_every_sample_once(sweep: Project):
    """So do those that torchrun itself starts."""
    command = "python -m torch.distributed.run --standalone --nproc-per-node 2"

    done = launcher().run(
        [*command.split(), *torchrun_arguments(sweep)], {**os.environ, "OMP_NUM_THREADS": "1"}, timeout_s=600
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    assert has_both_shares(done.stdout)


def torchrun_arguments(sweep: Project) -> tuple[str, str, str]:
    """Return the example of torchrun, and its arguments."""
    small = sweep.locations.root / "small"
    example = ROOT / "examples/torchrun_forward.py"
    return str(example), str(small / "shards/contrast/5"), str(small / "source_models/cnn.safetensors")


def has_both_shares(printed: str) -> bool:
    """Return whether two processes together read each of 150 images once, and each process half of them."""
    shares = [("0", "75"), ("1", "75")]
    return "150 of 150 images, 0 twice" in printed and shares == re.findall(r"rank (\d): (\d+) images", printed)


def test_a_flipped_bit_is_found_by_whoever_reads(fog: Path, tmp_path: Path):
    """By number or in batches; the message names the sample."""
    cell = tta.shard(fog, tmp_path / "shards/fog/5", num_shards=1)
    (shard,) = (tmp_path / "shards/fog/5").glob("*.tar")
    data = bytearray(shard.read_bytes())
    data[int(cell.shard_set.index.offsets[3]) + 20] ^= 1
    shard.write_bytes(data)

    with pytest.raises(tta.PipelineError, match=rf"{shard.name}.*\b{cell.shard_set.index.keys[3]} .* byte \d+"):
        tta.open_shards(tmp_path / "shards/fog/5")[3]
    with pytest.raises(tta.PipelineError, match=cell.shard_set.manifest.shards[0].sha256):
        cell.batches()


def test_a_result_is_that_of_the_pipeline(sweep: Project):
    """The same model, method and shards have the same predictions as the assets' run, in a record of the same kind."""
    small = sweep.locations.root / "small"
    model = tta.load_model(str(small / "source_models/cnn.safetensors"))
    method = tta.build("tent", model, num_classes=10, preset="cifar", batch_size=32)

    result = tta.evaluate(method, small / "shards/contrast/5", batch_size=32)

    (recorded,) = tta.query(
        "SELECT error, predictions_sha256, order_hash, weights_sha256 FROM evaluations WHERE experiment = 'tent' "
        "AND corruption = 'contrast' AND severity = 5 AND benchmark = 'small' AND counts",
        data_root=sweep.locations.root,
    ).to_pylist()
    assert (recorded["error"], recorded["predictions_sha256"]) == (result.error, result.predicted.predictions_sha256)
    assert recorded["order_hash"] == result.cell.order_hash
    few = tta.evaluate(method, small / "shards/contrast/5", limit=40, name="mine")
    assert (40, "mine") == (few.scores.num_samples, few.labels.experiment)


def test_a_method_with_other_classes_than_the_shards_is_refused(sweep: Project):
    """A label would be another class of the model, and the error near 100 %."""
    method = tta.build("source", torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(1000)), num_classes=1000)

    with pytest.raises(tta.PipelineError, match=r"source has 1,000 outputs.*10 classes"):
        tta.evaluate(method, sweep.locations.root / "small/shards/contrast/5")


NEW_METHOD = """
from tta_pipeline.methods.batch_norm.norm import Norm


class Mine(Norm):
    name = "mine"
"""


def test_a_method_that_was_edited_since_it_was_imported_is_refused(
    sweep: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its number would be that of other code than lies there; one that was written in a notebook has no file."""
    cell = tta.open_shards(sweep.locations.root / "small/shards/contrast/5")
    network = tta.load_model("torchvision:resnet18", num_classes=10, weights=None)
    settings = tta.build("norm", network, num_classes=10).hyperparameters
    (tmp_path / "method_of_mine.py").write_text(NEW_METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    mine = importlib.import_module("method_of_mine").Mine(network, settings, num_classes=10)
    cells_of_notebook = {"__name__": "notebook_of_mine"}
    exec(NEW_METHOD, cells_of_notebook)
    written = cells_of_notebook["Mine"](network, settings, num_classes=10)

    assert 64 == len(json.loads(tta.evaluate(mine, cell, limit=8).setup.fingerprint_parts)["code"])
    (tmp_path / "method_of_mine.py").write_text(NEW_METHOD + "    is_better = True\n")
    with pytest.raises(tta.PipelineError, match=r"\bmine\b.*/method_of_mine\.py\b"):
        tta.evaluate(mine, cell, limit=8)
    assert json.loads(tta.evaluate(written, cell, limit=8).setup.fingerprint_parts)["code"] is None


def test_a_result_says_of_weights_what_they_were_when_loaded(sweep: Project):
    """What the user did to them since is known to the user alone; of a module of the user's own nothing is known."""
    cell = tta.open_shards(sweep.locations.root / "small/shards/contrast/5")
    network = tta.load_model("torchvision:resnet18", num_classes=10, weights=None)
    before = tta.evaluate(tta.build("source", network, num_classes=10), cell, limit=8)
    with torch.no_grad():
        network.network.fc.bias += 1
    trained = tta.evaluate(tta.build("source", network, num_classes=10), cell, limit=8)
    own = tta.evaluate(tta.build("source", network.network.eval(), num_classes=10), cell, limit=8)

    assert ["untrained when loaded"] * 2 == [before.setup.weights, trained.setup.weights]
    assert before.setup.weights_sha256 != trained.setup.weights_sha256
    assert "as they were given" == own.setup.weights


def test_a_model_normalises_as_it_is_told(tmp_path: Path):
    """By mean and std that are given or published; weights of one's own need them, and are read from files too."""
    own = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
    network = tta.load_model("timm:resnet18", num_classes=7, weights=None, **own)
    images = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(own[name])[:, None, None] for name in ("mean", "std"))
    torch.testing.assert_close(network.network((images - mean) / std), network(images))

    torch.save(network.network.state_dict(), tmp_path / "mine.pth")
    for weights in (tmp_path / "mine.pth", network.network.state_dict()):
        again = tta.load_model("timm:resnet18", num_classes=7, weights=weights, **own)
        torch.testing.assert_close(network(images), again(images))
    with pytest.raises(tta.PipelineError, match=r"\bmean\b.*\bstd\b"):
        tta.load_model("timm:resnet18", num_classes=7, weights=tmp_path / "mine.pth")
    with pytest.raises(tta.PipelineError, match=r"(?s)\bresnet34\b.* 7 .*\blayer1\.2\.conv1\.weight\b"):
        tta.load_model("timm:resnet34", num_classes=7, weights=network.network.state_dict(), **own)
    with pytest.raises(tta.PipelineError, match=r"mean.* 7"):
        tta.load_model("timm:resnet18", num_classes=7, weights=tmp_path / "mine.pth", mean=(7, 0, 0), std=own["std"])
    for name in ("resnet18", "timm:"):
        with pytest.raises(tta.PipelineError, match=f"'{name}'.* timm:"):
            tta.load_model(name)
    with pytest.raises(tta.PipelineError, match=r"\bkeras\b.*'keras:resnet18'"):
        tta.load_model("keras:resnet18")


@pytest.mark.parametrize(
    "given",
    [{"weights": None}, {"weights": "mine.pth"}, {"weights": {"w": torch.ones(2)}}, {"mean": (0.5,) * 3},
     {"std": (0.5,) * 3}],
    ids=lambda given: next(iter(given)),
)  # fmt: skip
def test_a_source_model_has_its_own_weights_and_normalisation(sweep: Project, given: dict[str, object]):
    """What is given besides would have no effect, so it is refused by name."""
    path = sweep.locations.root / "small/source_models/cnn.safetensors"

    with pytest.raises(tta.PipelineError, match=rf"^{next(iter(given))} .*{re.escape(str(path))}"):
        tta.load_model(str(path), **given)


def test_the_verb_gives_a_number_and_records_nothing_unless_asked(sweep: Project, project: Project):
    """Of a method of one's own in the working directory; with --record it stands in the database."""
    small = sweep.locations.root / "small"
    common = ("evaluate", str(small / "shards/contrast/5"), "--model", str(small / "source_models/cnn.safetensors"))

    told = project.run(
        "tta-pipeline", *common, "--method", "tent", "--preset", "cifar", "--set", "lr=0.01", "--batch-size", "50",
        "--device", "cpu", "--json",
    )  # fmt: skip
    recorded = project.run("tta-pipeline", *common, "--limit", "50", "--record", "first", "--quiet")

    assert 0 == told.returncode == recorded.returncode, told.stderr + recorded.stderr
    row = json.loads(told.stdout)
    config = json.loads(row["config"])
    assert (150, "contrast", 0.01, 50) == (
        row["num_samples"], row["corruption"], config["hyperparameters"]["lr"], config["batch_size"],
    )  # fmt: skip
    rows = tta.query("SELECT experiment, num_samples FROM evaluations", data_root=project.locations.root).to_pylist()
    assert [{"experiment": "first", "num_samples": 50}] == rows
    for wrong, says in (
        (("--set", "lr"), "expected NAME=VALUE"),
        (("--method", "tent", "--set", "lr=fast"), "tent: lr is 'fast'"),
        (("--record", "a/b"), "--record is 'a/b'"),
        (("--record", "a-b"), "--record is 'a-b'; expected a name of letters, digits and single _"),
        (("--method", "none_such:X"), "none_such"),
        (("--weights", "none"), "weights is None, but the source model"),
        (("--mean", "0", "0", "0"), "mean is (0.0, 0.0, 0.0), but the source model"),
        (("--std", "1", "1", "1"), "std is (1.0, 1.0, 1.0), but the source model"),
    ):
        refused = CliRunner().invoke(main, [*common, *wrong], env=project.environment)
        assert refused.exit_code in (1, 2)
        assert says in in_one_line(refused.stderr).replace("\n", " ")


@pytest.mark.parametrize(
    ("file", "expected"),
    [("fogs", ("imagenet_c", 12, "digital", True)), ("others", ("own", None, None, None))],
)
def test_a_record_has_the_dataset_of_the_benchmark_that_its_manifest_names(
    fog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, expected: tuple[object, ...]
):
    """So that it stands beside the results of the file; of shards that no file names, the set is called own."""
    data = Locations(root=tmp_path / "data")
    data.benchmark_files.mkdir(parents=True)
    (data.benchmark_files / f"{file}.yaml").write_text(SMALL)
    tta.shard(fog, tmp_path / "fogs/contrast/5", num_shards=1)
    monkeypatch.setenv("TTA_DATA_ROOT", str(data.root))
    command = ("--model", "torchvision:shufflenet_v2_x0_5", "--weights", "none", "--record", "mine", "--device", "cpu",
               "--limit", "4")  # fmt: skip

    done = CliRunner().invoke(main, ["evaluate", str(tmp_path / "fogs/contrast/5"), *command])

    assert 0 == done.exit_code, done.output
    columns = "dataset, shift_position, shift_family, counts_in_mean"
    (row,) = tta.query(f"SELECT {columns} FROM evaluations", data_root=data.root).to_pylist()
    assert expected == tuple(row.values())


def test_a_method_without_a_name_of_its_own_is_not_called_what_it_inherits(shard_set: ShardSet):
    """Neither if it was built by its import path nor by hand; nobody published its hyperparameters."""
    path = "tta_pipeline_tests.methods.own_method"
    built = tta.build(f"{path}:MIRRORED", small_model(), num_classes=3)
    by_hand = Mirrored(small_model(), built.hyperparameters, num_classes=3)

    rows = [tta.evaluate(method, shard_set.folder) for method in (built, by_hand)]

    assert (
        [f"{path}:MIRRORED", f"{path}:Mirrored"]
        == [row.setup.method for row in rows]
        == [row.labels.experiment for row in rows]
    )
    assert ["own", "own"] == [row.labels.hyperparameters_origin for row in rows]
    named = tta.build(f"{path}:LAST_CLASS", small_model(), num_classes=3)
    assert "last_class" == tta.evaluate(named, shard_set.folder).setup.method


def test_random_weights_are_those_of_the_seed(sweep: Project):
    """Else the number that an author of a method sees without weights would be another one each time."""
    shards = str(sweep.locations.root / "small" / "shards/contrast/5")
    asked = ("evaluate", shards, "--model", "torchvision:shufflenet_v2_x0_5", "--weights", "none", "--limit", "8",
             "--device", "cpu", "--json", "-q")  # fmt: skip

    told = [CliRunner().invoke(main, [*asked, "--seed", seed], catch_exceptions=False) for seed in ("1", "1", "2")]

    one, again, other = (json.loads(each.stdout)["weights_sha256"] for each in told)
    assert one == again != other
    shown, wide = (CliRunner().invoke(main, [*asked[:-2], *option]).stdout for option in ((), ("--wide",)))
    assert all(
        "untrained: torchvision shufflenet_v2_x0_5: random weights" in " ".join(each.split()) for each in (shown, wide)
    )
    assert "generated: corrupted images were generated" in shown
    assert re.search(r"^method +corruption +severity +error +ms per image +samples", shown, re.MULTILINE)
    assert "top-5" in wide
    assert "top-5" not in shown


def test_a_record_lies_under_the_data_root_alone(fog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever the manifest of a set of somebody's says that its benchmark is called."""
    tta.shard(fog, tmp_path / "..data/fog/5", num_shards=1)

    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / "data"))

    command = ("--model", "timm:resnet18", "--weights", "none", "--record", "mine")
    refused = CliRunner().invoke(main, ["evaluate", str(tmp_path / "..data/fog/5"), *command])

    assert 1 == refused.exit_code
    assert "belongs to the benchmark '..data'" in in_one_line(refused.stderr)


def test_an_archive_is_not_called_missing(tmp_path: Path):
    """It is there: the error says that it is a file, and which command reads archives."""
    (tmp_path / "x.tar").write_bytes(b"tar")

    with pytest.raises(tta.PipelineError, match=r"x\.tar .*`tta-pipeline shards make .*x\.tar "):
        tta.shard(tmp_path / "x.tar", tmp_path / "out", num_shards=1)
