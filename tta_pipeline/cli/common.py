"""Shared parts of all verbs: errors in one line, the reporter, and checks of arguments."""

import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import click

from tta_pipeline.errors import PipelineError, in_lines
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.local_paths import url_problem
from tta_pipeline.util.own_code import own_traceback

if TYPE_CHECKING:
    from tta_pipeline.data.labels.class_map import ClassMap
    from tta_pipeline.report.tables import Table
    from tta_pipeline.shards.shard_set import ShardSet

WIDTH_WITHOUT_TERMINAL = 80


class LocalPath(click.Path):
    """A path on this machine, as a `Path`; the error for a URL shows the command that copies from it or to it."""

    def __init__(self, *, is_read: bool = False, **settings: Any) -> None:
        super().__init__(**{"path_type": Path, **settings})
        self.is_read = is_read or self.exists

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return *value* as a path."""
        if problem := url_problem(os.fspath(value), is_read=self.is_read):
            self.fail(problem, param, ctx)
        return super().convert(value, param, ctx)


def plain_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Print this project's errors and file errors as a few lines on standard error, and exit with status 1.

    File names that are not text in the terminal's encoding are shown with their bytes as numbers.
    """

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return command(*args, **kwargs)
        except PipelineError as error:
            exit_with_error(str(error), details=own_traceback(error))
        except BrokenPipeError:
            raise  # the reader closed the pipe; click ends quietly
        except OSError as error:
            where = f"{error.filename}: " if error.filename is not None else ""
            exit_with_error(
                f"{where}{error.strerror or error}; expected a path that can be read or written: check the path, its "
                "permissions and the free space"
            )
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # how DuckDB reports Ctrl-C
                raise KeyboardInterrupt from None
            raise

    return guarded


def exit_with_error(message: str, *, details: str = "") -> NoReturn:
    """Print *message* as `in_lines` lays it out, then the lines of *details*, and end with status 1."""
    click.echo(f"error: {in_lines(message)}", err=True)
    click.echo(details, err=True, nl=False)
    sys.exit(1)


def with_reporter(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--quiet` and `--json` to *command*, and pass it a `reporter` that follows them."""

    @wraps(command)
    def reporting(*args: Any, is_quiet: bool, as_json: bool, **kwargs: Any) -> Any:
        from tta_pipeline.util.console import console_reporter

        with console_reporter(is_quiet=is_quiet, as_json=as_json) as reporter:
            status = command(*args, reporter=reporter, **kwargs)
        if status:
            sys.exit(status)

    reporting = click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")(reporting)
    return click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print only problems.")(reporting)


with_device = click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, a kind such as cuda, or cuda:1."
)


def say(line: str) -> None:
    """Print *line* on standard error, since it is not part of the answer."""
    click.echo(line, err=True)


def say_left_out(sentences: Iterable[str]) -> None:
    """Print a line for each part that an answer leaves out, with the reason: a faulty benchmark file, or no results."""
    for sentence in sentences:
        say(f"left out: {sentence}")


def ignore_line(line: str) -> None:
    """Ignore *line*: the report function of a quiet command."""
    del line


def text_width() -> int:
    """Return the width of the terminal in columns; 80 without one, so that files and pipes get a fixed width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH_WITHOUT_TERMINAL


def wrap_text(text: str, width: int, *, indent: str = "") -> str:
    """Return *text* in lines of at most *width* columns; an equation such as p = 0.12 stays in one line.

    Args:
        text: One line of words; a word longer than a line, such as a path, is not split.
        width: Columns of a line.
        indent: Text at the start of each line but the first.
    """
    whole = text.replace(" = ", "\0=\0")
    lines = fill(whole, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0=\0", " = ")


def print_table(table: "Table") -> None:
    """Print *table* for the user."""
    from tta_pipeline.report.formats import as_terminal

    click.echo(as_terminal(table, width=text_width(), is_styled=sys.stdout.isatty()))


def require_urls(locations: Sequence[str]) -> None:
    """Refuse locations that look like a URL but are malformed."""
    for location in locations:
        try:
            urlsplit(location)
        except ValueError as error:
            raise click.UsageError(
                f"{location!r} is not a valid URL ({error}); expected a path, or a URL such as https://host/a/b"
            ) from None


def read_class_map(path: Path | None) -> "ClassMap | None":
    """Return the class map in the file at *path*; None if *path* is None."""
    from tta_pipeline.data.labels.class_map import ClassMap
    from tta_pipeline.data.labels.label_files import read_classes

    return ClassMap(classes=read_classes(path)) if path else None


def shard_set_facts(shard_set: "ShardSet") -> JsonObject:
    """Return the facts of a shard set for `--json`."""
    manifest = shard_set.manifest
    return {
        "folder": str(shard_set.folder),
        "corruption": manifest.corruption,
        "severity": manifest.severity,
        "num_samples": manifest.num_samples,
        "num_shards": len(manifest.shards),
        "shard_bytes": manifest.shard_bytes,
        "manifest_sha256": manifest.sha256,
    }


def parse_settings(option: str, settings: Sequence[str], *, example: str) -> JsonObject:
    """Parse each `NAME=VALUE` in *settings*, the values of *option*; a VALUE that is no JSON is text.

    An error names the *example*.
    """
    found = {}
    for setting in settings:
        name, sign, value = setting.partition("=")
        if not sign or not name.isidentifier():
            raise click.UsageError(f"{option} is {setting!r}; expected NAME=VALUE, such as {example}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
