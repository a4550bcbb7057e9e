"""A model as it is deployed gives the probabilities of the network, or says why it cannot be used."""

import hashlib
import io
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

import tta_pipeline as tta
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.deployed_specs import HttpModel
from tta_pipeline.data.model_hosts import MODEL_HOSTS_VARIABLE, MODEL_TOKENS_VARIABLE
from tta_pipeline.errors import AdaptationError, EvaluationError, PipelineError, SettingsError
from tta_pipeline.evaluation.evaluate_shards import evaluate
from tta_pipeline.evaluation.normalisation_fit import check_normalisation
from tta_pipeline.methods import METHODS
from tta_pipeline.models.deployed_network import probe_images
from tta_pipeline.models.http_models import load_http_model
from tta_pipeline.models.small_network import SmallConvNet
from tta_pipeline.models.source_models import load_source_model
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline_tests.models.model_server import VERSION, ModelServer, serving

THREE = ("n01", "n02", "n03")
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
KINDS = ("onnx", "exported", "http")


class WithFeatures(nn.Module):
    """The small network, sure of its predictions, which returns its features too."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(1)
            *layers, self.head = SmallConvNet(num_classes=3, width=8)
            self.body = nn.Sequential(*layers)
            for _ in range(20):  # statistics of batch norm that fit images
                self.body(probe_images(32) * 2 - 1)
            self.head.weight *= 30
            self.head.bias -= self.head(self.body.eval()(probe_images(32) * 2 - 1)).mean(0)  # no class is the usual one

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and features."""
        features = self.body(images)
        return self.head(features), features


