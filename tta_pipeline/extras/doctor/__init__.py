"""What stands in the way of work: each thing that was checked, what was found, and what to do. Nothing is changed."""

from tta_pipeline.extras.doctor.examination import examine
from tta_pipeline.extras.doctor.finding import Finding

__all__ = ["Finding", "examine"]
