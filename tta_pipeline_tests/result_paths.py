"""Where results lie, for tests that count or change them."""

from collections.abc import Sequence
from pathlib import Path

from tta_pipeline.results.names import RESULT_NAME
from tta_pipeline.results.result_files import StoredResult, read_result


def result_paths(root: Path, below: str = "**") -> Sequence[Path]:
    """Return the result files in the data root *root*, those in folders that match *below*, in order."""
    return sorted(path for path in root.glob(f"results/{below}/*.json") if RESULT_NAME.fullmatch(path.name))


def results_of(root: Path, benchmark: str, experiment: str) -> Sequence[StoredResult]:
    """Return the results that were made for *experiment* of *benchmark* in the data root *root*, in order."""
    found = (read_result(path) for path in result_paths(root, f"{benchmark}/*"))
    return [each for each in found if any(row.labels.experiment == experiment for row in each.result.evaluations)]


def remove_results(root: Path, benchmark: str, experiment: str, key: str = "") -> None:
    """Remove the results of *experiment*, those in the folder *key* or all, as if they had never been made."""
    for each in results_of(root, benchmark, experiment):
        if key in ("", each.result.key):
            each.path.unlink()
