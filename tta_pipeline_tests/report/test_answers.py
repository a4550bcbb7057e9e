"""Answers of the database end when they are asked to."""

import random
import signal
import threading
import time

import duckdb
import pytest

from tta_pipeline.report import answers


@pytest.mark.timeout(60)
def test_whoever_leaves_ends_the_computation():
    """It would take hours; the one who still waits for it is told."""
    told: list[str] = []
    with duckdb.connect() as connection:
        with answers.Answer(
            connection, "SELECT count(*) FROM range(1000000000000) AS r(i) WHERE hash(i) % 7 = 3"
        ) as answer:

            def ask() -> None:
                try:
                    answer.columns  # noqa: B018 - it computes
                except duckdb.InterruptException as error:
                    told.append(str(error))

            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            time.sleep(0.3)
        asking.join(10)

    assert ["INTERRUPT Error: Interrupted!"] == told


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
