"""Writes the folder of a published experiment."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.errors import RecordError
from tta_pipeline.extras.reproduction.collected_result import CollectedResult
from tta_pipeline.extras.reproduction.result import PREDICTIONS, RESULT_FILE, SAMPLE_LIST, ExperimentResult
from tta_pipeline.extras.reproduction.robustbench import model_info, unaggregated_csv
from tta_pipeline.methods.catalogue import paper_of
from tta_pipeline.results.evaluation_record import columns
from tta_pipeline.results.reader_notes import UNTRAINED, reader_notes
from tta_pipeline.util.files import published_folder
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.plurals import count_of

_README = """# {experiment} on {title}

{headline}

| file | content |
|---|---|
| `result.json` | model, method, protocol, data, versions, machine, cost, and each cell with its hashes |
| `unaggregated_results.csv` | accuracy of each cell, in RobustBench's columns |
| `cells.parquet` | every fact of every cell, as in the table `evaluations` |
| `benchmark.yaml` | the benchmark file; its paths are those of the machine that evaluated |
| `citation.bib` | what to cite: method and data |{more_rows}

Evaluate it in a project with this benchmark: `{command}`

Repeat it where the data is, and compare: `tta-pipeline results reproduce {experiment}`
"""


@dataclass(frozen=True, kw_only=True)
class Citation:
    """Citation of the images."""

    data: str
    generated: bool


def write_folders(
    found: Sequence[CollectedResult], target: Path, *, benchmark_file: Path, citation: Citation, is_robustbench: bool
) -> None:
    """Write a folder for each of *found* into the new folder *target*: all of them or none.

    Args:
        found: The experiments.
        target: The new folder.
        benchmark_file: The file of the benchmark, which is copied.
        citation: Citation of the images.
        is_robustbench: Whether to add entries for RobustBench's model zoo.

    Raises:
        RecordError: *target* exists.
    """
    if target.exists():
        raise RecordError(f"{target} exists already; expected a new folder: name another, or remove this one")
    with published_folder(target) as beside:
        for each in found:
            folder = beside / each.result.experiment
            folder.mkdir()
            _write_folder(each, folder, benchmark_file, citation)
            if is_robustbench:
                path, content = model_info(each.result)
                (beside / path).parent.mkdir(parents=True, exist_ok=True)
                (beside / path).write_bytes(content)


def _write_folder(found: CollectedResult, folder: Path, benchmark_file: Path, citation: Citation) -> None:
    result = found.result
    (folder / RESULT_FILE).write_bytes(result.encoded())
    (folder / "unaggregated_results.csv").write_text(unaggregated_csv(result), encoding="utf-8")
    pq.write_table(_table(found), folder / "cells.parquet")
    (folder / "benchmark.yaml").write_bytes(benchmark_file.read_bytes())
    if found.sample_list is not None:
        (folder / SAMPLE_LIST).mkdir()
        (folder / str(result.sample_list)).write_bytes(found.sample_list)
    for path in found.predictions:
        (folder / PREDICTIONS).mkdir(exist_ok=True)
        shutil.copyfile(path, folder / PREDICTIONS / path.name)
    (folder / "citation.bib").write_text(bibtex(result, citation), encoding="utf-8")
    (folder / "README.md").write_text(
        _README.format(
            experiment=result.experiment,
            title=result.title,
            headline=_headline(result),
            command=result.command,
            more_rows=_more_rows(found),
        ),
        encoding="utf-8",
    )


def _more_rows(found: CollectedResult) -> str:
    """Return rows of the README for the folders that not every result has."""
    subset = "" if found.sample_list is None else f"\n| `{SAMPLE_LIST}/` | the samples of the subset, a line each |"
    kept = f"\n| `{PREDICTIONS}/` | the prediction of each sample, a Parquet file for each cell |"
    return subset + (kept if found.predictions else "")


def _headline(result: ExperimentResult) -> str:
    errors = result.errors
    in_mean = sum(cell.in_mean is not False and cell.corruption != CLEAN.corruption for cell in result.cells)
    mean = "" if errors.mean_error is None else f"Mean error {errors.mean_error:.2%} over {count_of(in_mean, 'cell')}. "
    untrained = [result.model.name] if result.model.weights == UNTRAINED else []
    notes = "".join(f"**{note}.** " for note in reader_notes(generated=result.generated, untrained=untrained))
    lacking = (
        "" if result.is_complete else f"**Not complete**: no result of {count_of(len(result.missing), 'partition')}. "
    )
    return f"{mean}{notes}{lacking}Model {result.model.name}, method {result.method.name}, protocol {result.protocol}."


def _table(found: CollectedResult) -> pa.Table:
    """Return a row for each cell, with those columns of the table `evaluations` that come from an evaluation."""
    rows = found.rows
    return pa.table({field.name: [_value(row, field.path) for row in rows] for field in columns()})


def _value(row: object, path: str) -> object:
    for name in path.split("."):
        row = getattr(row, name)
    return row


def bibtex(result: ExperimentResult, citation: Citation) -> str:
    """Return BibTeX entries for *result*: the paper of the method, the data, and the model."""
    paper = paper_of(result.method.name)
    entries = [paper.bibtex(result.method.name)] if paper else []
    made = " Made by tta_pipeline after it, from clean images of the user's." if citation.generated else ""
    if citation.data:
        entries.append(_misc(result.shift_set, result.shift_set, f"{citation.data}.{made}"))
    model = result.model
    note = f"Weights {model.weights}, sha256 {model.weights_sha256}"
    entries.append(_misc(model.name, model.architecture, note))
    return "\n".join(entries)


def _misc(key: str, title: str, note: str) -> str:
    return f"@misc{{{key},\n  title = {{{{{title}}}}},\n  note = {{{note}}},\n}}\n"


def folder_facts(benchmark: Benchmark, found: Sequence[CollectedResult], target: Path) -> JsonObject:
    """Return a summary of the written folders for `--json`."""
    return {
        "folder": str(target),
        "benchmark": benchmark.name,
        "experiments": [each.result.experiment for each in found],
        "incomplete": [each.result.experiment for each in found if not each.result.is_complete],
    }
