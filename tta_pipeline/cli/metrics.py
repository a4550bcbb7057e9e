"""The verb `metrics`."""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import plain_errors, print_table, say, say_left_out
from tta_pipeline.util.files import write_atomically, written_file
from tta_pipeline.util.locations import Locations

if TYPE_CHECKING:
    import pyarrow as pa

    from tta_pipeline.report.answers import Answer


_ROWS_FOR_PEOPLE = 1_000


@click.command()
@click.option("--by", type=click.Choice(["corruption"]), help="A line for each corruption and experiment.")
@click.option("--compare", "runs", nargs=2, metavar="RUN RUN", help="Show the cells that two runs share, side by side; "
              "the beginning of a run's id is enough.")  # fmt: skip
@click.option("--versus", nargs=2, metavar="EXPERIMENT EXPERIMENT", help="Compare two experiments on the same samples: "
              "is one better by more than chance? Over all cells and cell by cell.")  # fmt: skip
@click.option("--sql", help="Ask this question instead; the database is open for reading only.")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "parquet", "latex", "markdown"]),
              default="table", show_default=True, help="parquet needs --output.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write there instead of printing.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"Only the first N rows. Without it, --sql gives "
              f"{_ROWS_FOR_PEOPLE:,} as table, LaTeX or Markdown and all as CSV, JSON or Parquet.")  # fmt: skip
@plain_errors
def metrics(
    *,
    by: str | None,
    runs: tuple[str, str] | None,
    versus: tuple[str, str] | None,
    sql: str | None,
    form: str,
    output: Path | None,
    limit: int | None,
) -> None:
    r"""Print the leaderboard: mean errors, their standard deviation over seeds, and their cost.

    The best of comparable results is bold in tables, LaTeX and Markdown. Tables and views: docs/metrics.md;
    questions with their SQL: docs/queries.md. Damaged and foreign records count nowhere. They are listed after the
    answer, and the exit status is then 1.

    \b
    Examples:
      tta-pipeline metrics
      tta-pipeline metrics --by corruption --format latex --output table.tex
      tta-pipeline metrics --compare 5a0c2f51 91be7d30
      tta-pipeline metrics --versus tent norm
      tta-pipeline metrics --format parquet --output leaderboard.parquet
      tta-pipeline metrics --sql "SELECT * FROM corruption_errors WHERE experiment = 'tent' ORDER BY mean_error DESC"
    """
    from tta_pipeline.errors import QuestionError
    from tta_pipeline.results.database.database import ensure_current, open_metrics, read_set_aside
    from tta_pipeline.util.progress import log_reporter

    if sum(question is not None for question in (by, runs, versus, sql)) > 1:
        raise click.UsageError("expected one of --by, --compare, --versus and --sql")
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE, since no terminal shows it")
    locations = Locations.from_environment()
    if versus is not None:
        _print_versus(locations, versus, form, output, limit)
        return
    for note in ensure_current(locations, log_reporter(say)):
        say(note)
    try:
        with (
            open_metrics(locations.metrics) as connection,
            _open_answer(connection, by=by, runs=runs, sql=sql) as answer,
        ):
            if sql is None:
                _say_if_generated(connection, runs)
            if form == "latex" and not (sql or by or runs):
                _print_latex(answer, locations, output, limit)
            else:
                _write_answer(answer, form, output, limit=limit, is_own_question=sql is not None)
    except QuestionError as error:
        raise click.UsageError(str(error)) from None
    _exit_if_set_aside(read_set_aside(locations))


def _print_latex(answer: "Answer", locations: Locations, output: Path | None, limit: int | None) -> None:
    """Print the leaderboard for a paper: with intervals, and a mark on each row that may be as good as the best."""
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.report.formats import as_latex
    from tta_pipeline.report.pages.leaderboard_intervals import NOTE, add_intervals_to_all
    from tta_pipeline.report.tables import drop_obvious_columns
    from tta_pipeline.util.progress import log_reporter

    table, _ = answer.table(limit)
    loaded = load_all_benchmarks(locations)
    named = set(table.column("benchmark"))
    say_left_out(
        f"intervals, since the benchmark file has a fault: {fault.sentence}"
        for fault in loaded.faults
        if fault.path.stem in named
    )
    judged, leading = add_intervals_to_all(table, loaded.benchmarks.values(), locations, log_reporter(say))
    text = as_latex(drop_obvious_columns(judged), leading=leading, note=NOTE)
    if output:
        write_atomically(output, f"{text}\n".encode())
    else:
        click.echo(text)


