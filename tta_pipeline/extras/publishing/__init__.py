"""Publication of data sets: a folder with shards, Croissant metadata, a data-set card and checksums."""
