"""Tar shards: names, writing, the manifest that indexes them, and the read-back that proves them."""
