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
@click.option("--predictions", "with_predictions", is_flag=True, help="Add the prediction of each sample, which a "
              "paired test needs; up to 8 bytes for each sample.")  # fmt: skip
@plain_errors
@with_reporter
def publish_results(
    benchmark: str,
    target: Path,
    *,
    names: tuple[str, ...],
    is_robustbench: bool,
    with_predictions: bool,
    reporter: "ConsoleReporter",
) -> int:
    r"""Write results for others, to cite and to reproduce.

    The new folder OUT has one folder for each experiment, with result.json (model, weights, method, protocol, data,
    versions, machine and cost, and every cell with its hashes), the accuracies in RobustBench's columns, Parquet,
    BibTeX, the benchmark file, and the command. Records are verified first, and stored predictions are counted again.
    The result of an experiment says if cells are missing. Experiments with a fault or without results are listed and
    left out; the exit status is then 1.
    """
    from tta_pipeline.benchmarks.load_files import EMBEDDED_FOLDER, load_all_benchmarks
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.evaluation.experiment_results import ExperimentResults
    from tta_pipeline.extras.reproduction.collected_result import CollectedResult, collect_result
    from tta_pipeline.extras.reproduction.result_folder import Citation, folder_facts, write_folders
    from tta_pipeline.util.short_lists import abbreviate_list

    locations = Locations.from_environment()
    loaded = load_all_benchmarks(locations)
    described = loaded.benchmark(benchmark)
    for name in names:
        loaded.experiment(benchmark, name)
    wanted = names or tuple(described.experiments)
    progress = reporter("reading", len(wanted), unit="experiments")
    found: list[CollectedResult] = []
    left_out = [] if names else [fault.sentence for fault in loaded.faults_of(benchmark)]
    for name in wanted:
        results = ExperimentResults(benchmark=described, experiment_name=name, locations=locations)
        if each := collect_result(results, with_predictions=with_predictions):
            found.append(each)
        elif names:
            raise click.UsageError(f"{benchmark} has no results of {name}; expected some: evaluate it, or leave it out")
        else:
            left_out.append(f"{name} has no results; expected some: evaluate it, or name the others by --experiment")
        progress.advance(1)
    if not found:
        raise click.UsageError(
            f"{benchmark} has no results: {abbreviate_list(left_out)}; expected some: evaluate first"
        )
    folders = [*locations.benchmark_folders, EMBEDDED_FOLDER]
    file = next(path for folder in folders if (path := folder / f"{described.file}.yaml").exists())
    citation = Citation(data=described.shift_set.citation, generated=any(each.result.generated for each in found))
    write_folders(
        found, target, benchmark_file=file, citation=citation, is_robustbench=is_robustbench
    )  # fmt: skip
    reporter.report_finished(
        f"{target}: {count_of(len(found), 'experiment')}",
        {**folder_facts(described, found, target), "left_out": left_out},
        number=1, total=1, what="folders",
    )  # fmt: skip
    for each in found:
        if not each.result.is_complete:
            missing = count_of(len(each.result.missing), "partition")
            say(f"{each.result.experiment} is not complete: no result of {missing}")
    say_left_out(left_out)
    return 1 if left_out else 0
