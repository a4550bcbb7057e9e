"""A benchmark file is right as a whole, or one error says everything that is wrong with it."""

import re
from pathlib import Path

import pytest
import yaml

from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.data.images.kinds import DigitsSection, GeneratedSection
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.util.identifiers import is_benchmark_name
from tta_pipeline_tests.conftest import SMALL


def written(folder: Path, text: str) -> Path:
    """Return the path of a benchmark file with *text*."""
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_the_embedded_benchmark_has_75_cells_and_three_methods():
    """digits_c covers the common corruptions with source, norm and tent at least."""
    benchmark = load_benchmark(EMBEDDED_BENCHMARKS / "digits_c.yaml")

    assert 75 == len(benchmark.cells)
    assert {"source", "norm", "tent"} <= set(benchmark.experiments)


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("method: norm", "method: nrom", ["experiments.norm", "method is 'nrom'", "did you mean norm"]),
        ("num_test: 150", "num_test: 3", ["images.num_test is 3", "greater than or equal to 10"]),
        ("num_test: 150", "num_tests: 150", ["images: ", "num_tests", "did you mean num_test"]),
        ("imagenet_c", "cifar_c, jpeg_quality: 90", ["jpeg_quality is 90", "lossless", "encoding: jpeg"]),
        ("imagenet_c", "imagenet_c, encoding: png", ["images.encoding is 'png'", "jpeg, lossless"]),
        ("severities: [3, 5]", "severities: [3, 6]", ["severities: ", "does not have 6", "1, 2, 3, 4, 5"]),
        ("severities: [3, 5]", "severities: [3, 3]", ["severities", "[3, 3]"]),
        ("[gaussian_noise, contrast]", "[gaussian_noise, mist]", ["corruptions: ", "mist", "19 names", "imagenet_c"]),
        ("model: cnn, method: source", "model: vit, method: source", ["experiments.source.model", "'vit'", "cnn"]),
        ("preset: cifar", "hyperparameters: {lr: -1}", ["experiments.tent", "lr is -1", "greater than 0"]),
        ("preset: cifar", "hyperparameters: {learning: 1}", ["experiments.tent", "learning", "momentum"]),
        ("batch_size: 32}", "batch_size: 0}", ["batch_size", "0", "greater than or equal to 1"]),
        ("batch_size: 32}", "batch_size: abc}", ["experiments.norm.batch_size is 'abc'; expected a whole number"]),
        (
            "kind: trained, epochs: 4, width: 8",
            "kind: python, factory: 'a:b', mean: [0.5]",
            ["mean is [0.5]; expected more"],
        ),
        ("epochs: 4", "lr: fast", ["models.cnn.lr is 'fast'; expected a number"]),
        ("epochs: 4", "flip: perhaps", ["models.cnn.flip is 'perhaps'; expected true or false"]),
        (
            "epochs: 4, width: 8",
            "network: {kind: torchvision, architecture: 1}",
            ["models.cnn.network.architecture is 1; expected text"],
        ),
        ("{samples_per_shard: 60}", "60", ["shards is 60; expected fields by name"]),
        ("samples_per_shard: 60", "samples_per_shard: 60, num_shards: 2", ["shards", "num_shards", "expected one of"]),
        ("image_size: 32", "", ["image_size is missing"]),
        ("kind: digits, seed: 0, num_test: 150, severity_table: imagenet_c", "kind: zip", ["'zip'", "folder"]),
        ("title:", "title: [", ["is not valid YAML", "in line 2, column 8", "correct that line"]),
        (
            "epochs: 4",
            "epochs: 4, loader: webdataset, shuffle: buffer, val_fraction: 0.1",
            ["models.cnn", "val_fraction is 0.1", "loader webdataset", "expected loader indexed or imagefolder"],
        ),
        (
            "epochs: 4",
            "epochs: 4, optimizer: sgd, momentum: 0",
            ["models.cnn", "momentum is 0.0", "schedule one_cycle", "another schedule"],
        ),
        (
            "kind: trained, epochs: 4, width: 8",
            "kind: open_clip, architecture: ViT-B-32, weights: a.pt",
            ["models.cnn", "only one of weights and sha256"],
        ),
        (
            "kind: trained, epochs: 4, width: 8",
            "kind: open_clip, architecture: ViT-B-32",
            ["models.cnn", "pretrained and weights", "exactly one"],
        ),
        (
            "kind: trained, epochs: 4, width: 8",
            "kind: transformers, folder: a",
            ["models.cnn", "only one of folder and sha256"],
        ),
        (
            "kind: trained, epochs: 4, width: 8",
            "kind: transformers, folder: a, hf: a/b",
            ["models.cnn", "hf and folder", "exactly one"],
        ),
        (
            "kind: trained, epochs: 4, width: 8",
            f"kind: transformers, folder: a, sha256: '{'0' * 64}', revision: '{'0' * 40}'",
            ["models.cnn", "revision is set without hf"],
        ),
        ("{samples_per_shard: 60}", "{}", ["no limit is set", "num_shards"]),
        ("samples_per_shard: 60", "max_shard_bytes: 100000, resize: 24", ["max_shard_bytes", "num_shards"]),
        ("image_size: 32", "image_size: 32\nclasses: imagenet\nclass_map: folders", ["classes and class_map"]),
        (
            "image_size: 32",
            "image_size: 32\ncustom: {names: [gaussian_noise, contrast], severities: [3, 5]}\ntuning: {tent: {}}",
            ["tuning is given", "held_out"],
        ),
        ("preset: cifar", "preset: cifar, tuned: true", ["experiments.tent.tuned is True", "no section tuning"]),
        ("method: norm", "method: norm, protocols: [mixed, {shift: mixed}]", ["norm_mixed", "distinct names"]),
    ],
)
def test_an_error_names_file_field_value_and_choices(tmp_path: Path, right: str, wrong: str, named: list[str]):
    """Whoever reads the error can mend the file without looking anywhere else."""
    path = written(tmp_path, SMALL.replace(right, wrong, 1))

    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(path)

    message = str(caught.value)
    assert all(part in message for part in [str(path), *named]), message


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("severity_table: imagenet_c", 85),
        ("severity_table: tiny_imagenet_c", 85),
        ("severity_table: cifar_c", None),
        ("severity_table: imagenet_c, jpeg_quality: 70", 70),
        ("severity_table: imagenet_c, encoding: lossless", None),
        ("severity_table: cifar_c, encoding: jpeg", 85),
        ("severity_table: cifar_c, encoding: jpeg, jpeg_quality: 90", 90),
    ],
)
@pytest.mark.parametrize("kind", ["kind: digits", "kind: generated, clean: /data"])
def test_images_are_stored_as_the_authors_of_their_table_do(kind: str, settings: str, expected: int | None):
    """JPEG files of quality 85 for the ImageNets, lossless for CIFAR, unless the file says otherwise."""
    section = DigitsSection if kind == "kind: digits" else GeneratedSection

    assert expected == section.model_validate(yaml.safe_load(f"{{{kind}, {settings}}}")).stored_quality


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path):
    """Three mistakes give three lines."""
    text = SMALL.replace("image_size: 32", "").replace("[3, 5]", "[9]").replace("method: norm", "method: nrom")

    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(written(tmp_path, text))

    assert 3 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("batch_size: 32}", "batch_size: 1.0e+30}", ["batch_size is 1e+30", "whole number with fewer digits"]),
        ("batch_size: 32}", "batch_size: 1e30}", ["batch_size is 1e+30", "whole number with fewer digits"]),
        ("batch_size: 32}", "batch_size: 100001}", ["batch_size is 100001", "100000"]),
        ("batch_size: 32}", "batch_size: 32, seed: 1180591620717411303424}", ["seed is 1180591620717411303424"]),
        ("batch_size: 32}", "batch_size: 32, seed: -1}", ["seed is -1", "greater than or equal to 0"]),
        (
            "batch_size: 32}",
            "batch_size: 1, protocol: {sliding_window: 1000000000}}",
            ["window is 1000000000", "100000"],
        ),
        ("batch_size: 32}", "subset: {first: 99999999999}}", ["subset.first is 99999999999", "1000000000"]),
        ("batch_size: 32}", "protocol: {order: dirichlet, delta: .nan}}", ["delta is nan"]),
        (
            "preset: cifar",
            "preset: cifar, precision: fp16",
            ["precision is fp16", "tent", "expected bf16, tf32 or fp32"],
        ),
        ("preset: cifar", "preset: cifar, hyperparameters: {steps: 99999999999}", ["steps is 99999999999"]),
        ("image_size: 32", "image_size: 1000000000", ["image_size is 1000000000", "16384"]),
        ("samples_per_shard: 60", "num_shards: 1000000000", ["num_shards is 1000000000", "100000"]),
        ("samples_per_shard: 60", "num_shards: 4, resize: 1000000000", ["resize is 1000000000", "16384"]),
        ("samples_per_shard: 60", "num_shards: 4, seed: 18446744073709551616", ["shards.seed is 18446744073709551616"]),
        ("epochs: 4", "epochs: 1000000000", ["epochs is 1000000000", "100000"]),
        ("width: 8", "width: 1000000000", ["width is 1000000000", "4096"]),
        ("epochs: 4", "lr: .inf", ["lr is inf"]),
        ("  tent:", f"  {'t' * 101}:", ["is 'ttt", "at most 100 characters"]),
        ("  cnn:", f"  {'c' * 101}:", ["is 'ccc", "at most 100 characters"]),
        ("preset: cifar", f"group: {'g' * 101}", ["group is 'ggg", "at most 100 characters"]),
        ("  tent:", "  n-1:", ["'n-1'", "letters, digits and _"]),
        ("  tent:", "  Norm:", ["norm, Norm"]),
        ("  tent:", "  norm_checks:", ["norm_checks", "checks of norm"]),
        ("title:", "name: other\ntitle:", ["name is 'other'"]),
    ],
)
def test_what_would_fail_later_is_refused_at_reading(tmp_path: Path, right: str, wrong: str, named: list[str]):
    """Numbers that no tensor, generator or column takes, and names that no file or asset can have."""
    path = written(tmp_path, SMALL.replace(right, wrong, 1))

    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(path)

    assert all(part in str(caught.value) for part in [str(path), *named]), str(caught.value)


