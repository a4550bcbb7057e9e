"""Formats of files that hold images: tar, npy."""
