"""Networks and their weights: one file for each kind of model that a benchmark file can name."""
