"""The images to measure on."""

from tta_pipeline.loader_bench.photographs import jpeg_tree

__all__ = ["jpeg_tree"]
