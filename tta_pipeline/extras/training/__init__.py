"""Training of a source model on clean shards."""
