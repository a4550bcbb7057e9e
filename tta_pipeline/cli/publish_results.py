"""The verb `results publish`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tta_pipeline.cli.common import LocalPath, plain_errors, say, say_left_out, with_reporter
from tta_pipeline.cli.verbs import Verb
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.util.console import ConsoleReporter


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline results publish digits_c published",
        "tta-pipeline results publish imagenet_c published --experiment tent --robustbench",
    ],
)
@click.argument("benchmark")
@click.argument("target", metavar="OUT", type=LocalPath())
@click.option("--experiment", "names", multiple=True, help="Only this experiment; can be repeated.")
@click.option("--robustbench", "is_robustbench", is_flag=True, help="Add entries for the model_info of RobustBench's "
              "repository.")  # fmt: skip
@plain_errors
@with_reporter
def publish_results(
    benchmark: str,
    target: Path,
    *,
    names: tuple[str, ...],
    is_robustbench: bool,
    reporter: "ConsoleReporter",
) -> int:
    """Write results to a folder that others can cite and reproduce.

    OUT gets the result files, predictions, plans and benchmark file, unchanged, plus accuracies in RobustBench's
    columns, BibTeX and a README. Everything is read and hashed first. Others add it to their leaderboard with
    `results add`, and evaluate it again with `results reproduce`. Experiments with a fault or without results are
    listed and left out; the exit status is then 1.
    """
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.evaluation.published import PublishedExperiment
    from tta_pipeline.extras.reproduction.publication import collect_experiment, write_publication
    from tta_pipeline.util.short_lists import abbreviate_list

    locations = Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    described = loaded.benchmark(benchmark)
    for name in names:
        loaded.experiment(benchmark, name)
    wanted = names or tuple(described.experiments)
    progress = reporter("reading", len(wanted), unit="experiments")
    found: list[PublishedExperiment] = []
    left_out = [] if names else [fault.sentence for fault in loaded.faults_of(benchmark)]
    for name in wanted:
        if each := collect_experiment(described, name, locations):
            found.append(each)
        elif names:
            raise click.UsageError(
                f"{benchmark} has no results of {name}; expected an evaluated experiment: run `tta-pipeline run "
                f"{benchmark} --experiment {name}`, or leave it out"
            )
        else:
            left_out.append(
                f"{name} has no results; expected an evaluated experiment: run `tta-pipeline run {benchmark} "
                f"--experiment {name}`, or choose the others with --experiment"
            )
        progress.advance(1)
    if not found:
        raise click.UsageError(
            f"{benchmark} has no results to publish "
            f"({abbreviate_list([each.partition('; expected ')[0] for each in left_out])}); expected at least one "
            f"evaluated experiment: run `tta-pipeline run {benchmark}`"
        )
    write_publication(found, target, described, locations, is_robustbench=is_robustbench)
    sizes = {path: path.stat().st_size for path in target.rglob("*") if path.is_file()}
    predictions = sum(size for path, size in sizes.items() if path.suffix == ".parquet")
    reporter.report_finished(
        f"{target}: {count_of(len(found), 'experiment')}, {sum(sizes.values()) / 1e6:,.1f} MB, of which predictions "
        f"have {predictions / 1e6:,.1f}",
        {
            "folder": str(target),
            "benchmark": described.name,
            "experiments": [each.name for each in found],
            "incomplete": [each.name for each in found if each.num_missing],
            "left_out": left_out,
        },
        number=1, total=1, what="folders",
    )  # fmt: skip
    for each in found:
        if each.num_missing:
            say(f"{each.name} is not complete: no result of {count_of(each.num_missing, 'cell')}")
    say_left_out(left_out)
    return 1 if left_out else 0