@pytest.mark.parametrize("name", ["b" * 101, "benchmarks", "Benchmarks", "class", "config", "two__parts", "a b", "a\n"])
def test_a_file_whose_name_cannot_be_a_benchmarks_is_refused(tmp_path: Path, name: str):
    """The name is that of folders and of assets."""
    path = tmp_path / f"{name}.yaml"
    path.write_text(SMALL)

    with pytest.raises(BenchmarkFileError, match=re.escape(repr(name)[:50])):
        load_benchmark(path)
    assert not is_benchmark_name(name)
    assert is_benchmark_name("imagenet_c")


def test_a_checkpoint_needs_means_and_deviations_of_images_between_0_and_1(tmp_path: Path):
    """Those of bytes, and a deviation of nothing, would give numbers of another model."""
    model = "{kind: checkpoint, architecture: resnet18, path: x, sha256: %s, mean: [123.7, 0, .nan], std: [0, -1, 1]}"
    text = SMALL.replace("{kind: trained, epochs: 4, width: 8}", model % ("0" * 64))

    with pytest.raises(BenchmarkFileError) as caught:
        load_benchmark(written(tmp_path, text))

    assert all(f"{field} is" in str(caught.value) for field in ("mean.2", "std.0", "std.1"))
    assert "mean.0: 123.7" in str(caught.value)
    assert "by 255" in str(caught.value)
    assert "mean.1 is" not in str(caught.value)


