"""What tutorial, recipes and security page say is what the programs understand."""

import json
import re
import shlex
import sys
from pathlib import Path

import click
import pytest
import torch
import yaml
from click.testing import CliRunner
from pydantic import TypeAdapter

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.load_files import load_benchmarks
from tta_pipeline.benchmarks.matrix import Matrix
from tta_pipeline.benchmarks.model_specs import AnyModel
from tta_pipeline.cli import main
from tta_pipeline.cli.verbs import Group, Verb, walk_verbs
from tta_pipeline.data.images.kinds import AnyImages
from tta_pipeline.defs.resources import Compute
from tta_pipeline.methods import build
from tta_pipeline.models.model_kind import kind_of
from tta_pipeline_tests.test_printed_commands import split_commands

ROOT = Path(__file__).parents[1]
HOW_TO_PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "guides").glob("*.md"))
GUIDES = {
    path: (ROOT / path).read_text()
    for path in (
        "docs/compared.md",
        "docs/quickstart.md",
        "docs/troubleshooting.md",
        "docs/tutorial.md",
        *HOW_TO_PAGES,
    )
}
HOW_TO = "".join(GUIDES[page] for page in HOW_TO_PAGES)
SECTIONS = [text for text in re.findall(r"```yaml\n(.*?)```", HOW_TO, re.DOTALL) if not text.startswith("# ")]
"""Parts of benchmark files; a whole file has its name in the first line."""


def commands(text: str) -> list[str]:
    """Return every command of the shell blocks of *text*, each in one line."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [each.replace("\\\n", " ") for block in blocks for each in split_commands(block)]


def parsed(command: str) -> tuple[click.Command, list[str]]:
    """Return the verb of a command that is typed, and its arguments."""
    words, verb = shlex.split(command), main
    arguments = words[words.index("tta-pipeline") + 1 :]  # `torchrun` may start it
    while isinstance(verb, Group):
        name, *arguments = arguments
        verb = verb.commands[name]
    return verb, arguments


@pytest.mark.parametrize("guide", GUIDES)
def test_every_verb_and_option_of_the_guides_exists(guide: str):
    """A command is read by the verb's own parser, which refuses unknown options."""
    typed = [part for line in commands(GUIDES[guide]) for part in re.split(r"&&|#", line) if "tta-pipeline " in part]
    found = [*typed, *re.findall(r"`(tta-pipeline [a-z][^`]*)`", GUIDES[guide])]

    for command in found:
        verb, arguments = parsed(command)
        verb.make_parser(click.Context(verb)).parse_args(arguments)
    assert found


def test_every_configuration_of_the_recipes_is_one():
    """What stands behind --config-json is JSON, and names fields that there are."""
    configs = [json.loads(text) for text in re.findall(r"--config-json '(.*?)'", HOW_TO)]

    fields = [name for config in configs for name in config.get("resources", {}).get("compute", {}).get("config", {})]
    assert {"local_scratch_dir", "local_scratch_limit_gib"} == set(fields)
    assert set(fields) | {"cache_dir", "cache_limit_gib"} <= set(Compute.model_fields)
    options = {name for config in configs for op in config.get("ops", {}).values() for name in op["config"]}
    assert {"launch"} == options


def recipe(name: str) -> str:
    """Return the Python of a recipe that contains *name*."""
    (text,) = [text for text in re.findall(r"```python\n(.*?)```", HOW_TO, re.DOTALL) if name in text]
    return text


def test_the_models_of_the_recipe_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The sections are read as they stand, but for hashes, and the class is a network of as many outputs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_models.py").write_text(recipe("class SmallResNet"))
    texts = [text.replace('"..."', f'"{64 * "0"}"') for text in SECTIONS if "models:\n" in text]

    sections = {name: section for text in texts for name, section in yaml.safe_load(text)["models"].items()}
    models = TypeAdapter(dict[str, AnyModel]).validate_python(sections)

    kinds = ["python", "checkpoint", "hf", "open_clip", "transformers"]
    assert kinds == [model.kind for model in models.values()]
    assert (2, 7) == kind_of(models["my_model"]).architecture().make(7)(torch.rand(2, 3, 8, 8)).shape


