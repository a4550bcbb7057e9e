"""Per-sample predictions of a segment: a small Parquet file next to its result, which has the file's hash.

It has one row per sample, cell by cell in stream order: the `cell`, `prediction`, `confidence`, and the `position` in
the sample index of the shard set, which contains keys and labels. So a sample takes less than 8 bytes.
"""

import hashlib
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tta_pipeline.errors import ManifestError, RecordError
from tta_pipeline.evaluation.experiment_results import CountedCell
from tta_pipeline.results.evaluation_record import Evaluation
from tta_pipeline.shards.sample_index import SampleIndex, as_numbers, read_table
from tta_pipeline.shards.shard_set import ShardSet
from tta_pipeline.util.files import hash_file, read_if_sha256_matches

_SCHEMA = pa.schema(
    [
        ("cell", pa.dictionary(pa.int32(), pa.string())),
        ("position", pa.int32()),
        ("prediction", pa.int32()),
        ("confidence", pa.float32()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class SamplePredictions:
    """Predictions of each sample in stream order; arrays of shape (N,)."""

    positions: npt.NDArray[np.int64]
    """Position of each sample in the sample index of the shard set."""
    predictions: npt.NDArray[np.int64]
    """Predicted label of each sample."""
    confidences: npt.NDArray[np.float32]
    """Probability of the predicted class; NaN if the model returned NaN."""

    @property
    def sha256(self) -> str:
        """sha256 of the predicted labels in stream order, int64 little-endian, as in records."""
        return hashlib.sha256(self.predictions.astype("<i8").tobytes()).hexdigest()

    def num_correct(self, index: SampleIndex) -> int:
        """Return how many predictions equal the labels in *index*."""
        return int((index.labels[self.positions] == self.predictions).sum())

    def agree(self, row: Evaluation, index: SampleIndex) -> bool:
        """Return whether these are the predictions of *row*, and as many are correct by the labels in *index*."""
        found = len(self.positions), self.num_correct(index), self.sha256
        return found == (row.scores.num_samples, row.scores.num_correct, row.predicted.predictions_sha256)

    def to_table(self, index: SampleIndex) -> pa.Table:
        """Return the samples in stream order with `key`, `label`, `prediction`, `confidence` and `correct`."""
        labels = index.labels[self.positions]
        return pa.table(
            {
                "key": index.table["key"].take(pa.array(self.positions)).combine_chunks(),
                "label": labels,
                "prediction": self.predictions,
                "confidence": self.confidences,
                "correct": labels == self.predictions,
            }
        )

    @classmethod
    def of(cls, counted: CountedCell) -> Self:
        """Return the prediction for each sample of *counted*.

        Raises:
            RecordError: the predictions were not kept, are missing or damaged.
        """
        path, sha256 = counted.predictions_path, counted.row.predicted.samples_sha256
        if path is None or sha256 is None:
            raise RecordError(
                f"{counted.row.labels.experiment} at {counted.cell.key} has no predictions; expected one prediction "
                "per sample: evaluate the cell again with keep_predictions"
            )
        try:
            return cls.read(path, sha256=sha256, cell=counted.cell.key)
        except RecordError as error:
            raise RecordError(
                f"{error}; if this predicts otherwise, as another card may, let the next result count: "
                f"tta-pipeline results void {counted.path.stem} --because 'its predictions are lost'"
            ) from error

    @classmethod
    def read(cls, path: Path, *, sha256: str, cell: str) -> Self:
        """Read the predictions for *cell*, the key of one, in the file at *path*, which must hash to *sha256*.

        Raises:
            RecordError: the file is missing, its bytes were changed, or it has no such cell.
        """
        try:
            data = read_if_sha256_matches(path, sha256)
            found = sha256 if data is not None else hash_file(path)
        except OSError as error:
            raise RecordError(
                f"{path} cannot be read ({error.strerror}); expected the predictions of a result: restore the file, "
                "or evaluate the cell again with `run --force`"
            ) from error
        if data is None:
            raise RecordError(
                f"{path} has sha256 {found}, so it changed after it was written; expected {sha256}, as in its result: "
                "restore the file, or evaluate the cell again with `run --force`"
            )
        try:
            table = read_table(data)
        except (pa.ArrowException, ValueError) as error:
            raise RecordError(
                f"{path} is damaged ({error}); expected the predictions of a result: evaluate the cell again with "
                "`run --force`"
            ) from error
        chosen = _rows_of(cell, table["cell"])
        return cls(
            positions=as_numbers(table["position"])[chosen].astype(np.int64),
            predictions=as_numbers(table["prediction"])[chosen].astype(np.int64),
            confidences=as_numbers(table["confidence"])[chosen],
        )


def prediction_problems(counted: CountedCell, shard_set: ShardSet) -> Iterator[str]:
    """Count the predictions of *counted* again by the labels of *shard_set*, and yield a message for each problem."""
    try:
        kept = SamplePredictions.of(counted)
        if not kept.agree(counted.row, shard_set.index):
            yield (
                f"{counted.predictions_path} has {len(kept.positions)} predictions, "
                f"{kept.num_correct(shard_set.index)} of them correct; expected {counted.row.scores.num_samples} and "
                f"{counted.row.scores.num_correct} as in its result"
            )
    except (RecordError, ManifestError) as error:
        yield str(error)


def _rows_of(cell: str, cells: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return which of *cells* are *cell*, as an array (N,); `pyarrow.compute` would import pandas, see `as_numbers`."""
    encoded = cells.cast(pa.string()).combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    found: npt.NDArray[np.bool_] = as_numbers(pa.chunked_array([encoded.indices])) == (
        names.index(cell) if cell in names else -1
    )
    return found


def encode_predictions(of_cells: Mapping[str, SamplePredictions]) -> bytes:
    """Return the bytes of the Parquet file with the predictions for each cell, by its key."""
    tables = [
        pa.table(
            [
                pa.array([cell] * len(own.positions)).dictionary_encode(),
                own.positions,
                own.predictions,
                own.confidences,
            ],
            schema=_SCHEMA,
        )
        for cell, own in of_cells.items()
    ]
    buffer = io.BytesIO()
    pq.write_table(
        pa.concat_tables(tables).unify_dictionaries(),
        buffer,
        compression="zstd",
        use_dictionary=["cell", "prediction"],
        column_encoding={"position": "DELTA_BINARY_PACKED", "confidence": "BYTE_STREAM_SPLIT"},
        write_statistics=False,
        store_schema=False,
    )
    return buffer.getvalue()
