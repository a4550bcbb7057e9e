"""Third-party Parquet files, whose footers are checked against limits before any data is unpacked."""

import pyarrow as pa
import pyarrow.parquet as pq

_MOST_ROWS = 2**28
_FEW_ROWS = 2**20
_LEAST_BYTES = 2**20


def read_bounded_table(data: bytes, *, num_rows: int | None, row_bytes: int) -> pa.Table:
    """Return the table in *data*, the bytes of a Parquet file, if its footer claims no more than the limits.

    Args:
        data: The file. A few bytes can expand to a table that does not fit in memory.
        num_rows: Required number of rows; None: any number.
        row_bytes: Most bytes of an unpacked row.

    Raises:
        ValueError: the footer claims another number of rows, too many rows for the file's size, or too many bytes.
        pyarrow.ArrowException: *data* is not a Parquet file.
    """
    # Without Arrow's threads: a process that ends just after they started is sometimes aborted.
    file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    found = max(file.metadata.num_rows, sum(group.num_rows for group in groups))
    found_bytes = sum(group.total_byte_size for group in groups)
    if num_rows is not None and found != num_rows:
        raise ValueError(f"it has {found:,} rows; expected {num_rows:,}")
    # A row takes more than a byte, since hashes and confidences hardly compress, unless all rows are equal.
    most = min(_MOST_ROWS, _FEW_ROWS + len(data))
    if found > most or found_bytes > _LEAST_BYTES + found * row_bytes:
        raise ValueError(
            f"it says that it holds {found:,} rows of {found_bytes:,} bytes; expected at most {most:,} rows of "
            f"{row_bytes:,} bytes each"
        )
    return file.read(use_threads=False)
