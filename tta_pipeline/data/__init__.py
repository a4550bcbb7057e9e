"""Images before they are shards: sources, datasets, labels, corruptions, file formats."""
