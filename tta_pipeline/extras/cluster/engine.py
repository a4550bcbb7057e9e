"""What `tta-pipeline submit` needs of an engine; none is written here, each asks a scheduler that exists."""

from typing import Protocol

from tta_pipeline.extras.cluster.submission import State, Submission

NUM_TRIES = 2
"""How often a piece that fails is tried in all."""


class Engine(Protocol):
    """A scheduler that starts the pieces of a submission, stage by stage."""

    def require_ready(self) -> None:
        """Refuse to submit what would never start.

        Raises:
            SubmissionError: the scheduler cannot be used; the message says why.
        """
        ...

    def owner(self) -> str:
        """Return who alone is to start the pieces of a new submission; empty: `start` itself gives them away.

        Raises:
            SubmissionError: the scheduler cannot be used; the message says why.
        """
        ...

    def start(self, submission: Submission) -> None:
        """Give *submission* to the scheduler, and return without waiting.

        Raises:
            SubmissionError: the scheduler refuses it.
        """
        ...

    def states(self, submission: Submission) -> tuple[State, ...]:
        """Return the state of each piece of *submission*, as the scheduler says now.

        Raises:
            SubmissionError: the scheduler does not answer.
        """
        ...

    def hindrances(self, submission: Submission) -> tuple[str, ...]:
        """Return what keeps the pieces of *submission* that wait from starting, and what to do, in a sentence each.

        Raises:
            SubmissionError: the scheduler does not answer.
        """
        ...

    def cancel(self, submission: Submission) -> None:
        """Stop what runs of *submission*, and start no more of it.

        Raises:
            SubmissionError: the scheduler does not answer.
        """
        ...
