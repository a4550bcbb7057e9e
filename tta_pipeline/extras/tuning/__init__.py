"""Choice of hyperparameters by trials on held-out shifts, which the benchmark never reports."""
