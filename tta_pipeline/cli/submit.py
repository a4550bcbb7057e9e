"""The verb `submit`."""

import shlex

import click

from tta_pipeline.cli.common import plain_errors, say
from tta_pipeline.cli.run import run
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.domain.locations import Locations

_MOST_PARTS = 100_000


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline submit mine --parts 8 --sbatch '--gres=gpu:1 --time=12:00:00'",
        "tta-pipeline submit mine --dry-run -- --experiment tent --device cuda",
    ],
)
@click.argument("benchmark_name", metavar="BENCHMARK")
@click.argument("run_options", metavar="[-- OPTIONS]...", nargs=-1)
@click.option("--parts", "num_parts", type=click.IntRange(1, _MOST_PARTS), default=4, show_default=True,
              help="Number of Slurm tasks that share the evaluations.")  # fmt: skip
@click.option("--sbatch", "sbatch_options", multiple=True, metavar="OPTIONS", help="Options of sbatch for every "
              "job; can be repeated.")  # fmt: skip
@click.option("--program", metavar="WORDS", help="Command that starts tta-pipeline on a node, such as `apptainer "
              "exec --nv image.sif tta-pipeline`. Default: the Python of this command.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the scripts and commands without submitting them.")
@plain_errors
def submit(
    *,
    benchmark_name: str,
    run_options: tuple[str, ...],
    num_parts: int,
    sbatch_options: tuple[str, ...],
    program: str | None,
    dry_run: bool,
) -> None:
    """Evaluate a whole benchmark on a Slurm cluster.

    Submits three jobs of `tta-pipeline run BENCHMARK OPTIONS`: shards and models, an array that shares the
    evaluations, and the report. Tasks that are preempted, lose their node or run out of time continue later. After
    any trouble, submit again: finished work is skipped, and the jobs wait for the jobs of an earlier submission.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.extras.cluster.slurm import Submission

    given = run.make_context("run", [benchmark_name, *run_options]).params
    if given["part"] or given["num_processes"] > 1 or given["dry_run"]:
        raise click.UsageError(
            "The options for run include --part, --processes or --dry-run; expected none of these: use --parts and "
            "--dry-run of submit instead"
        )
    locations = Locations.from_environment()
    load_all_benchmarks(locations).parts_of(benchmark_name)
    submission = Submission(
        benchmark=benchmark_name,
        locations=locations,
        num_parts=num_parts,
        run_options=run_options,
        sbatch_options=tuple(word for options in sbatch_options for word in shlex.split(options)),
        **({"program": program} if program else {}),
    )
    if dry_run:
        for job in submission.jobs():
            click.echo(f"{shlex.join(job.command(submission.script_path(job), '<job before>'))}\n\n{job.script}")
        return
    numbers = submission.submit()
    for job, number in zip(submission.jobs(), numbers, strict=True):
        click.echo(f"{number} {job.name}")
    say(
        f"scripts and logs: {submission.folder}\n"
        f"state:            squeue --me; tta-pipeline results list {benchmark_name}\n"
        f"to stop it:       scancel {' '.join(numbers)}"
    )
