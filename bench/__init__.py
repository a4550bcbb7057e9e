"""Benchmarks of speed: `make bench`. Ratios of interleaved runs, medians with their range."""
