"""`python -m tta_pipeline_tests.net record OUT` and `python -m tta_pipeline_tests.net compare A B`."""

import resource
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from tta_pipeline_tests.net.comparison import differences
from tta_pipeline_tests.net.recording import record


@click.group()
def main() -> None:
    """Record what a user sees of the whole package, and compare two recordings."""


@main.command("record")
@click.argument("out", type=click.Path(path_type=Path, exists=False))
@click.option("--work", type=click.Path(path_type=Path), help="New folder for the tour, which is kept.")
def record_tour(out: Path, work: Path | None) -> None:
    """Run the tour, and write a file for each step into OUT, a new folder."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the servers and the daemon end with it
    begun, unexpected = time.monotonic(), 0
    with TemporaryDirectory(prefix="tta-net-", ignore_cleanup_errors=True) as folder:
        for finished in record(out, work.absolute() if work else Path(folder) / "root"):
            is_odd = finished.step.status not in (None, finished.status)
            unexpected += is_odd
            click.echo(f"{finished.wall_s:6.1f} s  {finished.status}  {finished.step.name}")
            if is_odd:
                click.echo(
                    f"          expected {finished.step.status}: {finished.step.command}\n{finished.stderr[-2000:]}"
                )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    click.echo(f"{time.monotonic() - begun:.0f} s, {cpu_s:.0f} s of CPU, {unexpected} unexpected, in {out}")
    sys.exit(1 if unexpected else 0)


@main.command("compare")
@click.argument("one", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("other", type=click.Path(path_type=Path, exists=True, file_okay=False))
def compare(one: Path, other: Path) -> None:
    """Print what differs between two recordings; the exit status is 1 if anything does."""
    found = list(differences(one, other))
    click.echo("\n".join(found) or "no difference")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