FOLDERS = "{kind: folder, root: /data, clean: /data/clean}"
CHECKPOINT = "{kind: torchvision, architecture: resnet18, weights: DEFAULT}"


@pytest.mark.parametrize(("method", "advice"), [("eata", r"\beta\b"), ("rmt", "")])
def test_a_method_without_the_clean_images_that_it_needs_is_refused(tmp_path: Path, method: str, advice: str):
    """With what it would be without them, so that nothing runs under another name."""
    text = SMALL.replace("{kind: digits, seed: 0, num_test: 150, severity_table: imagenet_c}", FOLDERS)
    text = text.replace("{kind: trained, epochs: 4, width: 8}", CHECKPOINT).replace("method: norm", f"method: {method}")
    load_benchmark(written(tmp_path, text))

    with pytest.raises(
        BenchmarkFileError, match=rf"experiments\.norm\.method .*\b{method}\b.*images\.clean\b.*{advice}"
    ):
        load_benchmark(written(tmp_path, text.replace(", clean: /data/clean", "")))


@pytest.mark.parametrize(
    ("train", "more", "found"),
    [
        ("/data/train.tar", "", "images.train"),
        ("/data/train", "train_shards: {resize: 64, samples_per_shard: 60}", "train_shards"),
        ("/data/train", "", None),
    ],
)
def test_a_training_reads_loose_files_only_where_there_are_some(
    tmp_path: Path, train: str, more: str, found: str | None
):
    """An archive has none, and those of shards with other pixels are not what was sharded."""
    source = f"images: {{kind: folder, root: /data/c, train: {train}}}\n{more}"
    text = SMALL.replace("images: {kind: digits, seed: 0, num_test: 150, severity_table: imagenet_c}", source)
    path = written(tmp_path, text.replace("epochs: 4", "epochs: 4, loader: imagefolder"))
    if found is None:
        assert load_benchmark(path).images.has_loose_train
        return
    with pytest.raises(BenchmarkFileError, match=rf"models\.cnn\.loader .*\bimagefolder\b.*\b{found}\b"):
        load_benchmark(path)
