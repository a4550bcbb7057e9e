"""Writes a commented benchmark file for the content of a folder or of archives."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tta_pipeline import benchmarks
from tta_pipeline.benchmarks.model_specs import NetworkSection
from tta_pipeline.data.datasets.dataset_files import shipped_sets
from tta_pipeline.data.images.images_section import Survey
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.extras.new_project.draft_sets import draft_sets
from tta_pipeline.extras.new_project.survey import survey
from tta_pipeline.extras.new_project.template import (
    ALL_METHODS,
    EXAMPLES,
    PAPERS,
    Draft,
    benchmark_text,
    next_commands,
    whole_text,
)
from tta_pipeline.util.files import advice, write_once
from tta_pipeline.util.identifiers import MAX_NAME_LENGTH, is_benchmark_name, name_problem

__all__ = ["EXAMPLES", "OF_SETS", "PAPERS", "Draft", "draft_benchmark", "write_new_file"]

OF_SETS = "ttabc"
"""Name of the published table to imitate with the datasets in a folder: methods for CLIP."""


def draft_benchmark(
    name: str,
    paths: Sequence[Path],
    *,
    like: str = "imagenet_c",
    own_folder: Path | None = None,
    draft_model: Callable[[Survey], tuple[str, NetworkSection]] | None = None,
) -> Draft:
    """Return a benchmark file for the images at *paths*.

    Args:
        name: Name of the benchmark.
        paths: A folder, or one or more archives; without paths, the file has placeholders.
        like: Without *paths*: a published benchmark, a key of `EXAMPLES`, whose file with placeholders is written; the
            digits under all methods, whose file is complete; or a published table, one of `PAPERS`. With one folder:
            `OF_SETS`, for all datasets in it.
        own_folder: Folder with the user's own datasets.
        draft_model: Returns name and section of the model for the images found; None: a model that may fit,
            or one to fill in.
    """
    embedded = {path.stem for path in Path(str(benchmarks.__file__)).parent.glob("*.yaml")}
    if not is_benchmark_name(name) or name.lower() in embedded:
        raise BenchmarkFileError(
            name_problem(name)
            or f"found the name {name!r}; expected letters, digits and underscores, a letter first, at most "
            f"{MAX_NAME_LENGTH} in all, and none of {', '.join(sorted(embedded))}"
        )
    if like == OF_SETS:
        return draft_sets(name, *paths)
    if like in PAPERS:
        commands = (f"tta-pipeline run {name}", f"tta-pipeline leaderboard --benchmark {name} --reference {like}")
        return Draft(text=whole_text(like), commands=commands, remarks=("Put in your own paths.",))
    found = survey(paths, own_folder) if paths else EXAMPLES[like]
    if found.dataset.name == "custom" and name in shipped_sets():
        raise BenchmarkFileError(
            f"{name} is the name of a published dataset, but the images found are not that dataset; expected another "
            f"name, since results on different datasets must not share one: write `new-benchmark my_{name}`"
        )
    is_complete = found is EXAMPLES[ALL_METHODS]
    text = whole_text(like) if is_complete else benchmark_text(name, found, draft_model and draft_model(found))
    return Draft(text=text, commands=next_commands(name, found), remarks=found.remarks)


def write_new_file(path: Path, text: str) -> None:
    """Write *text* to *path*, which must not exist yet, whatever its capitals."""
    alike = [each for each in path.parent.glob("*.yaml") if each.name.lower() == path.name.lower()]
    if alike:
        raise BenchmarkFileError(f"{alike[0]} already exists; expected a new name: choose another, or remove the file")
    try:
        was_written = write_once(path, text.encode())
    except OSError as error:
        raise BenchmarkFileError(
            f"{path} cannot be written ({error.strerror}); expected a writable folder: {advice(error)}"
        ) from error
    if not was_written:
        raise BenchmarkFileError(f"{path} already exists; expected a new name: choose another, or remove the file")
