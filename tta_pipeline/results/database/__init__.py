"""The DuckDB database made from the result files."""
