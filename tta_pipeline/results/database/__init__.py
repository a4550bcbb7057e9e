"""The DuckDB database made from the result records."""