def _print_versus(
    locations: Locations, names: tuple[str, str], form: str, output: Path | None, limit: int | None
) -> None:
    """Compare two experiments in each benchmark that has both."""
    from dataclasses import asdict, fields

    import duckdb
    import pyarrow as pa

    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.evaluation.experiment_results import ExperimentResults
    from tta_pipeline.report.answers import Answer
    from tta_pipeline.report.significance.judged_cells import recorded_places
    from tta_pipeline.report.significance.versus import Comparison, compare_experiments
    from tta_pipeline.report.tables import GENERATED_NOTE
    from tta_pipeline.util.progress import log_reporter

    loaded = load_all_benchmarks(locations)
    say_left_out(fault.sentence for fault in loaded.faults if fault.experiment in (None, *names))
    both = [each for each in loaded.benchmarks.values() if set(names) <= set(each.experiments)]
    pairs = [
        [ExperimentResults(benchmark=each, experiment_name=name, locations=locations) for name in names]
        for each in both
    ]
    evaluated = [(a, b) for a, b in pairs if recorded_places(a).keys() & recorded_places(b).keys()]
    if not evaluated:
        raise click.UsageError(
            f"found {len(both)} benchmarks with experiments {names[0]} and {names[1]}, and in none a stream and seed "
            "with results of both; expected one: evaluate both on the same cells"
        )
    rows = [asdict(row) for a, b in evaluated for row in compare_experiments(a, b, log_reporter(say))]
    if any(row["generated"] for row in rows):
        say(f"generated: {GENERATED_NOTE}")
    columns = {field.name: [row[field.name] for row in rows] for field in fields(Comparison)}
    with duckdb.connect() as connection:
        connection.register("comparisons", pa.table(columns))
        with Answer(connection, "FROM comparisons") as answer:
            _write_answer(answer, form, output, limit=limit, is_own_question=False)


def _exit_if_set_aside(set_aside: Sequence[str]) -> None:
    """Print the records that count nowhere, and end with status 1 if there are any."""
    for line in set_aside:
        say(f"set aside: {line}")
    if set_aside:
        sys.exit(1)


def _open_answer(connection: Any, *, by: str | None, runs: tuple[str, str] | None, sql: str | None) -> "Answer":
    from tta_pipeline.report import queries
    from tta_pipeline.report.answers import Answer

    if sql is not None:
        return Answer(connection, sql)
    if runs:
        return Answer(connection, queries.COMPARISON, [_complete_run_id(connection, run) for run in runs])
    return Answer(connection, queries.BY_CORRUPTION if by else queries.ALL_LEADERBOARDS)


def _say_if_generated(connection: Any, runs: tuple[str, str] | None) -> None:
    """Print a note if some of the requested results are on images that this project generated."""
    from tta_pipeline.report.tables import GENERATED_NOTE

    which = [_complete_run_id(connection, run) for run in runs or ()]
    asked = "run_id IN (?, ?)" if which else "is_latest"
    sql = f"SELECT count(*) FROM evaluations WHERE generated AND {asked}"  # noqa: S608 - the words are ours
    ((num_generated,),) = connection.execute(sql, which).fetchall()
    if num_generated:
        say(f"generated: {GENERATED_NOTE}")


def _write_answer(
    answer: "Answer", form: str, output: Path | None, *, limit: int | None, is_own_question: bool
) -> None:
    """Print *answer* or write it to *output*: for programs row by row, for people a limited number of rows."""
    from tta_pipeline.report.formats import PROGRAM_FORMATS, READER_FORMATS, write_parquet
    from tta_pipeline.report.tables import drop_obvious_columns

    if form in READER_FORMATS:
        if is_own_question and limit is None:
            limit = _ROWS_FOR_PEOPLE
        table, has_more = answer.table(limit)
        if not is_own_question:
            table = drop_obvious_columns(table)
        as_text = READER_FORMATS[form]
        if output:
            write_atomically(output, f"{as_text(table)}\n".encode())
        elif form == "table":
            print_table(table)
        else:
            click.echo(as_text(table))
        if has_more:
            say(f"These are the first {limit:,} rows, and there are more: --limit N for more, --format csv for all.")
    elif form == "parquet":
        assert output is not None
        schema, batches = answer.batches()
        with written_file(output) as path, path.open("wb") as binary:
            write_parquet(schema, batches if limit is None else _first(batches, limit), binary)
    elif output:
        with written_file(output) as path, path.open("w", encoding="utf-8", newline="") as file:
            PROGRAM_FORMATS[form](answer.columns, islice(answer.rows(), limit), file)
    else:
        PROGRAM_FORMATS[form](answer.columns, islice(answer.rows(), limit), sys.stdout)


def _first(batches: "Iterator[pa.RecordBatch]", limit: int) -> "Iterator[pa.RecordBatch]":
    """Yield the first *limit* rows of *batches*."""
    for batch in batches:
        yield batch.slice(length=limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def _complete_run_id(connection: Any, beginning: str) -> str:
    """Return the id of the only run whose id begins with *beginning*."""
    from tta_pipeline.report import queries
    from tta_pipeline.report.tables import query

    found = query(connection, queries.RUNS, [beginning]).column("run_id")
    if beginning in found:
        return beginning
    if len(found) != 1:
        some = f": {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}" if found else ""
        raise click.UsageError(
            f"found {len(found)} runs whose id begins with {beginning!r}{some}; expected one: list them with "
            'tta-pipeline metrics --sql "FROM runs"'
        )
    return str(found[0])
