"""Verification of results: every file is read and hashed, and so are the predictions that it names."""

from collections.abc import Callable, Iterator
from pathlib import Path

from tta_pipeline.errors import RecordError
from tta_pipeline.results.database.listing import Listing
from tta_pipeline.results.result_files import predictions_path, read_result
from tta_pipeline.util.files import hash_file


def find_problems(
    data_root: Path, listing: Listing, *, advance: Callable[[int], None] = lambda _: None
) -> Iterator[str]:
    """Read and hash all results of *listing* and the predictions that they name, and yield a line on each problem.

    *advance* is called with the number of files that were read.
    """
    for file in listing.results:
        advance(1)
        try:
            stored = read_result(data_root / file)
        except RecordError as error:
            yield str(error)
            continue
        for row in stored.result.evaluations[:1]:
            path = predictions_path(stored.path.parent, row)
            try:
                if path and hash_file(path) != row.predicted.samples_sha256:
                    yield (
                        f"{path} is damaged: its hash is not the one in {stored.path.name}; expected unchanged "
                        "predictions: restore the original file"
                    )
            except OSError as error:
                yield (
                    f"{path} cannot be read ({error.strerror}), but {stored.path.name} refers to it; expected its "
                    "predictions: restore the original file"
                )
