"""Readers of file formats that hold images: tar and npy."""
