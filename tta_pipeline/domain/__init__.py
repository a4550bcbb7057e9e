"""What every part of the project speaks of: cells, streams, and the folders of a data root."""
