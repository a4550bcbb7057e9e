"""The verb `doctor`."""

import json
import sys

import click

from tta_pipeline.cli.common import plain_errors, text_width, wrap_text
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline doctor",
        "tta-pipeline doctor digits_c",
        "tta-pipeline doctor --json",
    ],
)
@click.argument("benchmarks", nargs=-1, metavar="[BENCHMARK]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@plain_errors
def doctor(*, benchmarks: tuple[str, ...], as_json: bool) -> None:
    """Check the installation, the data and the benchmark files.

    Checks the data root, disk space, locks, left-over files, results, benchmark files, Dagster and devices. With
    names, checks only those benchmarks and the files that they name. Changes nothing. Each line is ok, a note, or a
    fault with advice. The exit status is 1 if there is a fault.
    """
    from dataclasses import asdict

    from tta_pipeline.defs.history import find_home
    from tta_pipeline.extras.doctor import examine

    locations = Locations.from_environment()
    colours = {"ok": "green", "note": "yellow", "fault": "red"}
    findings = []
    for finding in examine(locations, benchmarks, home=find_home(locations)):
        findings.append(finding)
        if not as_json:
            click.echo(click.style(f"{finding.mark:<6}", colours[finding.mark]), nl=False)
            click.echo(_wrapped(f" {finding.subject}: {finding.found}"))
            if finding.advice:
                click.echo(f"{'':<6}{_wrapped(f' -> {finding.advice}', indent='   ')}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    sys.exit(1 if any(finding.mark == "fault" for finding in findings) else 0)


def _wrapped(text: str, *, indent: str = "") -> str:
    """Return *text*, which follows a mark: wrapped for a terminal, otherwise on one line."""
    if not sys.stdout.isatty():
        return text
    return wrap_text(f"{'':<6}{text}", text_width(), indent=f"{'':<7}{indent}")[6:]
