"""A model of a benchmark file, for the classes of the benchmark."""

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.open_images import load_class_map, load_output_map
from tta_pipeline.data.labels.class_map import read_pinned_class_map
from tta_pipeline.domain.cells import TRAIN
from tta_pipeline.domain.locations import Locations
from tta_pipeline.errors import ClassCountError, EvaluationError
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.models.model_kind import ModelContext, kind_of
from tta_pipeline.models.trained_models import require_same_training
from tta_pipeline.shards.benchmark_expectation import expected_for_benchmark
from tta_pipeline.shards.manifest import MANIFEST_FILE, read_manifest
from tta_pipeline.util.short_lists import abbreviate_list


def load_benchmark_model(benchmark: Benchmark, name: str, locations: Locations) -> LoadedModel:
    """Load the model *name* of *benchmark*.

    Raises:
        EvaluationError: the weights are missing, do not match their hash, or come from a training other than the
            benchmark file's.
    """
    training = benchmark.trained_models.get(name)
    source_model = locations.source_model(benchmark.name, name)
    train = locations.shards(benchmark.name, TRAIN)
    # Weights without a recorded training are evaluated as they are.
    if training and (train / MANIFEST_FILE).exists():
        manifest = read_manifest(train, expected_for_benchmark(benchmark, locations, TRAIN))
        require_same_training(source_model, manifest, training, image_size=benchmark.image_size)
    class_map = load_class_map(benchmark, locations)
    try:
        return kind_of(benchmark.models[name]).load(
            ModelContext(
                name=name,
                classes=class_map.classes,
                output_map=load_output_map(benchmark),
                source_model=source_model,
                image_size=benchmark.image_size,
                text_features=locations.text_features,
            )
        )
    except ClassCountError as error:
        raise EvaluationError(describe_class_count(error, benchmark, name, locations)) from error


def describe_class_count(error: ClassCountError, benchmark: Benchmark, name: str, locations: Locations) -> str:
    """Return the message of *error* about the model *name* with the class folders, one of which may be the cause."""
    pinned_at = locations.class_map(benchmark.name)
    pinned = read_pinned_class_map(pinned_at)
    if getattr(benchmark.models[name], "classes", None):
        return str(error)
    if benchmark.names_classes:
        return f"{error}. The classes come from class_map, {benchmark.class_map}: correct it if it is another dataset's"
    if pinned is None:
        return str(error)
    return (
        f"{error}. The {len(pinned.classes)} classes are the class folders of the images, "
        f"{abbreviate_list(pinned.classes, most=12)}: if one of them is not a class, remove it, {pinned_at} and "
        f"{locations.shards(benchmark.name, TRAIN).parents[1]}"
    )
