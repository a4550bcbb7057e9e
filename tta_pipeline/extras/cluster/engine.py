"""The interface between `tta-pipeline submit` and existing schedulers; this project has no scheduler of its own."""

from typing import Protocol

from tta_pipeline.extras.cluster.submission import State, Submission

NUM_TRIES = 2
"""Total number of attempts for a piece that fails."""


class Engine(Protocol):
    """A scheduler that starts the pieces of a submission, stage by stage."""

    def require_ready(self) -> None:
        """Refuse a submission that would never start.

        Raises:
            SubmissionError: the scheduler cannot be used; the message says why.
        """
        ...

    def owner(self) -> str:
        """Return who alone starts the pieces of a new submission; empty: `start` hands them to the scheduler.

        Raises:
            SubmissionError: the scheduler cannot be used; the message says why.
        """
        ...

    def start(self, submission: Submission, *, num_devices: int) -> None:
        """Hand *submission* to the scheduler, and return without waiting; *num_devices* pieces compute at a time.

        Raises:
            SubmissionError: the scheduler refuses it.
        """
        ...

    def states(self, submission: Submission) -> tuple[State, ...]:
        """Return the present state of each piece of *submission*, as the scheduler reports it.

        Raises:
            SubmissionError: the scheduler does not answer.
        """
        ...

    def obstacles(self, submission: Submission) -> tuple[str, ...]:
        """Return a sentence for each obstacle that keeps waiting pieces of *submission* from starting, with advice.

        Raises:
            SubmissionError: the scheduler does not answer.
        """
        ...

    def cancel(self, submission: Submission) -> None:
        """Stop the running pieces of *submission*, and start no more.

        Raises:
            SubmissionError: the scheduler does not answer.
        """
        ...
