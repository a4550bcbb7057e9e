"""Several outputs of a model stand for a class: methods adapt the outputs, and all scores are of the classes."""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.load_files import load_benchmark
from tta_pipeline.cli import main
from tta_pipeline.data.labels.output_map import OutputMap
from tta_pipeline.data.labels.shipped_lists import shipped_classes, shipped_output_map
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import EvaluationError
from tta_pipeline.evaluation.evaluator import Evaluator, _HiddenLabels
from tta_pipeline.evaluation.experiment_results import ExperimentResults
from tta_pipeline.evaluation.open_stream import open_stream
from tta_pipeline.models.class_outputs import ClassOutputs
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.build_manifest import publish_shard_set
from tta_pipeline.shards.conversion import benchmark_conversion, convert
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.progress import quiet_reporter
from tta_pipeline_tests.conftest import write_tree
from tta_pipeline_tests.evaluation.small import evaluated as evaluated_cell
from tta_pipeline_tests.evaluation.test_evaluator import evaluated, small_model
from tta_pipeline_tests.shards.cell import QUIET

IMAGENET = shipped_classes("imagenet")
GLITCHED = Cell(corruption="glitched", severity=5)
THREE = ClassOutputs(rule="mean", outputs=((4, 0), (1,), (2, 3)))


NETWORK = """
from torch import nn

def network(num_classes):
    features = (nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*features, nn.Linear(32, num_classes))
"""


def network() -> nn.Module:
    """Return a network with six outputs."""
    return nn.Sequential(*small_model()[:-1], nn.Linear(16, 6))


class Mapped(nn.Module):
    """A network whose outputs are the classes."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, 3)."""
        return THREE.class_logits(self.network(images))


def model(make=network, *, num_classes: int = 6, class_outputs: ClassOutputs | None = THREE) -> LoadedModel:
    """Return six outputs that stand for three classes."""
    return LoadedModel(
        name="small", make_network=make, num_classes=num_classes, class_outputs=class_outputs, weights="random",
        weights_sha256="0" * 64, mean=(0,), std=(1,), architecture="small",
    )  # fmt: skip


def evaluator(method: str, of: LoadedModel, **more) -> Evaluator:
    """Return an evaluator of *method*."""
    experiment = Experiment(model="small", method=method, preset="cifar", batch_size=6)
    return Evaluator(
        experiment=experiment, model=of, image_size=32, device=torch.device("cpu"), num_threads=1, **more
    )  # fmt: skip


def by_authors(probabilities: np.ndarray) -> str:
    """Return the superclass that `evaluate_model` of LAION-C predicts: the one with the highest mean softmax."""
    superclass = {output: name for name, members in shipped_output_map("laion_c").outputs.items() for output in members}
    found = defaultdict(list)
    for output, probability in zip(IMAGENET, probabilities, strict=True):
        if output in superclass:
            found[superclass[output]].append(probability)
    means = {name: sum(each) / len(each) for name, each in found.items()}
    return max(means, key=means.__getitem__)


def outputs_of(name: str) -> ClassOutputs:
    """Return the outputs of a shipped list."""
    found = shipped_output_map(name)
    positions = tuple(tuple(map(IMAGENET.index, members)) for members in found.outputs.values())
    return ClassOutputs(rule=found.rule, outputs=positions)


def test_laion_c_is_scored_as_by_its_authors():
    """The same superclass for each drawn image, by softmax over all thousand outputs."""
    logits = 3 * torch.randn(500, 1000, generator=torch.Generator().manual_seed(0))

    predicted = outputs_of("laion_c").class_logits(logits).argmax(1)

    names = [shipped_classes("laion_c")[label] for label in predicted]
    assert names == [by_authors(row) for row in logits.softmax(1).numpy()]
    assert len(set(names)) > 10


def test_objectnet_is_scored_as_by_its_authors():
    """Where the network's first choice belongs to a class, the challenge accepts that class, and so do we."""
    logits, own = 3 * torch.randn(2000, 1000, generator=torch.Generator().manual_seed(0)), outputs_of("objectnet")
    label_of = {output: label for label, members in enumerate(own.outputs) for output in members}

    pairs = zip(logits.argmax(1).tolist(), own.class_logits(logits).argmax(1).tolist(), strict=True)

    met = [(label_of[first], label) for first, label in pairs if first in label_of]
    assert len(met) > 100
    assert all(theirs == ours for theirs, ours in met)


@pytest.mark.parametrize(("rule", "expected"), [("mean", [0.3, 0.1, 0.25]), ("max", [0.35, 0.1, 0.3])])
def test_probabilities_of_classes_sum_to_one(rule: str, expected: list[float]):
    """A class has the mean or the largest of its outputs' probabilities, as a share of all classes'."""
    probabilities = torch.tensor([[0.25, 0.1, 0.2, 0.3, 0.35, 0.05]]) / 1.25

    found = ClassOutputs(rule=rule, outputs=THREE.outputs).class_logits(probabilities.log()).softmax(1)

    torch.testing.assert_close(found, torch.tensor([expected]) / sum(expected))


