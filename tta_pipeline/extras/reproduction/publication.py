"""Writes results for others: result files, predictions, plans, benchmark file, trained weights, in one folder."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.data.datasets.dataset_files import ENDING
from tta_pipeline.domain.locations import RESULTS, SOURCE_MODELS, Locations
from tta_pipeline.errors import RecordError
from tta_pipeline.evaluation.published import (
    BENCHMARK_FILE,
    SAMPLE_LISTS,
    PublishedExperiment,
    read_experiment,
)
from tta_pipeline.extras.reproduction.robustbench import model_info, unaggregated_csv
from tta_pipeline.methods.catalogue import paper_of
from tta_pipeline.results.evaluation_record import Evaluation, mean_error
from tta_pipeline.results.plans import plan_path
from tta_pipeline.results.reader_notes import UNTRAINED, reader_notes
from tta_pipeline.util.files import hash_file, published_folder
from tta_pipeline.util.plurals import count_of

_README = """# {title}

{experiments}

{notes}| file | content |
|---|---|
| `results/` | the results, byte by byte: a JSON file for each segment of a stream, the prediction for each sample, and the plan of each experiment |
| `benchmark.yaml` | the benchmark file, with its dataset's file, if it has one; paths are from the machine that evaluated |
| `unaggregated_results.csv` | accuracy of each cell, in RobustBench's columns |
| `source_models/` | weights of the models that were trained here, if any: copy the folder to `data/<benchmark>/` |
| `citation.bib` | what to cite: methods, data, models |

To add it to your leaderboard: `tta-pipeline results add FOLDER --as NAME`

To evaluate it again on other hardware, and compare: `tta-pipeline results reproduce FOLDER EXPERIMENT`
"""  # noqa: E501 - a table


def collect_experiment(benchmark: Benchmark, experiment: str, locations: Locations) -> PublishedExperiment | None:
    """Return *experiment* with the results that count; None if there are none."""
    path = plan_path(locations, benchmark.name, experiment)
    found = read_experiment(locations.root, path) if path.exists() else None
    if found is None:
        return None
    found.require_predictions()
    if (listed := found.sample_list) and (problem := _problem_of_list(listed, found.rows[0])):
        raise RecordError(f"{listed} {problem}: put it back, or nobody can repeat {experiment}")
    return found


def _problem_of_list(path: Path, row: Evaluation) -> str:
    """Return why the list of a subset's samples at *path* does not match *row*; empty if it matches."""
    expected = json.loads(row.setup.fingerprint_parts)["settings"]["subset"]["file_sha256"]
    try:
        return "" if hash_file(path.expanduser()) == expected else "is not the list of samples that were evaluated"
    except OSError as error:
        return f"cannot be read ({error.strerror}); expected the list of the samples that were evaluated"


def write_publication(
    found: Sequence[PublishedExperiment],
    target: Path,
    benchmark: Benchmark,
    locations: Locations,
    *,
    is_robustbench: bool,
) -> None:
    """Write *found* into the new folder *target*: all of it or nothing.

    Args:
        found: The experiments.
        target: The new folder.
        benchmark: Their benchmark.
        locations: Locations of results and benchmark files.
        is_robustbench: Whether to add entries for RobustBench's model zoo.
    """
    if target.exists():
        raise RecordError(f"{target} already exists; expected a new folder: choose another name, or remove this folder")
    with published_folder(target) as beside:
        for each in found:
            for path in _files_of(each, locations, benchmark):
                copy = beside / RESULTS / path.relative_to(locations.results_root)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, copy)
            if listed := each.sample_list:
                (beside / SAMPLE_LISTS).mkdir(exist_ok=True)
                shutil.copyfile(listed.expanduser(), beside / SAMPLE_LISTS / listed.name)
            if is_robustbench:
                path_of_entry, content = model_info(each)
                (beside / path_of_entry).parent.mkdir(parents=True, exist_ok=True)
                (beside / path_of_entry).write_bytes(content)
        if file := locations.benchmark_file(benchmark.name):
            shutil.copyfile(file, beside / BENCHMARK_FILE)
            own_set = file.with_name(f"{benchmark.dataset.name}{ENDING}")
            if own_set.exists():
                shutil.copyfile(own_set, beside / own_set.name)
        for path in _trained_weights(found, benchmark, locations):
            (beside / SOURCE_MODELS).mkdir(exist_ok=True)
            shutil.copyfile(path, beside / SOURCE_MODELS / path.name)
        (beside / "unaggregated_results.csv").write_text(unaggregated_csv(found), encoding="utf-8")
        (beside / "citation.bib").write_text(bibtex(found, benchmark), encoding="utf-8")
        (beside / "README.md").write_text(_readme(found, benchmark), encoding="utf-8")


def _files_of(found: PublishedExperiment, locations: Locations, benchmark: Benchmark) -> Sequence[Path]:
    predictions = [path for cell in found.cells if (path := cell.predictions_path)]
    plan = plan_path(locations, benchmark.name, found.name)
    return [plan, *(stored.path for stored in found.stored), *dict.fromkeys(predictions)]


def _trained_weights(
    found: Sequence[PublishedExperiment], benchmark: Benchmark, locations: Locations
) -> Iterator[Path]:
    """Yield weights and facts of the models that the benchmark trained, unless they were trained again since then."""
    used = {(each.plan.labels.model, each.rows[0].setup.weights_sha256) for each in found}
    for model, weights_sha256 in sorted(used):
        weights = locations.source_model(benchmark.name, model)
        if weights.exists() and hash_file(weights) == weights_sha256:
            yield from (weights, weights.with_suffix(".json"))


def _readme(found: Sequence[PublishedExperiment], benchmark: Benchmark) -> str:
    lines = [f"- {_headline(each)}" for each in found]
    untrained = [each.name for each in found if each.rows[0].setup.weights == UNTRAINED]
    notes = reader_notes(generated=any(row.cell.generated for each in found for row in each.rows), untrained=untrained)
    return _README.format(
        title=benchmark.title, experiments="\n".join(lines), notes="".join(f"**{note}.**\n\n" for note in notes)
    )


def _headline(found: PublishedExperiment) -> str:
    rows = found.rows
    averaged = [row for row in rows if row.is_averaged]
    lacking = f", **not complete**: {count_of(found.num_missing, 'cell')} missing" if found.num_missing else ""
    return (
        f"`{found.name}`: mean error {mean_error(rows):.2%} over {count_of(len(averaged or rows), 'cell')}; model "
        f"{found.plan.labels.model}, method {rows[0].setup.method}, protocol {rows[0].setup.protocol}{lacking}"
    )


def bibtex(found: Sequence[PublishedExperiment], benchmark: Benchmark) -> str:
    """Return BibTeX entries for *found*: the papers of the methods, the data, and the models, each once."""
    entries: list[str] = []
    for each in found:
        row = each.rows[0]
        if paper := paper_of(row.setup.method):
            entries.append(paper.bibtex(row.setup.method))
        if benchmark.dataset.citation:
            made = " Imitated by tta_pipeline with the user's clean images." if row.cell.generated else ""
            name = benchmark.dataset.name
            entries.append(_misc(name, name, f"{benchmark.dataset.citation}.{made}"))
        model = each.plan.labels.model
        entries.append(
            _misc(model, row.setup.architecture, f"Weights {row.setup.weights}, sha256 {row.setup.weights_sha256}")
        )
    return "\n".join(dict.fromkeys(entries))


def _misc(key: str, title: str, note: str) -> str:
    return f"@misc{{{key},\n  title = {{{{{title}}}}},\n  note = {{{note}}},\n}}\n"
