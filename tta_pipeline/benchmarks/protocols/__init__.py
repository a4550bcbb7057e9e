"""The protocols: which segments a stream has, in which order its samples come, and how the method is fed with them.

`tta_pipeline.benchmarks.protocol` names them in its tables `SHIFTS`, `ORDERS` and `DRIVERS`. Importing them does not
import torch, so a benchmark file can be read without it.
"""