def test_every_score_is_of_the_classes(shard_set: ShardSet):
    """As of a network whose outputs are these classes; a method adapts the outputs that the network has."""
    direct = model(Mapped, num_classes=3, class_outputs=None)

    def scores(method: str, of: LoadedModel) -> tuple[object, ...]:
        row: Evaluation = evaluated(evaluator(method, of), shard_set)
        return row.scores, row.calibration, row.label_free, row.predicted

    assert scores("source", model()) == scores("source", direct)
    assert scores("tent", model()) != scores("tent", direct)


def test_a_method_that_reads_source_labels_is_refused(shard_set: ShardSet):
    """No output has a label; a method that only reads source images runs."""
    eata, rmt = (evaluator(each, model(), source=open_stream([shard_set.folder])) for each in ("eata", "rmt"))

    assert evaluated(eata, shard_set).scores.num_samples == shard_set.manifest.num_samples
    with pytest.raises(EvaluationError, match=r"rmt reads the labels.*expected a method that reads no labels"):
        rmt.start(shard_set.manifest, seed=0)
    with pytest.raises(EvaluationError, match="mine reads the labels"):
        assert not _HiddenLabels(method="mine") == 0  # noqa: SIM201 - what a method asks of its labels


def test_a_class_with_the_name_of_an_output_has_all_its_outputs():
    """The class map decides, not the name, unless the network has only the classes."""
    outputs = OutputMap(rule="mean", outputs={"dog": ("dog", "puppy"), "cat": ("cat",)})
    context = ModelContext(name="small", classes=outputs.classes, output_map=outputs)
    found, of_classes = (
        context.match_outputs(model(num_classes=len(own), class_outputs=None), own, named="classes")
        for own in (("dog", "puppy", "cat"), ("cat", "bird", "dog"))
    )

    assert ClassOutputs(rule="mean", outputs=((0, 1), (2,))) == found.class_outputs
    assert (None, (2, 0)) == (of_classes.class_outputs, of_classes.outputs)


def laid(folder: Path, *, rule: str) -> ExperimentResults:
    """Write images as LAION-C has them, a file of their classes under *rule* and a benchmark; make the shards."""
    data, classes = Locations(root=folder / "data"), dict.fromkeys(shipped_classes("laion_c"), 2)
    write_tree(folder / "LAION-C/glitched/intensity_level_5", classes=classes)
    command = ["new-benchmark", "small_laion_c", folder / "LAION-C", "--model", "network_of_laion_c:network"]
    environment = {"TTA_DATA_ROOT": str(data.root)}
    CliRunner().invoke(main, [*map(str, command), "--weights", "none"], env=environment, catch_exceptions=False)
    (file,) = data.benchmark_files.glob("*.yaml")
    outputs = shipped_output_map("laion_c").outputs
    (folder / "classes.json").write_text(json.dumps({"rule": rule, "outputs": outputs}))
    text = file.read_text().replace("class_map: laion_c", f"class_map: {folder}/classes.json")
    file.write_text(text.replace("    weights: none", "    weights: none\n    classes: imagenet\n   "))
    benchmark = load_benchmark(file)
    conversion = benchmark_conversion(benchmark, data, quiet_reporter)
    with conversion.session(benchmark.cells) as session:
        convert(session.task(GLITCHED), quiet_reporter)
        publish_shard_set(data.shards(benchmark.name, GLITCHED), conversion.class_map, QUIET)
    return ExperimentResults(benchmark=benchmark, experiment_name="tent", locations=data)


def test_small_folders_of_laion_c_reach_the_leaderboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From the names of the folders to a mean error; another rule is another result."""
    (tmp_path / "network_of_laion_c.py").write_text(NETWORK)
    monkeypatch.syspath_prepend(tmp_path)
    own = laid(tmp_path / "mean", rule="mean")
    (row,), (other,) = evaluated_cell(own, GLITCHED), evaluated_cell(laid(tmp_path / "max", rule="max"), GLITCHED)

    shown = CliRunner().invoke(main, ["leaderboard", "--json"], env={"TTA_DATA_ROOT": str(own.locations.root)})

    (ranked,) = json.loads(shown.stdout)
    class_outputs = json.loads(row["fingerprint_parts"])["model"]["class_outputs"]
    assert ("laion_c", "tent", row["error"]) == (ranked["dataset"], ranked["experiment"], ranked["mean_error"])
    assert ("mean", 16) == (class_outputs["rule"], len(class_outputs["outputs"]))
    assert row["fingerprint"] != other["fingerprint"]
    assert row["nll"] != other["nll"]
