"""Tar shards: names, writing, the manifest that indexes them, and the reading back that proves them."""
