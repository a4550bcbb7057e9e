"""The engine `ray`: Dagster's queue, whose run launcher starts each run on a Ray cluster."""

import os
from dataclasses import dataclass
from typing import Any, ClassVar

from tta_pipeline.defs.resources.queued_runs import QueuedRuns
from tta_pipeline.errors import SubmissionError


@dataclass(frozen=True, kw_only=True)
class RayRuns(QueuedRuns):
    """The engine `ray`."""

    launcher: ClassVar[str] = "RayRunLauncher"

    def require_launcher(self, launcher: Any, home: str) -> None:
        """Refuse to submit where no Ray cluster answers, too: each run would fail at once, and so would its retry."""
        super().require_launcher(launcher, home)
        try:
            launcher.client.list_jobs()
        except (OSError, RuntimeError) as error:
            raise SubmissionError(
                f"found no Ray at {launcher.address}: {error}; expected the dashboard of a Ray cluster: start one with "
                "`ray start --head`, and set RAY_ADDRESS"
            ) from error

    def advice(self) -> str:
        """Return what the launcher needs to be loaded."""
        return (
            f"with RAY_ADDRESS {os.environ.get('RAY_ADDRESS')!r}; expected the address of its dashboard there, and an "
            "environment with the extra `ray`: pip install -c constraints.txt -e '.[ray]'"
        )
