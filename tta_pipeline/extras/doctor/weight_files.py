"""Checks of weight files: whether their sha256 and their tensors agree with the benchmark file."""

from collections.abc import Iterator
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.model_specs import CheckpointModel, PythonModel
from tta_pipeline.data.labels.class_map import read_pinned_class_map
from tta_pipeline.errors import PipelineError
from tta_pipeline.extras.doctor.finding import Finding, fault
from tta_pipeline.extras.doctor.machine_checks import is_installed
from tta_pipeline.util.locations import Locations


def check_weight_files(benchmark: Benchmark, locations: Locations) -> Iterator[Finding]:
    """Read every existing weight file in full, and compare it with its sha256 and its architecture."""
    for name, model in benchmark.models.items():
        if not isinstance(model, CheckpointModel | PythonModel) or not _has_file(model):
            continue  # missing files are reported together
        if isinstance(model, CheckpointModel) and model.library == "timm" and not is_installed("timm"):
            yield fault(
                benchmark.name, f"model {name} is of timm, which is not installed", "pip install 'tta_pipeline[timm]'"
            )
            continue
        try:
            _load_weights(model, num_classes=_num_classes(model, benchmark, locations))
        except PipelineError as error:
            found = ", ".join(line.strip() for line in str(error).splitlines())
            yield fault(benchmark.name, f"model {name}: {found}", "until then its experiments fail")


def _has_file(model: CheckpointModel | PythonModel) -> bool:
    path = model.path if isinstance(model, CheckpointModel) else model.weights_file
    return path is not None and path.expanduser().exists()


def _load_weights(model: CheckpointModel | PythonModel, *, num_classes: int | None) -> None:
    """Load the weights into the network that they must fit; this imports torch."""
    from tta_pipeline.models.checkpoint_models import read_checkpoint_state
    from tta_pipeline.models.python_models import read_python_state

    if isinstance(model, CheckpointModel):
        read_checkpoint_state(model, num_classes=num_classes)
    else:
        read_python_state(model, num_classes=num_classes)


def _num_classes(model: CheckpointModel | PythonModel, benchmark: Benchmark, locations: Locations) -> int | None:
    """Return the number of outputs that *model* must have; None if there is no class map yet."""
    if (own := _num_listed(model.classes)) is not None:
        return own
    if pinned := read_pinned_class_map(locations.class_map(benchmark.name)):
        return len(pinned.classes)
    return _num_listed(benchmark.class_map if benchmark.names_classes else None)


def _num_listed(path: Path | str | None) -> int | None:
    """Return the number of classes in the list at *path*; None if there is no such list."""
    from tta_pipeline.data.labels.label_files import is_shipped_list, read_classes

    if path is None or not (is_shipped_list(Path(path)) or Path(path).expanduser().exists()):
        return None
    return len(read_classes(Path(path).expanduser()))
