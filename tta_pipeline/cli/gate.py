"""The verb `gate`."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import plain_errors, say, say_left_out, with_device
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.locations import Locations

if TYPE_CHECKING:
    from tta_pipeline.benchmarks.gate_settings import Gate
    from tta_pipeline.report.gate.finding import Finding

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline gate digits_c",
        "tta-pipeline gate digits_c --experiment tent --max mean_error=0.42 --max ece=0.1",
        "tta-pipeline gate digits_c --no-worse-than published --margin 0.005 --junit gate.xml --markdown gate.md",
    ],
)
@click.argument("benchmark")
@click.option("--experiment", "names", multiple=True, metavar="NAME", help="Only this experiment; can be repeated. By "
              "default all but the baseline.")  # fmt: skip
@click.option("--max", "at_most", multiple=True, metavar="COLUMN=NUMBER", help="Largest value of a column; can be "
              "repeated.")  # fmt: skip
@click.option("--min", "at_least", multiple=True, metavar="COLUMN=NUMBER", help="Smallest value of a column where more "
              "is better; can be repeated.")  # fmt: skip
@click.option("--no-worse-than", metavar="BASELINE", help="An experiment, or a folder by `results publish`.")
@click.option("--margin", type=click.FloatRange(0, 1, min_open=True, max_open=True), help="Increase of the mean error "
              "over the baseline that is too much; by default 0.01.")  # fmt: skip
@click.option("--junit", type=_FILE, metavar="FILE", help="Write the findings there as JUnit's XML.")
@click.option("--markdown", type=_FILE, metavar="FILE", help="Write a summary there in Markdown.")
@with_device
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@plain_errors
def gate(
    *,
    benchmark: str,
    names: tuple[str, ...],
    at_most: tuple[str, ...],
    at_least: tuple[str, ...],
    no_worse_than: str | None,
    margin: float | None,
    junit: Path | None,
    markdown: Path | None,
    device: str,
    as_json: bool,
) -> None:
    r"""Do the results keep to limits, and are they no worse?

    For a CI: the exit status is 0 if each demand is kept, else 1. Demands stand in the section `gate` of the benchmark
    file; options replace its fields. A column of the leaderboard, such as mean_error, limits each experiment; a column
    of the evaluations, such as ece, limits each cell. No worse than a baseline means: the upper end of the 95 %
    interval of the paired difference of mean errors, over the same images, lies below the margin. Unfinished cells and
    a missing or stale baseline fail.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.extras.cluster.unfinished import FingerprintComparison
    from tta_pipeline.report.gate.finding import is_passed
    from tta_pipeline.report.gate.judge import Judge
    from tta_pipeline.results.database.database import ensure_current, open_metrics
    from tta_pipeline.util.progress import log_reporter

    locations = Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    described = loaded.benchmark(benchmark)
    asked = _merge(
        described.gate,
        {"max": _parse(at_most), "min": _parse(at_least), "no_worse_than": no_worse_than, "margin": margin,
         "experiments": names},
    )  # fmt: skip
    for name in asked.experiments:
        loaded.experiment(benchmark, name)
    faults = [] if asked.experiments else loaded.faults_of(benchmark)
    say_left_out(fault.sentence for fault in faults)
    for note in ensure_current(locations, log_reporter(say)):
        say(note)
    with open_metrics(locations.metrics) as connection:
        judge = Judge(
            benchmark=described, locations=locations, gate=asked, connection=connection,
            comparison=FingerprintComparison(device=device),
        )  # fmt: skip
        findings = list(judge.findings())
    _write(benchmark, findings, junit=junit, markdown=markdown, as_json=as_json)
    sys.exit(0 if is_passed(findings) and not faults else 1)


def _merge(section: "Gate", options: dict[str, Any]) -> "Gate":
    """Return the *section* of the file with the *options* that were given in place of its fields."""
    from pydantic import ValidationError

    from tta_pipeline.benchmarks.gate_settings import Gate
    from tta_pipeline.util.validation_errors import mistakes

    given = {name: value for name, value in options.items() if value}
    try:
        merged = Gate.model_validate({**section.model_dump(), **given})
    except ValidationError as error:
        raise click.UsageError("; ".join(map(str, mistakes(error, "gate")))) from None
    if merged.is_empty:
        raise click.UsageError(
            "found no demand; expected --max, --min or --no-worse-than, or a section gate in the benchmark file"
        )
    return merged


def _parse(limits: Sequence[str]) -> dict[str, float]:
    return dict(_parse_each(limits))


def _parse_each(limits: Sequence[str]) -> Iterator[tuple[str, float]]:
    for limit in limits:
        column, sign, number = limit.partition("=")
        try:
            value = float(number)
        except ValueError:
            sign = ""
        if not sign:
            raise click.UsageError(f"found the limit {limit!r}; expected COLUMN=NUMBER, such as mean_error=0.42")
        yield column, value


def _write(
    benchmark: str, findings: "Sequence[Finding]", *, junit: Path | None, markdown: Path | None, as_json: bool
) -> None:
    from tta_pipeline.report.gate.finding import is_passed
    from tta_pipeline.report.gate.summaries import as_facts, as_junit, as_markdown
    from tta_pipeline.util.files import write_atomically

    if junit:
        write_atomically(junit, as_junit(benchmark, findings))
    if markdown:
        write_atomically(markdown, as_markdown(benchmark, findings).encode())
    if as_json:
        click.echo(json.dumps([as_facts(each) for each in findings], indent=1))
        return
    failed = [each for each in findings if not each.is_kept]
    for each in failed:
        click.echo(f"failed: {each.sentence}")
    kept = f"{len(findings) - len(failed)} of {len(findings)} demands are kept"
    click.echo(f"{benchmark}: {'passed' if is_passed(findings) else 'failed'}: {kept}")
