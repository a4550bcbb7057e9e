"""The verb `evaluate`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tta_pipeline.cli.common import (
    ignore_line,
    parse_settings,
    plain_errors,
    require_urls,
    say,
    with_device,
)
from tta_pipeline.cli.table_output import print_table_as, table_form
from tta_pipeline.cli.verbs import Verb

if TYPE_CHECKING:
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.results.evaluation_record import Evaluation

_COLUMNS = ("method", "corruption", "severity", "error", "ms_per_image", "num_samples", "subset", "model")
_MORE = ("top5_error", "nll", "ece", "num_updates", "images_per_s")
"""Columns that `--wide` adds."""


@click.command(
    cls=Verb,
    examples=[
        "tta-pipeline evaluate shards/fog/5 --model timm:resnet18 --method tent",
        "tta-pipeline evaluate https://example.org/shards/fog/5 --model timm:resnet18 --method norm",
        "tta-pipeline evaluate shards/fog/5 --model timm:resnet18 --method my_method:MINE --limit 200 --set lr=0.001",
        (
            "tta-pipeline evaluate shards/fog/5 --model torchvision:resnet50 --weights mine.safetensors "
            "--mean 0.485 0.456 0.406 --std 0.229 0.224 0.225"
        ),
    ],
)
@click.argument("location", metavar="DIR|URL")
@click.option("--model", required=True, help="timm:<architecture>, torchvision:<architecture>, <module>:<name> of "
              "your network, or a benchmark's source_models/<model>.safetensors.")  # fmt: skip
@click.option(
    "--method", default="source", show_default=True, help="A method's name, or <module>:<name> of your method."
)
@click.option("--limit", type=click.IntRange(1), help="Number of samples, in the stored order. Default: all.")
@click.option("--weights", default="pretrained", show_default=True, help="pretrained, none, a name of "
              "torchvision's weights, or a file: safetensors or a state dict.")  # fmt: skip
@click.option(
    "--mean", nargs=3, type=float, help="Mean of red, green and blue in [0, 1]; needed with a file of weights."
)
@click.option(
    "--std", nargs=3, type=float, help="Standard deviation of red, green and blue; needed with a file of weights."
)
@click.option(
    "--preset", type=click.Choice(["imagenet", "cifar", "imagenet_vit"]), default="imagenet", show_default=True
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Change a hyperparameter.")
@click.option("--batch-size", type=click.IntRange(1, 100_000), default=64, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Seed of the "
              "method, and of random weights.")  # fmt: skip
@with_device
@click.option("--record", "experiment", metavar="EXPERIMENT", help="Store the result under this experiment name; "
              "the benchmark's name is in the shards.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the whole record.")
@click.option("--wide", "is_wide", is_flag=True, help="All columns, however wide the table is.")
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print only the result.")
@plain_errors
def evaluate(
    *,
    location: str,
    model: str,
    method: str,
    weights: str,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    preset: str,
    settings: tuple[str, ...],
    seed: int,
    device: str,
    experiment: str | None,
    as_json: bool,
    is_wide: bool,
    is_quiet: bool,
    limit: int | None,
    batch_size: int,
) -> None:
    """Evaluate one method on one shift, without a benchmark file.

    Use it while you write a method, to get a number in seconds. Nothing is recorded without --record.
    """
    import torch

    from tta_pipeline.evaluation.device.leases import leased_device
    from tta_pipeline.evaluation.evaluate_shards import evaluate as evaluate_alone
    from tta_pipeline.loading.dataset import open_shards
    from tta_pipeline.methods import build
    from tta_pipeline.methods.own_methods import say_origin
    from tta_pipeline.models.load_by_name import load_model
    from tta_pipeline.models.try_network import require_outputs
    from tta_pipeline.results.result_files import utc_now
    from tta_pipeline.util.identifiers import is_benchmark_name
    from tta_pipeline.util.plurals import count_of
    from tta_pipeline.util.progress import log_reporter

    if experiment is not None and not is_benchmark_name(experiment):
        raise click.UsageError(
            f"--record is {experiment!r}; expected a name of letters, digits and single _, a letter first, and no "
            "reserved word such as results"
        )
    require_urls([location])
    shards, started_at = open_shards(location), utc_now()
    num_classes = len(shards.classes)
    torch.manual_seed(seed)
    network = load_model(
        model, num_classes=num_classes, weights=None if weights == "none" else weights, mean=mean, std=std
    )
    require_outputs(network, num_classes=num_classes, image_size=shards.image_size, called=f"the model {model}")
    report = ignore_line if is_quiet else say
    hyperparameters: dict[str, Any] = dict(parse_settings("--set", settings, example="lr=0.001"))
    with leased_device(device, report) as leased:
        built = build(
            method, network.to(leased), num_classes=num_classes, preset=preset, seed=seed, batch_size=batch_size,
            **hyperparameters,
        )  # fmt: skip
        row = evaluate_alone(
            built, shards, batch_size=batch_size, limit=limit, name=experiment, progress=log_reporter(report)
        )
    if row.cost.num_nonfinite_batches:
        report(
            f"found NaN or infinite logits{say_origin(built)} in {count_of(row.cost.num_nonfinite_batches, 'batch')}"
        )
    # Nothing can have trained the model since it was loaded.
    row = replace(row, setup=replace(row.setup, weights=network.weights))
    if experiment:
        report(f"recorded in {_write_result(row, started_at)}")
    if as_json:
        click.echo(json.dumps(row.by_column()))
    else:
        _print_evaluation(row, is_wide=is_wide)


def _write_result(row: "Evaluation", started_at: str) -> Path:
    """Write *row* as a result of its cell with a plan that needs it, publish it, and return its path."""
    from tta_pipeline.domain.locations import Locations
    from tta_pipeline.errors import EvaluationError
    from tta_pipeline.results.database.publication import publish_metrics
    from tta_pipeline.results.plans import add_to_plan, folder_of_key
    from tta_pipeline.results.result_files import Result, store_result, utc_now
    from tta_pipeline.util.identifiers import is_benchmark_name
    from tta_pipeline.util.software_versions import software_versions

    if not is_benchmark_name(row.cell.benchmark):
        raise EvaluationError(
            f"The shard set belongs to the benchmark {row.cell.benchmark!r:.120}, which cannot be a folder of "
            "results; expected a name of letters, digits and single _, a letter first: write the shards to a folder "
            "with such a name, or leave --record out"
        )
    locations = Locations.from_environment()
    row = _with_dataset(row, locations)
    result = Result(
        kind="evaluation",
        benchmark=row.cell.benchmark,
        key=folder_of_key(row.cell.stream),
        fingerprint=row.setup.fingerprint,
        run_id="tta-pipeline evaluate",
        started_at=started_at,
        finished_at=utc_now(),
        versions=software_versions(),
        evaluations=(row,),
    )
    stored = store_result(locations.results(row.cell.benchmark), result)
    add_to_plan(locations, row)
    publish_metrics(locations)
    return stored.path


def _with_dataset(row: "Evaluation", locations: "Locations") -> "Evaluation":
    """Return *row* with the dataset of the benchmark in its manifest, if a benchmark file has it with this shift."""
    from tta_pipeline.benchmarks.load_files import load_all_benchmarks
    from tta_pipeline.domain.cells import CLEAN
    from tta_pipeline.evaluation.experiment_results import shift_facts

    benchmark = load_all_benchmarks(locations).benchmarks.get(row.cell.benchmark)
    if benchmark is None or row.cell.corruption not in (*benchmark.dataset.names, CLEAN.corruption):
        return row
    dataset = benchmark.dataset
    labels = replace(row.labels, dataset=dataset.name, shift=shift_facts(dataset, row.cell.corruption))
    return replace(row, labels=labels)


def _print_evaluation(row: "Evaluation", *, is_wide: bool) -> None:
    """Print *row* as a table like the leaderboard's, after the warnings."""
    from tta_pipeline.report.tables import Table
    from tta_pipeline.results.reader_notes import reader_notes

    columns = {**row.by_column(), "ms_per_image": 1000 / row.time.images_per_s}
    facts = {name: columns[name] for name in (*_COLUMNS, *_MORE)}
    untrained = [row.labels.model] if row.is_untrained else []
    notes = reader_notes(generated=bool(row.cell.generated), untrained=untrained)
    table = Table(columns=tuple(facts), rows=(tuple(facts.values()),))
    print_table_as(table, table_form(is_wide=is_wide), _COLUMNS, before=notes)
