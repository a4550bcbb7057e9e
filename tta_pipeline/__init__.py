"""Robustness benchmarks of image classifiers, from archives to a leaderboard."""

__version__ = "0.1.0"