def test_the_matrix_of_the_recipe_is_one():
    """Its experiments have the names that the text says."""
    text = next(text for text in SECTIONS if "eata_slow" in text)

    names = [each.name for each in Matrix.model_validate(yaml.safe_load(text)["matrix"]).combinations]

    assert {"vit_tent_continual", "resnet50_eata_slow"} < set(names)
    assert 18 == len(names)


def test_the_pieces_of_the_recipe_fit():
    """As an experiment and in a matrix, and tables name them as the text says."""
    (text,) = [text for text in SECTIONS if "base: tent" in text]
    sections = yaml.safe_load(text)

    one = Experiment.model_validate(sections["experiments"]["tent_come_asr"])
    others = [
        Experiment.model_validate(each.content) for each in Matrix.model_validate(sections["matrix"]).combinations
    ]

    assert ["tent+come+asr", "eta", "eta+come", "eta+last", "eta+periodic"] == [
        each.method_name for each in (one, *others)
    ]


def test_the_benchmark_file_of_the_training_recipe_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It trains both networks on its own images and evaluates both, and the loaders of the text fit in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_models.py").write_text(recipe("class SmallResNet"))
    (text,) = re.findall(r"```yaml\n# cifar.yaml\n(.*?)```", HOW_TO, re.DOTALL)
    (loaders,) = [each for each in SECTIONS if "*recipe" in each]

    (tmp_path / "cifar.yaml").write_text(text.replace("matrix:", f"{loaders}matrix:"))
    loaded = load_benchmarks(tmp_path)

    assert loaded.faults == ()
    benchmark = loaded.benchmarks["cifar"]
    assert benchmark.has_train
    assert ["plain", "augmix", "loose", "buffered", "webdataset"] == list(benchmark.trained_models)
    assert {"plain", "augmix"} == {each.model for each in benchmark.experiments.values()}


def test_the_sources_of_the_recipes_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """URLs are streamed, and the function is found."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_images.py").write_text(recipe("CIFAR10"))
    sections = [yaml.safe_load(text)["images"] for text in SECTIONS if "images:" in text]

    sources = TypeAdapter(list[AnyImages]).validate_python(sections)

    assert {"python": False, "shards": True} == {source.kind: source.is_remote for source in sources}


def test_the_method_of_the_recipe_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file, typed as it stands, is a method that is built by its import path."""
    (tmp_path / "my_method.py").write_text(recipe("MIRRORED"))
    monkeypatch.syspath_prepend(tmp_path)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5))
    images = torch.rand(3, 3, 2, 2)

    method = build("my_method:MIRRORED", model, num_classes=5)

    torch.testing.assert_close((model(images) + model(images.flip(3))) / 2, method.predict(images))
    sys.modules.pop("my_method")


def test_the_first_method_of_the_page_is_the_example():
    """Whoever reads one has the other, which is run by a test; its imports stand among the example's."""
    imports, code = recipe("class PseudoLabel").split("\n\n\n", 1)
    example = (ROOT / "examples/own_method.py").read_text()

    assert code in example
    assert set(imports.splitlines()) <= set(example.splitlines())


def headings(text: str) -> set[str]:
    """Return the anchors of the headings of *text*."""
    lines = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line).strip().lower().replace(" ", "-") for line in lines}


@pytest.mark.parametrize("guide", GUIDES)
def test_links_lead_somewhere(guide: str):
    """To a heading of the page, or to a file beside it, or to a heading of that file."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", GUIDES[guide]):
        name, _, anchor = target.partition("#")
        path = (ROOT / guide).parent / name if name else ROOT / guide

        assert path.exists(), target
        assert not anchor or anchor in headings(path.read_text()), target


@pytest.mark.parametrize(("verb", "command"), list(walk_verbs(main)))
def test_each_help_begins_with_an_example_that_can_be_typed(verb: str, command: Verb):
    """The options of each example exist; every line fits 80 columns; no line of the list is cut."""
    shown = CliRunner().invoke(main, [*verb.split(), "--help"], prog_name="tta-pipeline").output

    assert re.match(rf"Usage: tta-pipeline {verb} .*\n(?: .*\n)*\nExamples?:\n  tta-pipeline {verb}", shown)
    assert "\\b" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    for example in (each for each in command.examples if each.startswith("tta-pipeline ")):
        asked, arguments = parsed(example)
        assert asked is command
        command.make_parser(click.Context(command)).parse_args(arguments)
