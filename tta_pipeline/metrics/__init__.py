"""Result records as files, and the DuckDB database made from them."""
