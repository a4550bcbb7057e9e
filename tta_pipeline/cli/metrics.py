"""The verb `metrics`."""

from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.answer_output import Output, current_metrics, say_if_generated, with_output
from tta_pipeline.cli.common import plain_errors, say, say_left_out
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.locations import Locations

if TYPE_CHECKING:
    from tta_pipeline.report.answers import Answer


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline metrics",
        "tta-pipeline metrics --by corruption --format latex --output table.tex",
        "tta-pipeline metrics --format parquet --output leaderboard.parquet",
        'tta-pipeline metrics --sql "FROM corruption_errors ORDER BY mean_error DESC"',
    ],
)
@click.option("--by", type=click.Choice(["corruption"]), help="A line for each corruption and experiment.")
@click.option("--sql", help="Ask this question instead; the database is open for reading only.")
@with_output
@plain_errors
def metrics(*, by: str | None, sql: str | None, output: Output) -> None:
    """Print the leaderboard (text, LaTeX, CSV), or ask it in SQL.

    The leaderboard has mean errors, their standard deviation over seeds, and their cost. The best of comparable results
    is bold in tables, LaTeX and Markdown. Tables and views: docs/metrics.md; questions with their SQL: docs/queries.md.
    Damaged and foreign records count nowhere. They are listed after the answer, and the exit status is then 1.
    """
    from tta_pipeline.report.formats import READER_FORMATS

    if by is not None and sql is not None:
        raise click.UsageError("expected one of --by and --sql")
    locations = Locations.from_environment()
    with current_metrics(locations) as connection, _open_answer(connection, by=by, sql=sql) as answer:
        if sql is None and not _has_results(connection):
            from tta_pipeline.results.database.database import EVALUATE_FIRST

            say(f"no results: {EVALUATE_FIRST}")
            if output.form in READER_FORMATS:
                return
        if sql is None:
            say_if_generated(connection)
        if output.form == "latex" and not (sql or by):
            _write_latex(answer, locations, output)
        else:
            output.write(answer, is_own_question=sql is not None)


def _has_results(connection: Any) -> bool:
    ((num_results,),) = connection.execute("SELECT count(*) FROM evaluations WHERE is_latest").fetchall()
    return bool(num_results)


def _open_answer(connection: Any, *, by: str | None, sql: str | None) -> "Answer":
    from tta_pipeline.report import queries
    from tta_pipeline.report.answers import Answer

    if sql is not None:
        return Answer(connection, sql)
    return Answer(connection, queries.BY_CORRUPTION if by else queries.ALL_LEADERBOARDS)


def _write_latex(answer: "Answer", locations: Locations, output: Output) -> None:
    """Write the leaderboard for a paper: with intervals, and a mark on each row that may be as good as the best."""
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.report.formats import as_latex
    from tta_pipeline.report.pages.leaderboard_intervals import NOTE, add_intervals_to_all
    from tta_pipeline.report.tables import drop_obvious_columns
    from tta_pipeline.util.progress import log_reporter

    table, _ = answer.table(output.max_rows)
    loaded = load_all_benchmarks(locations)
    named = set(table.column("benchmark"))
    say_left_out(
        f"intervals, since the benchmark file has a fault: {fault.sentence}"
        for fault in loaded.faults
        if fault.path.stem in named
    )
    judged, leading = add_intervals_to_all(table, loaded.benchmarks.values(), locations, log_reporter(say))
    output.write_text(as_latex(drop_obvious_columns(judged), leading=leading, note=NOTE))
