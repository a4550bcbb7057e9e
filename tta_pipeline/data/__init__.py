"""Images before they are shards: where they come from, shifts, labels, corruptions, formats."""
