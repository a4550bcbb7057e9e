"""The 19 corruptions of ImageNet-C at five severities, for images nobody has published a corrupted copy of.

Written from Hendrycks & Dietterich 2019 (arXiv:1903.12261) and their generator scripts with NumPy, SciPy and Pillow.
"""

from tta_pipeline.sources.corruptions.dispatch import TABLES, corrupt

__all__ = ["TABLES", "corrupt"]
