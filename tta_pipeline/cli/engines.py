"""The engines of `submit`: an entry and a file make a new one; options, help and tests follow from this table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tta_pipeline.cli.common import say
from tta_pipeline.errors import SubmissionError

if TYPE_CHECKING:
    from tta_pipeline.extras.cluster.engine import Engine
    from tta_pipeline.extras.cluster.submission import Submission

DEFAULT = "local"
"""Name of the engine of a user who names none."""


@dataclass(frozen=True, kw_only=True)
class EngineEntry:
    """What `submit` must know of an engine before it imports the engine."""

    what: str
    """What starts the pieces, in a few words."""
    open: Callable[[Path, Path | None], "Engine"]
    """Function that returns the engine; it takes the data root and the file of `--engine-config`."""
    is_elsewhere: bool = True
    """Whether the pieces compute on other machines, so that the devices found here say nothing about theirs."""
    uses_dagster: bool = False
    """Whether the pieces are runs of Dagster's queue: its `dagster.yaml` limits them, and its history has them."""
    config: str = ""
    """What the file of `--engine-config` has; empty: the engine reads none."""
    poll_every_s: float = 2.0
    """Seconds between two queries of a watching `submit`."""


def _open_local(data_root: Path, config: Path | None) -> "Engine":
    from tta_pipeline.defs.resources.queued_runs import QueuedRuns

    del data_root, config
    return QueuedRuns(tell=say)


def _open_ray(data_root: Path, config: Path | None) -> "Engine":
    from tta_pipeline.defs.resources.ray_runs import RayRuns

    del data_root, config
    return RayRuns(tell=say)


def _open_slurm(data_root: Path, config: Path | None) -> "Engine":
    from tta_pipeline.extras.cluster.slurm import Slurm, read_slurm_config

    return Slurm(config=read_slurm_config(config), data_root=data_root)


ENGINES: Mapping[str, EngineEntry] = {
    DEFAULT: EngineEntry(what="Dagster on this machine", open=_open_local, is_elsewhere=False, uses_dagster=True),
    "ray": EngineEntry(what="Dagster on Ray", open=_open_ray, uses_dagster=True),
    "slurm": EngineEntry(
        what="Slurm",
        open=_open_slurm,
        config="options of sbatch, lines before each piece, a container",
        poll_every_s=10.0,  # it serves all users of the cluster
    ),
}
"""Every engine by its name."""


def engine_of(submission: "Submission") -> EngineEntry:
    """Return the entry of the engine that has *submission*.

    Raises:
        SubmissionError: there is no engine of this name.
    """
    if submission.engine not in ENGINES:
        raise SubmissionError(
            f"submission {submission.number} of {submission.benchmark} is with {submission.engine!r}; expected one of "
            f"{', '.join(ENGINES)}: remove {submission.folder}, and submit again"
        )
    return ENGINES[submission.engine]


def names_of(where: Callable[[EngineEntry], object]) -> str:
    """Return the names of the engines for which *where* holds, for a sentence."""
    return ", ".join(name for name, entry in ENGINES.items() if where(entry))
