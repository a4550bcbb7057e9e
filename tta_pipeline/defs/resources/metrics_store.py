"""Result records and the DuckDB database made from them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import Field

from tta_pipeline.domain.locations import Locations, results_url
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.plurals import count_of

if TYPE_CHECKING:
    from tta_pipeline.results.record_exchange import Sender
    from tta_pipeline.results.training_record import TrainingRun


class MetricsStore(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Where results are stored: as files first, then in `metrics.duckdb`."""

    data_root: str = Field(
        default="", description="Folder that holds the records and metrics.duckdb; empty: $TTA_DATA_ROOT or data/"
    )
    results_url: str = Field(
        default="", description="s3 or gs URL to which runs send their records as well; empty: $TTA_RESULTS_URL or none"
    )
    publishes: bool = Field(
        default=True,
        description="Whether runs bring metrics.duckdb up to date; where several machines write into one data root, "
        "let one process do it",
    )

    @property
    def locations(self) -> Locations:
        """The paths under the data root."""
        return Locations.from_roots(self.data_root, "")

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:  # noqa: ARG002 - so Dagster calls it
        """Check the URL for records before anything is computed.

        Raises:
            StreamError: the URL does not name a bucket, or the bucket cannot be listed.
        """
        from tta_pipeline.results.record_exchange import require_bucket

        if url := self._url:
            require_bucket(url)

    @property
    def _url(self) -> str:
        return self.results_url or results_url()

    def record(
        self,
        benchmark_name: str,
        *,
        kind: str,
        name: str,
        run_id: str,
        started_at: str,
        facts: "JsonObject | TrainingRun",
    ) -> None:
        """Write one result record; it is safe on disk when this returns."""
        from tta_pipeline.results.records import publish_record

        publish_record(
            self.locations.results(benchmark_name),
            kind=kind,
            name=name,
            run_id=run_id,
            started_at=started_at,
            facts=facts,
        )

    @contextmanager
    def publishing(self, log: dg.DagsterLogManager) -> Iterator[None]:
        """Publish when the block ends, even with an error, so that finished results reach the database."""
        try:
            yield
        finally:
            self.publish(log)

    def publish(self, log: dg.DagsterLogManager, *, within: Path | None = None) -> tuple[str, ...]:
        """Send the records if a URL is set, and call `publish_now` if this run publishes.

        Only the last call, without *within*, raises if the server does not answer: it also sends all records that
        earlier calls could not.
        """
        self._send(log, is_last=within is None)
        if self.publishes:
            return self.publish_now(log, within=within)
        if within is None:
            log.info(
                "the records are not in metrics.duckdb yet, since this run does not publish; the next run that "
                "publishes adds them, as does: tta-pipeline results rebuild"
            )
        return ()

    def publish_now(self, log: dg.DagsterLogManager, *, within: Path | None = None) -> tuple[str, ...]:
        """Bring the database up to date; return the records that were set aside, which are also logged at the end.

        While a run goes on, it publishes what lies *within* its own folder of records.
        """
        from tta_pipeline.results.database.database import publish_metrics

        publication = publish_metrics(self.locations, within=within)
        for note in publication.notes:
            log.warning(note)
        for line in publication.set_aside if within is None else ():
            log.error(f"set aside: {line}")
        if number := publication.num_added:
            log.info(f"{self.locations.metrics}: {count_of(number, 'new record')}")
        return publication.set_aside

    def _send(self, log: dg.DagsterLogManager, *, is_last: bool) -> None:
        from tta_pipeline.errors import StreamError

        if not (url := self._url):
            return
        try:
            num_sent = _cached_sender(self.locations.root, url).send()
        except StreamError as error:
            if is_last:
                raise
            log.warning(f"no records were sent for now: {error}")
        else:
            log.info(f"{url}: {count_of(num_sent, 'record')} sent")


@cache
def _cached_sender(root: Path, url: str) -> "Sender":
    """Return the sender of this process for *root*, which remembers the records that it has sent."""
    from tta_pipeline.results.record_exchange import Sender

    return Sender(root=root, url=url)
