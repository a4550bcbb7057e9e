"""What stands in the way of work: each thing that was checked, what was found, and what to do. Nothing is changed."""

from tta_pipeline.doctor.examination import examine
from tta_pipeline.doctor.finding import Finding

__all__ = ["Finding", "examine"]
