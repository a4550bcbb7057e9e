"""A model that was published for timm on the hub is a model, at one commit."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save

import tta_pipeline as tta
from tta_pipeline.benchmarks.model_specs import HubModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.extras.training.initial_network import load_network
from tta_pipeline.models.model_kind import ModelContext, kind_of

timm = pytest.importorskip("timm")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = ("cat", "dog", "owl", "fox", "bee")
SPEC = HubModel(kind="hf", hf="someone/tiny", revision=COMMIT)


class Hub(BaseHTTPRequestHandler):
    """Answers for files of `someone/tiny` at one commit, as the hub does."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        """Answer with the facts of a file."""
        self._answer(with_body=False)

    def do_GET(self) -> None:
        """Answer with a file."""
        self._answer(with_body=True)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base class
        """Say nothing."""

    def _answer(self, *, with_body: bool) -> None:
        path = self.server.root / self.path.removeprefix(f"/someone/tiny/resolve/{COMMIT}/")
        self.server.asked.append(self.path)
        is_there = path.is_file() and f"/resolve/{COMMIT}/" in self.path
        data = path.read_bytes() if is_there else b"{}"
        self.send_response(200 if is_there else 404)
        if is_there:
            self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
        else:
            self.send_header("X-Error-Code", "EntryNotFound" if "someone/tiny" in self.path else "RepoNotFound")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if with_body:
            self.wfile.write(data)


@pytest.fixture(scope="module")
def published() -> torch.nn.Module:
    """The network as its author has it."""
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=5)


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: torch.nn.Module) -> Iterator[ThreadingHTTPServer]:
    """A server in the place of the hub, and an empty cache."""
    facts = {"num_classes": 5, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "input_size": [3, 32, 32]}
    config = {"architecture": "test_resnet", "num_classes": 5, "label_names": NAMES, "pretrained_cfg": facts}
    (tmp_path / "files").mkdir()
    (tmp_path / "files/config.json").write_text(json.dumps(config))
    (tmp_path / "files/model.safetensors").write_bytes(save(published.state_dict()))
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.root, server.asked = tmp_path / "files", []
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        template = address + "/{repo_id}/resolve/{revision}/{filename}"
        for module in ("constants", "file_download"):  # which has a copy of its own before version 1
            monkeypatch.setattr(f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


def test_a_model_of_the_hub_normalises_as_its_author_says(published: torch.nn.Module, hub: ThreadingHTTPServer):
    """Mean, std and classes are those of its config; once fetched, it needs no connection."""
    loaded = kind_of(SPEC).load(ModelContext(name="mine", classes=NAMES))
    images, num_asked = torch.rand(2, 3, 32, 32), len(hub.asked)

    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    with torch.inference_mode():
        torch.testing.assert_close(published.eval()((images - mean) / std), loaded.make().eval()(images))
    assert ("timm hf-hub:someone/tiny@" + COMMIT, 5) == (loaded.architecture, loaded.num_classes)
    assert loaded.identity == kind_of(SPEC).load(ModelContext(name="mine", classes=NAMES)).identity
    assert num_asked == len(hub.asked)


def test_its_outputs_are_found_by_their_names(published: torch.nn.Module, tmp_path: Path):
    """A benchmark with some of the classes, or with all in another order, gets the outputs for them.

    The user's names come before the author's.
    """
    model = kind_of(SPEC).load(ModelContext(name="mine", classes=("fox", "cat")))
    images = torch.rand(2, 3, 32, 32)

    assert (3, 0) == model.outputs
    with torch.inference_mode():
        torch.testing.assert_close(published.eval()(images)[:, [3, 0]], model.make_network().eval()(images))
    (tmp_path / "own.json").write_text(json.dumps(NAMES[::-1]))
    own = kind_of(SPEC.model_copy(update={"classes": tmp_path / "own.json"}))
    assert (1, 4) == own.load(ModelContext(name="mine", classes=("fox", "cat"))).outputs
    with pytest.raises(EvaluationError, match=r"\bmine\b\D*\b5\b\D*\b2\b"):
        kind_of(SPEC).load(ModelContext(name="mine", classes=("fox", "hen")))


def test_the_same_from_python(published: torch.nn.Module):
    """By timm's name for it, with the commit."""
    model = tta.load_model(f"hf-hub:someone/tiny@{COMMIT}")

    assert torch.equal(published.fc.weight, model.network.fc.weight)
    with pytest.raises(EvaluationError, match=r"model\.revision.*'main'.*`git ls-remote \S+/someone/tiny main`"):
        tta.load_model("hf-hub:someone/tiny@main")


@pytest.mark.parametrize("given", ["mean", "std"])
def test_a_mean_or_std_that_is_given_takes_the_place_of_the_published(given: str):
    """The other one stays as the author has it."""
    model = tta.load_model(f"hf-hub:someone/tiny@{COMMIT}", **{given: (0.7, 0.8, 0.9)})

    expected = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), given: (0.7, 0.8, 0.9)}
    for name, values in expected.items():
        torch.testing.assert_close(torch.tensor(values), getattr(model, name).flatten())


def test_a_branch_is_refused():
    """It moves; the error has the command that prints its commit."""
    with pytest.raises(ValidationError, match=r"'main'.*`git ls-remote https://huggingface\.co/someone/tiny main`"):
        HubModel(kind="hf", hf="someone/tiny", revision="main")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", None])
def test_what_is_not_there_is_explained(hub: ThreadingHTTPServer, missing: str | None):
    """A file of the repository, or the repository."""
    spec = SPEC if missing else SPEC.model_copy(update={"hf": "nobody/tiny"})
    if missing:
        (hub.root / missing).unlink()

    with pytest.raises(EvaluationError, match=rf"hf-hub:{spec.hf}@{COMMIT}.*\b404\b"):
        kind_of(spec).load(ModelContext(name="mine", classes=NAMES))


def test_it_is_a_network_to_train(published: torch.nn.Module):
    """Untrained, or from its weights with a head for other classes."""
    network, start = load_network(SPEC, num_classes=7)

    assert (7, 96) == tuple(network.fc.weight.shape)
    assert torch.equal(published.conv1[0].weight, network.conv1[0].weight)
    assert (0.1, 0.2, 0.3) == start.mean
    untrained = kind_of(SPEC).architecture().make(7)
    assert not torch.equal(published.conv1[0].weight, untrained.conv1[0].weight)
