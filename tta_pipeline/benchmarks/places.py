"""The places of an experiment's results: each cell in each segment of each stream, and the name of its records."""

from collections.abc import Iterator
from typing import NamedTuple

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.domain.cells import Cell
from tta_pipeline.domain.streams import Segment, StreamPlan


class Place(NamedTuple):
    """A cell in a segment of a stream; each place has its own records."""

    plan: StreamPlan
    segment: Segment
    cell: Cell

    @property
    def text(self) -> str:
        """The place in a message."""
        return f"stream {self.plan.key.key}, {self.cell.key}"


def places_of(plan: StreamPlan) -> Iterator[Place]:
    """Yield each cell of *plan*, in order."""
    return (Place(plan, segment, cell) for segment in plan.segments for cell in segment.cells)


def record_name(experiment_name: str, experiment: Experiment, place: Place) -> str:
    """Return the name of the records of *place* in *experiment*, which is called *experiment_name*."""
    folders = [experiment_name, *([f"seed-{place.plan.seed}"] if experiment.seeds else [])]
    name = f"{place.cell.corruption}-{place.cell.severity}"
    if isinstance(place.plan.key, Cell):
        return "/".join([*folders, name])
    return "/".join([*folders, place.plan.key.key, f"{place.segment.position:03d}-{name}"])
