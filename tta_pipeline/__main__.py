"""The command `tta-pipeline`, and `python -m tta_pipeline`."""

import atexit
import os
import sys
import threading

from tta_pipeline.util.environment import let_waiting_threads_sleep
from tta_pipeline.util.interrupts import InterruptedExit, ends_on_interrupt, is_interrupted


def main() -> None:
    """Run the verb that the command line names."""
    let_waiting_threads_sleep()
    with ends_on_interrupt():
        from tta_pipeline.cli import main as verbs  # takes a moment, in which Ctrl-C counts too

        try:
            verbs(prog_name="tta-pipeline")
        except InterruptedExit:
            raise
        except SystemExit as ended:
            _exit_at_once(ended.code)
            raise


def _exit_at_once(status: object) -> None:
    """End the process without freeing half a million objects of torch and Dagster, which takes two seconds.

    Python waits for threads that are still at work, so they must have ended.
    """
    works = any(not each.daemon for each in threading.enumerate() if each is not threading.main_thread())
    if not isinstance(status, int) or is_interrupted() or works:
        return
    atexit._run_exitfuncs()  # noqa: SLF001 - there is no public name
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        return  # Python says so as it ends
    os._exit(status)


if __name__ == "__main__":
    main()
