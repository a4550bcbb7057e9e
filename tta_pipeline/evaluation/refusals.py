"""Find what a run of a benchmark would refuse before it starts, without training, downloading or evaluating."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.model_specs import ModelSection
from tta_pipeline.data.labels.class_map import read_pinned_class_map
from tta_pipeline.data.labels.label_files import is_shipped_list, read_classes
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ClassCountError, PipelineError, on_one_line
from tta_pipeline.evaluation.benchmark_model import describe_class_count
from tta_pipeline.methods import import_implementation
from tta_pipeline.models.model_kind import kind_of


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """What a run would refuse."""

    subject: str
    """Benchmark, or `<benchmark>/<experiment>`."""
    found: str
    is_of_model: bool = False
    """Whether it concerns all experiments of a model."""


def find_refusals(benchmark: Benchmark, locations: Locations, experiments: Collection[str]) -> Iterator[Refusal]:
    """Yield what a run would refuse among the models and the code of *experiments*.

    Weight files are read in full, compared with their sha256, and loaded into their network. The code of methods is
    imported. This imports torch.
    """
    specs = {name: benchmark.experiments[name] for name in experiments}
    for model in dict.fromkeys(spec.model for spec in specs.values()):
        if found := _problem_of_model(model, benchmark, locations):
            yield Refusal(subject=benchmark.name, found=f"model {model}: {found}", is_of_model=True)
    for name, spec in specs.items():
        if found := _problem_of_code(spec):
            yield Refusal(subject=f"{benchmark.name}/{name}", found=found)


def _problem_of_model(name: str, benchmark: Benchmark, locations: Locations) -> str:
    """Return why *name* cannot evaluate *benchmark*'s images; empty if it can, or if only a download would show it."""
    model = benchmark.models[name]
    try:
        num_classes = _num_classes(model, benchmark, locations)
        kind_of(model).check(name=name, num_classes=num_classes, image_size=benchmark.image_size)
    except ClassCountError as error:
        return on_one_line(describe_class_count(error, benchmark, name, locations))
    except PipelineError as error:
        return on_one_line(error)
    return ""


def _problem_of_code(spec: Experiment) -> str:
    """Return why the code of a method cannot be imported; empty if it can."""
    try:
        import_implementation(spec.entry)
    except PipelineError as error:
        return on_one_line(error)
    return ""


def _num_classes(model: ModelSection, benchmark: Benchmark, locations: Locations) -> int | None:
    """Return the number of outputs that *model* must have; None if there is no class map yet."""
    if own := getattr(model, "classes", None):
        return len(read_classes(Path(own).expanduser()))
    if pinned := read_pinned_class_map(locations.class_map(benchmark.name)):
        return len(pinned.classes)
    if not benchmark.names_classes:
        return None
    listed = Path(benchmark.class_map).expanduser()
    return len(read_classes(listed)) if is_shipped_list(listed) or listed.exists() else None
