"""A source model from clean shards."""
