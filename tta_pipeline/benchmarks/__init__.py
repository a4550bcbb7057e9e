"""Benchmark files and their fields."""
