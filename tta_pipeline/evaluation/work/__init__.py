"""The unfinished work of a benchmark, as planned runs in order."""
