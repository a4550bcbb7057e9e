"""A result in RobustBench's formats: its table of single cells, and the entry of its model zoo.

Croce et al. 2021, "RobustBench: a standardized adversarial robustness benchmark"; the fields and columns are those of
`model_info/<data set>/corruptions/` in its repository.
"""

import csv
import io
import json

from tta_pipeline.domain.cells import CLEAN
from tta_pipeline.extras.reproduction.result import CellOutcome, ExperimentResult
from tta_pipeline.methods.catalogue import paper_of

_DATA_SETS = {"imagenet_c": "imagenet", "imagenet_3dcc": "imagenet", "cifar_10_c": "cifar10", "cifar_100_c": "cifar100"}


def unaggregated_csv(result: ExperimentResult) -> str:
    """Return accuracies in [0, 1] in RobustBench's columns: corruption above severity, and the average.

    Each seed has its own line.
    """
    columns = list(dict.fromkeys((cell.corruption, cell.severity) for cell in _shifted(result)))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["", *(corruption for corruption, _ in columns), "average"])
    writer.writerow(["", *(severity for _, severity in columns), ""])
    for seed in result.seeds:
        name = result.experiment if len(result.seeds) == 1 else f"{result.experiment} seed {seed}"
        found: dict[tuple[str, int], float] = {}
        for cell in _shifted(result):
            if cell.seed == seed:
                found.setdefault((cell.corruption, cell.severity), 1 - cell.error)  # the first of several visits
        values = [found.get(column) for column in columns]
        known = [value for value in values if value is not None]
        average = sum(known) / len(known) if known else ""
        writer.writerow([name, *("" if value is None else value for value in values), average])
    return buffer.getvalue()


def model_info(result: ExperimentResult) -> tuple[str, bytes]:
    """Return path and content of the entry in RobustBench's `model_info`, with accuracies in percent as there."""
    paper = paper_of(result.method.name)
    errors = result.errors
    # Images that this project made do not belong to the published data set.
    data_set = result.benchmark if result.generated else _DATA_SETS.get(result.shift_set, result.shift_set)
    content = {
        "link": f"https://arxiv.org/abs/{paper.arxiv}" if paper and paper.arxiv else "",
        "name": paper.title if paper else "Model as it is",
        "authors": paper.authors if paper else "",
        "additional_data": False,
        "number_forward_passes": round(result.cost.forwards_per_sample),
        "dataset": data_set,
        "venue": f"{paper.venue} {paper.year}" if paper else "N/A",
        "architecture": result.model.architecture,
        "eps": None,
        "clean_acc": _percent(errors.clean_error),
        "reported": "",
        "corruptions_acc": _percent(errors.mean_error),
    }
    path = f"model_info/{data_set}/corruptions/{result.experiment}.json"
    return path, (json.dumps(content, indent=2) + "\n").encode()


def _shifted(result: ExperimentResult) -> list[CellOutcome]:
    return [cell for cell in result.cells if cell.corruption != CLEAN.corruption]


def _percent(error: float | None) -> str:
    return "" if error is None else f"{100 * (1 - error):.2f}"
