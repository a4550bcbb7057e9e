"""Checks of the installation: each finding says what was checked, what was found, and what to do. Nothing changes."""

from tta_pipeline.extras.doctor.benchmark_files import find_missing_source
from tta_pipeline.extras.doctor.examination import examine
from tta_pipeline.extras.doctor.finding import Finding
from tta_pipeline.extras.doctor.refusals import find_refusals

__all__ = ["Finding", "examine", "find_missing_source", "find_refusals"]
