"""Random views of each image."""
