"""The verb `models stop-training`."""

import click

from tta_pipeline.cli.common import plain_errors
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.errors import BenchmarkFileError, EvaluationError
from tta_pipeline.util.files import is_visibly_locked
from tta_pipeline.util.locations import STOP_FILE, TRAINING_LOCK, Locations
from tta_pipeline.util.nearest_names import name_choices


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline models stop-training cifar",
        "tta-pipeline models stop-training cifar resnet20",
    ],
)
@click.argument("benchmark")
@click.argument("model", required=False)
@plain_errors
def stop_training(*, benchmark: str, model: str | None) -> None:
    r"""End a training, and use its weights so far.

    It ends after its present epoch. The weights become the source model, and its record says that the user ended the
    training. To pause a training instead, cancel its run: the next run continues from the last checkpoint.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks

    locations = Locations.from_environment()
    trained = tuple(load_all_benchmarks(locations).benchmark(benchmark).trained_models)
    if not trained:
        raise BenchmarkFileError(
            f"{benchmark} trains no model; expected one of kind trained, whose training can be ended"
        )
    chosen = model or (trained[0] if len(trained) == 1 else None)
    if chosen not in trained:
        named = "no model named" if model is None else f"no training of {model!r}"
        known = name_choices(model, trained, listed_in="its section models")
        raise BenchmarkFileError(f"found {named} of {benchmark}; expected one of {known}")
    folder = locations.training(benchmark, chosen)
    if not is_visibly_locked(folder / TRAINING_LOCK):
        raise EvaluationError(
            f"no training of {chosen} is under way in {folder}; expected one to end: materialize its source_model to "
            "begin a training, or to go on with one that was cancelled or killed"
        )
    (folder / STOP_FILE).touch()
    click.echo(f"{chosen} of {benchmark} ends after its present epoch")
