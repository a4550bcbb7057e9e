"""A result in RobustBench's formats: its table of single cells, and the entry of its model zoo.

Croce et al. 2021, "RobustBench: a standardized adversarial robustness benchmark"; the fields and columns follow
`model_info/<dataset>/corruptions/` in its repository.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence

from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.evaluation.published import PublishedExperiment
from tta_pipeline.methods.catalogue import paper_of
from tta_pipeline.results.evaluation_record import Evaluation, mean_error

_DATA_SETS = {"imagenet_c": "imagenet", "imagenet_3dcc": "imagenet", "cifar_10_c": "cifar10", "cifar_100_c": "cifar100"}


def unaggregated_csv(found: Sequence[PublishedExperiment]) -> str:
    """Return accuracies in [0, 1] in RobustBench's columns: corruption above severity, and the average.

    Each seed of each experiment has its own line.
    """
    shifted = [(each, row) for each in found for row in each.rows if row.cell.corruption != CLEAN.corruption]
    columns = list(dict.fromkeys((row.cell.corruption, row.cell.severity) for _, row in shifted))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["", *(corruption for corruption, _ in columns), "average"])
    writer.writerow(["", *(severity for _, severity in columns), ""])
    for name, rows in _lines(found):
        accuracies: dict[tuple[str, int], float] = {}
        for row in rows:
            accuracies.setdefault(
                (row.cell.corruption, row.cell.severity), 1 - row.error
            )  # the first of several visits
        values = [accuracies.get(column) for column in columns]
        known = [value for value in values if value is not None]
        average = sum(known) / len(known) if known else ""
        writer.writerow([name, *("" if value is None else value for value in values), average])
    return buffer.getvalue()


def _lines(found: Sequence[PublishedExperiment]) -> Iterator[tuple[str, Sequence[Evaluation]]]:
    for each in found:
        seeds = sorted({row.cell.seed for row in each.rows})
        for seed in seeds:
            name = each.name if len(seeds) == 1 else f"{each.name} seed {seed}"
            yield name, [row for row in each.rows if row.cell.seed == seed]


def model_info(found: PublishedExperiment) -> tuple[str, bytes]:
    """Return path and content of the entry in RobustBench's `model_info`, with accuracies in percent as there."""
    rows = found.rows
    first, paper = rows[0], paper_of(rows[0].setup.method)
    clean = [row.error for row in rows if row.cell.corruption == CLEAN.corruption]
    shifted = [row for row in rows if row.cell.corruption != CLEAN.corruption]
    # Images that this project made do not belong to the published dataset.
    is_generated = any(row.cell.generated for row in rows)
    dataset = found.plan.benchmark if is_generated else _DATA_SETS.get(first.labels.dataset, first.labels.dataset)
    content = {
        "link": f"https://arxiv.org/abs/{paper.arxiv}" if paper and paper.arxiv else "",
        "name": paper.title if paper else "Model without adaptation",
        "authors": paper.authors if paper else "",
        "additional_data": False,
        "number_forward_passes": round(
            sum(row.cost.num_forwards for row in rows) / sum(row.scores.num_samples for row in rows)
        ),
        "dataset": dataset,
        "venue": f"{paper.venue} {paper.year}" if paper else "N/A",
        "architecture": first.setup.architecture,
        "eps": None,
        "clean_acc": _percent(sum(clean) / len(clean)) if clean else "",
        "reported": "",
        "corruptions_acc": _percent(mean_error(shifted)) if shifted else "",
    }
    path = f"model_info/{dataset}/corruptions/{found.name}.json"
    return path, (json.dumps(content, indent=2) + "\n").encode()


def _percent(error: float) -> str:
    return f"{100 * (1 - error):.2f}"
