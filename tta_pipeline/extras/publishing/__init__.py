"""Data sets that describe themselves: a folder with shards, Croissant, a data-set card and checksums."""
