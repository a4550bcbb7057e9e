"""Source models that a benchmark has trained: files of weights, each with a file of facts that holds its own hash."""

import hashlib
import json
from pathlib import Path

from safetensors.torch import load

from tta_pipeline.benchmarks.model_specs import TrainedModel
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.architecture import NetworkWeights
from tta_pipeline.models.fitting import PLACEHOLDER_CLASSES, make_without_storage
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext, ModelKind, kind_of
from tta_pipeline.results.training_record import TrainingRun
from tta_pipeline.shards.set_facts import Manifest
from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.files import read_if_sha256_matches, write_atomically
from tta_pipeline.util.json_values import JsonObject

TRAINING_VERSION = "3"
"""Version of the training code; no other part of a fingerprint covers this code."""


class Trained(ModelKind[TrainedModel]):
    """A model that a benchmark has trained."""

    @property
    def code(self) -> JsonObject:
        """The network's code."""
        return kind_of(self.section.network).code

    def load_for_classes(self, context: ModelContext) -> LoadedModel:
        """Return the network with the trained weights."""
        return load_trained_model(context.name, context.source_model)

    def check(self, *, name: str, num_classes: int | None, image_size: int) -> None:
        """Make the network to train, if it is the user's own."""
        del name, image_size
        architecture = kind_of(self.section.network).architecture()
        if architecture.needs_storage:
            make_without_storage(architecture, num_classes=num_classes or PLACEHOLDER_CLASSES)


class SourceModelFacts(ConfigModel):
    """Facts that a file of trained weights does not contain."""

    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    run: TrainingRun
    """The training, with the hash of the weights."""


def training_fingerprint(settings: TrainedModel, manifest: Manifest, *, image_size: int) -> str:
    """Return the sha256 of everything that determines the weights of a training.

    The device and library versions are not part of the hash: they are recorded, but make no model outdated.

    Raises:
        EvaluationError: the library of the network is not installed.
    """
    kind = kind_of(settings.network)
    architecture = kind.architecture()
    decisive = {
        "version": TRAINING_VERSION,
        "data": manifest.sha256,
        "settings": settings.model_dump(mode="json", exclude={"checkpoint_s"}),  # which changes no weights
        "network": {"architecture": architecture.name, **kind.code, **architecture.code},
        "image_size": image_size,
        **({"start": kind.start_identity()} if settings.fine_tune else {}),
    }
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def find_trained(path: Path, manifest: Manifest, settings: TrainedModel, *, image_size: int) -> TrainingRun | None:
    """Return the training of the model at *path*, if it was on the images of *manifest* with *settings*.

    Raises:
        EvaluationError: the library of the network is not installed.
    """
    fingerprint = training_fingerprint(settings, manifest, image_size=image_size)
    found = _read_if_intact(path)
    return found[0].run if found and found[0].run.fingerprint == fingerprint else None


def require_same_training(path: Path, manifest: Manifest, settings: TrainedModel, *, image_size: int) -> None:
    """Check that the model at *path* was trained on the images of *manifest* with *settings*.

    Raises:
        EvaluationError: the model is missing, or was trained on other images or with other settings.
    """
    if find_trained(path, manifest, settings, image_size=image_size) is None:
        raise EvaluationError(
            f"{path} was trained on other images or with other settings than the benchmark's; expected "
            f"{settings.model_dump_json(exclude={'kind'})} on {manifest.num_samples} images: materialize source_model"
        )


def write_source_model(path: Path, weights: bytes, facts: SourceModelFacts) -> None:
    """Write *weights*, the content of a safetensors file, to *path*, and *facts* next to it."""
    write_atomically(path, weights)
    content = facts.model_dump(mode="json")
    write_atomically(_facts_path(path), json.dumps({**content, "sha256": _content_sha256(content)}, indent=1).encode())


def load_trained_model(name: str, path: Path) -> LoadedModel:
    """Return the source model that a benchmark has trained, with its description.

    Raises:
        EvaluationError: the model is missing, damaged or changed.
    """
    found = _read_if_intact(path)
    if found is None:
        raise EvaluationError(f"{path} is missing or damaged; expected trained weights: materialize source_model")
    facts, content = found
    weights = NetworkWeights(
        state=load(content), num_classes=len(facts.classes), mean=facts.mean, std=facts.std, origin=path.name,
        sha256=facts.run.weights_sha256,
    )  # fmt: skip
    network = TrainedModel.model_validate_json(facts.run.settings).network
    return kind_of(network).architecture().make_model(name, weights)


def _read_if_intact(path: Path) -> tuple[SourceModelFacts, bytes] | None:
    """Return the facts and weights of the model at *path*; None if either is missing or changed."""
    try:
        content = json.loads(_facts_path(path).read_bytes())
        sha256 = content.pop("sha256", None) if isinstance(content, dict) else None
        if sha256 != _content_sha256(content):
            return None
        facts = SourceModelFacts.model_validate(content)
        weights = read_if_sha256_matches(path, facts.run.weights_sha256)
    except (OSError, ValueError):
        return None
    return (facts, weights) if weights is not None else None


def _content_sha256(content: object) -> str:
    """Return the hash of a model's facts, stored with them: mean and std determine predictions too."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _facts_path(path: Path) -> Path:
    return path.with_suffix(".json")
