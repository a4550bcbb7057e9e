"""A source that takes some cells, such as clean images, from other sources."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from tta_pipeline.data.sources.listing import Listing, Source
from tta_pipeline.util.partitions import Cell


@dataclass(frozen=True, kw_only=True)
class Routed:
    """*source*, except for the cells in *elsewhere*; only *source* determines the classes."""

    source: Source
    elsewhere: Mapping[Cell, Source]

    def class_names(self) -> tuple[str, ...]:
        """Return the classes of the main source."""
        return self.source.class_names()

    def version(self, cell: Cell) -> str:
        """Return the version of *cell* from the source that has it."""
        return self._of(cell).version(cell)

    def together(self, cell: Cell, among: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return those of the cells *among* that are best prepared with *cell*."""
        return self._of(cell).together(cell, [other for other in among if other not in self.elsewhere])

    @contextmanager
    def prepared(self, cells: Sequence[Cell]) -> Iterator[None]:
        """Prepare *cells*, each in the source that has it."""
        with ExitStack() as stack:
            for cell in cells:
                if cell in self.elsewhere:
                    stack.enter_context(self.elsewhere[cell].prepared([cell]))
            stack.enter_context(self.source.prepared([cell for cell in cells if cell not in self.elsewhere]))
            yield

    def listing(self, cell: Cell) -> Listing:
        """Return the images of *cell* from the source that has it."""
        return self._of(cell).listing(cell)

    def _of(self, cell: Cell) -> Source:
        return self.elsewhere.get(cell, self.source)
