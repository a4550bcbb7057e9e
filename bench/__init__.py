"""Benchmarks of speed: `make bench`. They report medians and ranges of ratios of interleaved runs."""
