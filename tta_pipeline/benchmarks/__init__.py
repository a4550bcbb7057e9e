"""Benchmark files: their fields, their streams, and the specification that they are read into."""