@dataclass(frozen=True)
class Files:
    """A network and the files that it was exported to."""

    network: WithFeatures
    folder: Path

    def section(self, kind: str, *, head: bool = False, **more: object) -> dict[str, Any]:
        """Return the section of a benchmark file."""
        path = self.folder / {"onnx": "network.onnx", "exported": "network.pt2"}[kind]
        facts = {"path": str(path), "sha256": sha256_of(path), "mean": MEAN, "std": STD}
        return {"kind": kind, **facts, **(self.head() if head else {}), **more}

    def head(self) -> dict[str, str]:
        """Return the fields of a section about the last linear layer."""
        return {
            "head": str(self.folder / "head.safetensors"),
            "head_sha256": sha256_of(self.folder / "head.safetensors"),
        }

    def compute(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits and features of images in [0, 1]."""
        mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
        found: tuple[torch.Tensor, torch.Tensor] = self.network((images - mean) / std)
        return found


def sha256_of(path: Path) -> str:
    """Return the hash of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The network, exported once in each form."""
    folder, network, images = tmp_path_factory.mktemp("deployed"), WithFeatures().eval(), torch.rand(2, 3, 32, 32)
    sizes = {"images": {0: "batch"}, "logits": {0: "batch"}, "features": {0: "batch"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter without dynamo, which is twenty times as fast, is an old one
        torch.onnx.export(
            network, (images,), folder / "network.onnx", dynamo=False, input_names=["images"],
            output_names=["logits", "features"], dynamic_axes=sizes,
        )  # fmt: skip
        program = torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
        torch.export.save(program, folder / "network.pt2")
        torch.onnx.export(network, (images,), folder / "of_two.onnx", dynamo=False)
    save_file(
        {name: weights.clone() for name, weights in network.head.state_dict().items()}, folder / "head.safetensors"
    )
    return Files(network, folder)


@pytest.fixture
def server(files: Files, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """A server of the network, to which images may be sent."""
    with serving(files.compute) as found:
        monkeypatch.setenv(MODEL_HOSTS_VARIABLE, "example.org, 127.0.0.1")
        yield found


def http_section(server: ModelServer, **more: object) -> dict[str, Any]:
    """Return the section of a benchmark file."""
    fast = {"timeout_s": 0.5, "retries": 2, "images_per_request": 5}
    return {"kind": "http", "url": server.url, "version": VERSION, "image_size": 32, **fast, **more}


def sections(files: Files, server: ModelServer, *, head: bool = False) -> dict[str, dict[str, Any]]:
    """Return the section of each kind."""
    programs = {kind: files.section(kind, head=head) for kind in ("onnx", "exported")}
    return {**programs, "http": http_section(server, timeout_s=30, **(files.head() if head else {}))}


def loaded(section: Mapping[str, object]) -> nn.Module:
    """Return the model of a section."""
    return tta.load_model(section, num_classes=3)


@pytest.mark.parametrize("head", [False, True])
def test_each_kind_gives_the_probabilities_of_the_network(files: Files, server: ModelServer, head: bool):  # noqa: FBT001
    """Within 1e-5, for a batch, one image and none of the sizes that were exported; from the features as well."""
    images = torch.randint(0, 256, (7, 3, 32, 32)).float() / 255
    expected = files.compute(images)[0].softmax(1)
    for kind, section in sections(files, server, head=head).items():
        found = loaded(section)
        with torch.inference_mode():
            for part in (images, images[:1], images.contiguous(memory_format=torch.channels_last)):
                torch.testing.assert_close(
                    found(part).softmax(1), expected[: len(part)], rtol=0, atol=1e-5, msg=f"{kind} differs"
                )


def test_each_kind_has_the_errors_of_the_network(files: Files, server: ModelServer, shard_set: ShardSet):
    """The same predictions; the record counts requests, and each model has an identity of its own."""
    own = tta.load_model(section_of_weights(files), num_classes=3)
    rows = {"torch": evaluate(tta.build("source", own, num_classes=3), shard_set.folder, batch_size=8)}
    for kind, section in sections(files, server).items():
        method = tta.build("source", loaded(section), num_classes=3)
        rows[kind] = evaluate(method, shard_set.folder, batch_size=8)

    assert 1 == len({(row.error, row.predictions_sha256, row.order_hash) for row in rows.values()})
    assert 1 < rows["torch"].num_predicted_classes
    assert [pytest.approx(rows["torch"].nll, abs=1e-5)] * 4 == [row.nll for row in rows.values()]
    assert 4 == len({row.fingerprint for row in rows.values()}) == len({row.weights_sha256 for row in rows.values()})
    assert (5, 0) == (rows["http"].num_requests, rows["http"].num_retries)  # 8, 8 and 4 images, five in a request
    assert rows["onnx"].num_requests is None


def section_of_weights(files: Files) -> dict[str, Any]:
    """Return the section of the network itself."""
    path = files.folder / "network.pth"
    torch.save(files.network.state_dict(), path)
    factory = f"{__name__}:of_logits"
    return {"kind": "python", "factory": factory, "weights": path, "sha256": sha256_of(path), "mean": MEAN, "std": STD}


class _Logits(WithFeatures):
    def forward(self, images: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(images)[0]


def of_logits() -> nn.Module:
    """Return the network without its second output."""
    return _Logits()


@pytest.mark.parametrize("method", ["lame", "t3a", "neo"])
def test_methods_that_read_features_are_those_of_the_network(files: Files, server: ModelServer, method: str):
    """With a head, of every kind; without one, the error says what is missing."""
    images = torch.randint(0, 256, (8, 3, 32, 32)).float() / 255
    own = tta.build(method, tta.load_model(section_of_weights(files), num_classes=3), num_classes=3)
    expected = [own.predict(part).softmax(1) for part in images.split(4)]
    for kind, section in sections(files, server, head=True).items():
        found = tta.build(method, loaded(section), num_classes=3)
        for part, its_expected in zip(images.split(4), expected, strict=True):
            torch.testing.assert_close(found.predict(part).softmax(1), its_expected, rtol=0, atol=1e-4, msg=kind)
    with pytest.raises(
        AdaptationError, match=f"{method} reads the features .*; expected a second output with features"
    ):
        tta.build(method, loaded(files.section("onnx")), num_classes=3)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("tent", "takes gradients of the network's parameters"),
        ("memo", "takes gradients of the network's parameters"),
        ("norm", "reads or replaces layers of the network, such as batch norm"),
        ("ttaug", "reads or replaces layers of the network, such as batch norm"),
        ("foa", "reads or changes tokens between the blocks of a ViT"),
        ("zero_shot", "reads the image and text features of a CLIP"),
    ],
)
def test_a_method_that_needs_layers_says_so_in_a_sentence(files: Files, method: str, reason: str):
    """While it is built, and when a benchmark file is read."""
    said = f"{method} {reason}, and the model is an ONNX program, which gives its logits alone; expected method source"
    with pytest.raises(AdaptationError, match=re.escape(said)):
        tta.build(method, loaded(files.section("onnx")), num_classes=3)
    with pytest.raises(ValidationError, match=re.escape(f"experiments.mine: {said}")):
        benchmark(files.section("onnx"), method=method)


def benchmark(section: Mapping[str, object], **experiment: object) -> Benchmark:
    """Return a benchmark with the model and an experiment."""
    content = {
        "name": "small", "title": "Few digits", "source": {"kind": "digits", "seed": 0}, "image_size": 32,
        "corruptions": ["contrast"], "severities": [3], "shards": {"num_shards": 1}, "models": {"own": section},
        "experiments": {"mine": {"model": "own", "method": "source", **experiment}},
    }  # fmt: skip
    return Benchmark.model_validate(content)


def test_every_method_declares_what_it_needs(files: Files):
    """Of a network whose layers are closed, one method runs on logits, three more on features."""
    runs = {
        gives: {name for name, entry in METHODS.items() if not entry.problem_of_closed(name, called="", gives=gives)}
        for gives in ("logits", "features")
    }

    assert {"logits": {"source"}, "features": {"source", "lame", "t3a", "neo"}} == runs
    for field, value in (("precision", "bf16"), ("compile", "default")):
        with pytest.raises(ValidationError, match=f"mine.{field} is {value}, and the model is an ONNX program"):
            benchmark(files.section("onnx"), **{field: value})


def test_what_decides_the_answers_is_in_the_identity(files: Files, server: ModelServer):
    """The file, its head, the server, its version and its answers, but not how patiently it is asked."""

    def identity(section: Mapping[str, object]) -> object:
        spec = benchmark(section).models["own"]
        return load_source_model("own", spec, source_model=Path(), classes=THREE, image_size=32).identity

    onnx, http = files.section("onnx"), http_section(server)
    assert sha256_of(Path(onnx["path"])) == identity(onnx)["weights_sha256"]
    assert identity(onnx) != identity(files.section("onnx", head=True))
    assert identity(http) == identity({**http, "timeout_s": 9.0, "retries": 0, "concurrency": 1, "body": "json"})
    before = identity(http)
    server.compute = lambda images: files.compute(images.flip(3) * 0.5)
    assert before != identity(http)
    assert server.url == before["code"]["url"]


@pytest.mark.parametrize("kind", KINDS)
def test_mean_and_std_are_checked_of_each_kind(files: Files, server: ModelServer, shard_set: ShardSet, kind: str):
    """A server that normalises has no other values to compare with."""
    spec = benchmark(sections(files, server)[kind]).models["own"]
    model = load_source_model("own", spec, source_model=Path(), classes=THREE, image_size=32)
    fits = check_normalisation(
        model, shard_set, image_size=32, limit=9, seed=0, device=torch.device("cpu"), num_threads=1
    )
    assert (0 if kind == "http" else 5) == len(fits.others)
    assert ("no other normalisation was tried" in fits.verdict) == (kind == "http")


RETRIED = ("late", "500", "silent")
WRONG = {
    "few": r"answered with probabilities of the shape \(4, 3\) for 5 images",
    "twice each": r"answered with probabilities of the shape \(10, 3\) for 5 images",
    "few classes": r"answered with probabilities of the shape \(5, 2\) for 5 images",
    "nan": "answered with probabilities that are not finite",
    "huge": "answered with probabilities that are no rows of numbers",
    "sum": "returned a row that sums to 0.5; expected probabilities",
    "words": "answered with probabilities that are no rows of numbers",
    "version": "answered as version '8'; expected '7'",
    "no json": "answered with b'<html>', which is no JSON",
    "two bodies": "which is no JSON .Extra data",
    "cut": "which is no JSON",
    "302": "at the last of 3 attempts status 302; expected probabilities",
    "400": "at the last of 3 attempts status 400",
}


@pytest.fixture
def network(server: ModelServer) -> nn.Module:
    """The server's network, after it was probed."""
    found = loaded(http_section(server))
    server.requests.clear()
    return found


@pytest.fixture
def images() -> torch.Tensor:
    """Six images, which make two requests."""
    return torch.randint(0, 256, (6, 3, 32, 32), generator=torch.Generator().manual_seed(3)).float() / 255


@pytest.mark.parametrize("fault", [*RETRIED, "two answers"])
def test_a_fault_that_passes_costs_no_sample(
    files: Files, server: ModelServer, network: nn.Module, images: torch.Tensor, fault: str
):
    """The request is sent again, and each image has its own answer; a second answer to one request is never read."""
    server.faults.append(fault)
    torch.testing.assert_close(network(images).softmax(1), files.compute(images)[0].softmax(1), rtol=0, atol=1e-5)
    torch.testing.assert_close(
        network(images[3:]).softmax(1), files.compute(images[3:])[0].softmax(1), rtol=0, atol=1e-5
    )
    assert (3 if fault == "two answers" else 4) == len(server.requests)


@pytest.mark.parametrize("fault", RETRIED)
def test_a_fault_that_stays_ends_in_an_error(server: ModelServer, network: nn.Module, images: torch.Tensor, fault: str):
    """It says what was found at the last attempt."""
    server.faults.extend([fault] * 9)
    found = {"late": "no answer in 0.5 s", "500": "status 500", "silent": "ServerDisconnectedError"}[fault]
    with pytest.raises(EvaluationError, match=f"no answer for 5 images, at the last of 3 attempts {found}"):
        network(images[:5])
    assert 3 == len(server.requests)


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_answer_is_an_error_at_once(server: ModelServer, network: nn.Module, images: torch.Tensor, fault: str):
    """It is not asked again, and nothing else is taken for the answer."""
    server.faults.append(fault)
    with pytest.raises(EvaluationError, match=WRONG[fault]):
        network(images[:5])
    assert 1 == len(server.requests)


def test_a_pass_with_a_wrong_answer_has_no_result(server: ModelServer, network: nn.Module, shard_set: ShardSet):
    """Whatever was answered before."""
    server.faults.extend(["", "", "", "nan"])
    with pytest.raises(EvaluationError, match="no result was recorded"):
        evaluate(tta.build("source", network, num_classes=3), shard_set.folder, batch_size=8)


def test_a_server_whose_rows_depend_on_the_request_is_refused(server: ModelServer):
    """It is asked for the same images in two orders."""
    server.faults.extend(["", "", "reversed", "reversed"])
    with pytest.raises(EvaluationError, match="in another order with probabilities that differ by up to"):
        loaded(http_section(server))


@pytest.mark.parametrize(("body", "pixels"), [("json", "uint8"), ("raw", "float32"), ("json", "float32")])
def test_each_form_of_a_request_is_understood(
    files: Files, server: ModelServer, images: torch.Tensor, body: str, pixels: str
):
    """Whole numbers or floats, as bytes or JSON."""
    found = loaded(http_section(server, body=body, pixels=pixels, timeout_s=30))
    torch.testing.assert_close(found(images).softmax(1), files.compute(images)[0].softmax(1), rtol=0, atol=1e-5)


def test_pixels_that_would_be_rounded_are_refused(network: nn.Module, images: torch.Tensor):
    """A method may make them; so are images of another size."""
    with pytest.raises(EvaluationError, match="expected `pixels: float32`"):
        network(images * 0.7)
    with pytest.raises(EvaluationError, match="takes images of 32x32; found 16x16"):
        network(images[:, :, :16, :16])


def test_images_are_sent_only_where_the_environment_allows(server: ModelServer, monkeypatch: pytest.MonkeyPatch):
    """To a host by its name, or to one port of it; a token goes to its host alone, and never in the clear."""
    spec = HttpModel.model_validate(http_section(server))

    def load(**changes: object) -> None:
        load_http_model("own", spec.model_copy(update=changes), num_classes=3, image_size=32)

    port = server.url.split(":")[2].partition("/")[0]
    for allowed in ("", "localhost", "127.0.0.1:1", "127.0.0.1.example.org"):
        monkeypatch.setenv(MODEL_HOSTS_VARIABLE, allowed)
        with pytest.raises(SettingsError, match=f"export {MODEL_HOSTS_VARIABLE}=127.0.0.1:{port}"):
            load()
    assert [] == server.requests

    monkeypatch.setenv(MODEL_HOSTS_VARIABLE, f"127.0.0.1:{port}, models.example.org")
    monkeypatch.setenv(MODEL_TOKENS_VARIABLE, "models.example.org=of-others,127.0.0.1=of-this==")
    load()
    assert {"Bearer of-this=="} == {headers.get("Authorization") for headers in server.requests}
    with pytest.raises(SettingsError, match="which http would send unencrypted; expected https"):
        load(url="http://models.example.org/predict")


@pytest.mark.parametrize("url", ["ftp://a/b", "http://user:key@a/b", "http://a/b?key=1", "file:///etc/passwd"])
def test_an_address_with_a_key_is_refused(url: str):
    """So is what is no web address."""
    with pytest.raises(ValidationError, match="found"):
        HttpModel.model_validate({"kind": "http", "url": url, "version": "1", "image_size": 32})


def test_a_program_for_a_fixed_number_of_images_is_asked_in_parts(files: Files, images: torch.Tensor):
    """The last part is filled up, and no image is lost."""
    path = files.folder / "of_two.onnx"
    section = files.section("onnx", head=True) | {"path": str(path), "sha256": sha256_of(path)}
    found = loaded(section)
    torch.testing.assert_close(found(images[:5]).softmax(1), files.compute(images[:5])[0].softmax(1), rtol=0, atol=1e-5)


def refused(section: Mapping[str, object], *, num_classes: int = 3) -> str:
    """Return why the model is refused."""
    spec: Any = benchmark(section).models["own"]
    classes = tuple(f"n{number:02d}" for number in range(num_classes))
    with pytest.raises(PipelineError) as found:
        load_source_model("own", spec, source_model=Path(), classes=classes, image_size=32)
    return str(found.value)


@pytest.mark.parametrize("kind", ["onnx", "exported"])
def test_a_file_that_is_no_such_program_is_refused(files: Files, tmp_path: Path, kind: str):
    """Changed, of another kind, a state dict, an archive with compiled code, or with other outputs."""
    section, path = files.section(kind), tmp_path / "other.pt2"
    assert "as the benchmark file says" in refused(section | {"sha256": "0" * 64})
    torch.save(files.network.state_dict(), path)
    says = {"onnx": "expected an ONNX file with its weights inside", "exported": "expected a program that torch.export"}
    for content in (b"hello", path.read_bytes(), archive("data/aotinductor/model/a.so", "models/model.json")):
        path.write_bytes(content)
        assert says[kind] in refused(section | {"path": str(path), "sha256": sha256_of(path)})
    assert "returned scores (8, 3); expected (8, 4)" in refused(section, num_classes=4)
    assert "; expected probabilities, from 0 to 1" in refused(section | {"scores": "probabilities"})


def archive(*names: str) -> bytes:
    """Return a zip with empty members in a folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as found:
        for name in names:
            found.writestr(f"program/{name}", b"{}")
    return buffer.getvalue()


def test_a_head_that_is_not_the_model_s_is_refused(files: Files, tmp_path: Path):
    """It makes other probabilities of the features, or has another shape."""
    path = tmp_path / "head.safetensors"
    for weight, said in (
        (torch.randn(3, 32), "returns other probabilities than its head makes of the features"),
        (torch.randn(3, 7), r"returned features (8, 32); expected (8, 7)"),
        (torch.randn(5, 32), "expected weight (3, features) and bias (3,)"),
    ):
        save_file({"weight": weight}, path)
        assert said in refused(files.section("onnx") | {"head": str(path), "head_sha256": sha256_of(path)})


def test_weights_beside_an_onnx_file_are_refused(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The hash of the file does not cover them, wherever they lie."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(files.folder / "network.onnx")
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "beside.onnx", save_as_external_data=True, location="weights.data", size_threshold=0)
    found = refused(files.section("onnx") | {"path": "beside.onnx", "sha256": sha256_of(Path("beside.onnx"))})
    assert "external_data=False" in found
