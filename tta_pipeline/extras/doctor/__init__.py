"""Checks of the installation: each finding says what was checked, what was found, and what to do. Nothing changes."""

from tta_pipeline.extras.doctor.examination import examine
from tta_pipeline.extras.doctor.finding import Finding

__all__ = ["Finding", "examine"]
