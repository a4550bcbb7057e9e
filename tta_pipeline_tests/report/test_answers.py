"""Answers of the database end when they are asked to."""

import random
import signal
import threading

import duckdb
import pytest

from tta_pipeline.report import answers


@pytest.mark.slow
@pytest.mark.timeout(300, method="thread")  # the other method needs the same signal
def test_an_interrupt_at_any_moment_ends_a_question(monkeypatch: pytest.MonkeyPatch):
    """Of 2,000 at random moments, each ends the question and its thread."""
    monkeypatch.setattr(answers, "_ROWS_AT_ONCE", 10)  # so that most moments lie in the hand-over between the threads
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    draw, connection = random.Random(0), duckdb.connect()
    try:
        for _ in range(2_000):
            with (  # noqa: PT012 - it comes at any line
                pytest.raises(KeyboardInterrupt),
                answers.Answer(connection, "SELECT i FROM range(1000000) AS r(i)") as answer,
            ):
                assert answer.columns
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0005, 0.005))
                for _ in answer.rows():
                    pass
    finally:
        signal.signal(signal.SIGALRM, before)
        connection.close()

    assert "question" not in {thread.name for thread in threading.enumerate()}
