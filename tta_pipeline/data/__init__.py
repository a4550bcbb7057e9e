"""Images before they are shards: sources, shift sets, labels, corruptions, file formats."""
