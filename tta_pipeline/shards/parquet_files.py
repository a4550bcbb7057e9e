"""Parquet files of others, whose footers are believed before their bytes are unpacked."""

import pyarrow as pa
import pyarrow.parquet as pq

_MOST_ROWS = 2**28
_FEW_ROWS = 2**20
_LEAST_BYTES = 2**20


def read_table(data: bytes, *, num_rows: int | None, row_bytes: int) -> pa.Table:
    """Return the table in *data*, the bytes of a Parquet file, if its footer claims no more than it may.

    Args:
        data: A few bytes can stand for a table that no memory holds.
        num_rows: Number of rows that it must have; None: unknown.
        row_bytes: Most bytes of a row, unpacked.

    Raises:
        ValueError: the footer claims other rows, more than bytes can stand for, or more bytes than so many rows take.
        pyarrow.ArrowException: it is not a Parquet file.
    """
    # Without Arrow's threads: a process that ends just after they have started is sometimes aborted.
    file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    found = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
    found_bytes = sum(group.total_byte_size for group in groups)
    if num_rows is not None and found != num_rows:
        raise ValueError(f"it has {found:,} rows; expected {num_rows:,}")
    # A hash or a confidence takes more than a byte, unless all of them are equal.
    most = min(_MOST_ROWS, _FEW_ROWS + len(data))
    if found > most or found_bytes > _LEAST_BYTES + found * row_bytes:
        raise ValueError(
            f"it says that it holds {found:,} rows of {found_bytes:,} bytes; expected at most {most:,} rows of "
            f"{row_bytes:,} bytes each"
        )
    return file.read(use_threads=False)
