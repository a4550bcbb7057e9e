"""The log on the terminal: one short line for each message to the user, without Dagster's own events."""

import logging

import dagster as dg

from tta_pipeline.util.interrupts import is_interrupted


@dg.logger(None, description="Short lines of information, warnings and errors on standard error")
def console(_: dg.InitLoggerContext) -> logging.Logger:
    """Return a logger that prints time, asset and message."""
    logger = logging.Logger("tta_pipeline", level=logging.INFO)  # noqa: LOG001 - one for each run
    handler = logging.StreamHandler()
    handler.setFormatter(_ShortFormatter())
    handler.addFilter(_is_cause)
    logger.addHandler(handler)
    return logger


class _ShortFormatter(logging.Formatter):
    """Formats Dagster's records, whose own message repeats job, run and process in each line."""

    def format(self, record: logging.LogRecord) -> str:
        meta = getattr(record, "dagster_meta", {})
        asset = (meta.get("step_key") or "").replace("__", "/")
        message = _cause(meta.get("dagster_event")) or meta.get("orig_message") or record.getMessage()
        level = "" if record.levelno == logging.INFO else f"{record.levelname} "
        return f"{self.formatTime(record, '%H:%M:%S')} {level}{asset}{': ' if asset else ''}{message}"


def _is_cause(record: logging.LogRecord) -> bool:
    """Return whether *record* is more than a notice that a step failed, or was skipped after a failed step.

    After Ctrl-C, no step failed by itself, and the command prints one line about the interruption.
    """
    if record.levelno >= logging.ERROR and is_interrupted():
        return False
    message = getattr(record, "dagster_meta", {}).get("orig_message") or ""
    return not (message.startswith("Dependencies for step ") or "Steps failed: [" in message)


def _cause(event: dg.DagsterEvent | None) -> str | None:
    """Return the message of the error that first made a step fail, with the traceback of an unexpected error."""
    data = event.step_failure_data if event and event.is_step_failure else None
    if data is None or data.error is None:
        return None
    if data.user_failure_data:
        return data.user_failure_data.description
    error = data.error
    while error.cause:
        error = error.cause
    is_unexpected = data.error_source is not None and data.error_source.name == "USER_CODE_ERROR"
    return (error.to_string() if is_unexpected else error.message).strip()
