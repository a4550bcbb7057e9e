"""The choice of hyperparameters by trials on held-out shifts, which a benchmark never reports."""
