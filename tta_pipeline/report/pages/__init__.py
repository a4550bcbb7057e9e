"""The report of a benchmark: a folder of pages that a browser reads from disk, without a network."""
