"""Result files and the DuckDB database made from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from tta_pipeline.domain.locations import Locations
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.results.result_files import Result


class MetricsStore(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Where results are stored: as files first, then in `metrics.duckdb`."""

    data_root: str = Field(
        default="", description="Folder that holds the results and metrics.duckdb; empty: $TTA_DATA_ROOT or data/"
    )
    publishes: bool = Field(
        default=True,
        description="Whether runs bring metrics.duckdb up to date; if several machines write into one data root, "
        "let one process do it",
    )

    @property
    def locations(self) -> Locations:
        """The paths under the data root."""
        return Locations.from_roots(self.data_root, "")

    def store(self, result: "Result") -> None:
        """Write one result file; it is safe on disk when this returns."""
        from tta_pipeline.results.result_files import store_result

        store_result(self.locations.results(result.benchmark), result)

    @contextmanager
    def publishing(self, log: dg.DagsterLogManager) -> Iterator[None]:
        """Publish when the block ends, even with an error, so that finished results reach the database."""
        try:
            yield
        finally:
            self.publish(log)

    def publish(self, log: dg.DagsterLogManager, *, is_last: bool = True) -> tuple[str, ...]:
        """Call `publish_now` if this run publishes."""
        if self.publishes:
            return self.publish_now(log, is_last=is_last)
        if is_last:
            log.info("metrics.duckdb lacks the new results; the next command that reads the database adds them")
        return ()

    def publish_now(self, log: dg.DagsterLogManager, *, is_last: bool = True) -> tuple[str, ...]:
        """Bring the database up to date; return the files that were set aside, which are also logged at the end."""
        from tta_pipeline.results.database.publication import publish_metrics

        publication = publish_metrics(self.locations)
        for note in publication.notes:
            log.warning(note)
        for line in publication.set_aside if is_last else ():
            log.error(f"set aside: {line}")
        if number := publication.num_added:
            log.info(f"{self.locations.metrics}: {count_of(number, 'new result')}")
        return publication.set_aside
