"""The index of a shard set: the position of every sample."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SAMPLES_SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("source_name", pa.string()),
        ("label", pa.int32()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("size_bytes", pa.int64()),
        ("sha256", pa.binary(32)),
    ]
)


@dataclass(frozen=True, kw_only=True)
class SampleIndex:
    """The samples of a shard set in stored order, by column."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def serialise(self) -> bytes:
        """Return the bytes of `samples.parquet`."""
        sink = pa.BufferOutputStream()
        pq.write_table(self.table, sink, compression="zstd", write_statistics=False)
        return bytes(sink.getvalue())

    @property
    def labels_sha256(self) -> str:
        """sha256 of the key and the label of each sample, one sample per line."""
        lines = (f"{key}\t{label}" for key, label in zip(self.keys, self.labels.tolist(), strict=True))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @cached_property
    def keys(self) -> list[str]:
        """The webdataset key of each sample."""
        return list(self.table["key"].to_pylist())

    @cached_property
    def source_names(self) -> list[str]:
        """The name of each sample in its source."""
        return list(self.table["source_name"].to_pylist())

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of each sample, shape (N,)."""
        return self._column("label")

    @cached_property
    def shards(self) -> npt.NDArray[np.int64]:
        """The position of each sample's shard in the manifest, shape (N,)."""
        return self._column("shard")

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Offset of each sample's bytes in its shard, shape (N,)."""
        return self._column("offset")

    @cached_property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Size of each sample in bytes, shape (N,)."""
        return self._column("size_bytes")

    def _column(self, name: str) -> npt.NDArray[np.int64]:
        column: npt.NDArray[np.int64] = as_numbers(self.table[name]).astype(np.int64)
        return column


def read_table(data: bytes) -> pa.Table:
    """Return the table in *data*, the bytes of a Parquet file.

    Raises:
        pyarrow.ArrowException: *data* is not a Parquet file.
    """
    # Without Arrow's threads: a process that ends just after they started is sometimes aborted.
    return pq.ParquetFile(pa.BufferReader(data), pre_buffer=False).read(use_threads=False)


def as_numbers(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """Return *column*, numbers without nulls, as an array (N,).

    `to_numpy` would import pandas if it is installed: 0.3 s of CPU, most of the time of a short command.
    """
    chunks = [np.from_dlpack(chunk) for chunk in column.chunks if len(chunk)]
    return np.concatenate(chunks) if chunks else np.empty(0, column.type.to_pandas_dtype())


def keys_sha256(keys: list[str]) -> str:
    """Return the hash of sample keys in their order."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()
