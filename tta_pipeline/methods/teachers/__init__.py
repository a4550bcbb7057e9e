"""Two models: mean teachers, and averages with the source model."""
