"""Tar shards: names, writing, the manifest that indexes them, and reading them back to verify them."""
