"""The verb `doctor`."""

import json
import sys

import click

from tta_pipeline.cli.common import plain_errors
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.locations import Locations


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
    r"""Check the installation, the data and the benchmark files.

    Data root, disk space, locks, left-overs, results, benchmark files, Dagster and devices are checked. With names,
    only those benchmarks and the files that they name are checked. Nothing is changed. Each line is ok, a note, or a
    fault with advice. The exit status is 1 if there is a fault.
    """
    from dataclasses import asdict

    from tta_pipeline.defs.resources.run_queue import queue_limit
    from tta_pipeline.extras.doctor import examine

    colours = {"ok": "green", "note": "yellow", "fault": "red"}
    findings = []
    for finding in examine(Locations.from_environment(), benchmarks, queue_limit=queue_limit):
        findings.append(finding)
        if not as_json:
            click.echo(f"{click.style(f'{finding.mark:<6}', colours[finding.mark])} {finding.subject}: {finding.found}")
            if finding.advice:
                click.echo(f"{'':<7}-> {finding.advice}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    sys.exit(1 if any(finding.mark == "fault" for finding in findings) else 0)
