"""What every part of the project uses: cells, streams, and the folders of a data root."""
