"""The verbs that are useful without Dagster, over the same functions that the assets call."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from urllib.parse import urlsplit

import click

from tta_pipeline import __version__
from tta_pipeline.errors import PipelineError
from tta_pipeline.files import write_atomically, written_file
from tta_pipeline.locations import Locations
from tta_pipeline.processes import MOST_PROCESSES

if TYPE_CHECKING:
    import pyarrow as pa

    from tta_pipeline.benchmarks.spec import ShardSettings, Transform
    from tta_pipeline.console import Told
    from tta_pipeline.reports.answers import Answer
    from tta_pipeline.reports.tables import Table
    from tta_pipeline.shards.manifest import ShardSet
    from tta_pipeline.sources.class_map import ClassMap
    from tta_pipeline.unreferenced import Unreferenced


_ROWS_FOR_PEOPLE = 1_000
_PATTERN_LIMIT_S = 2.0
_PROBES = ("n01440764/", "a", "0", "_", "n0144_", "A.")
_TRY_PATTERN = """
import re, sys
pattern = re.compile(sys.argv[1])
for probe in sys.argv[2:]:
    pattern.search(probe * (200 // len(probe)) + "!")
"""


def _plain_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors raised on purpose, and those of files, into one clear line each on standard error and exit status 1.

    Names of files that are no text in the terminal's encoding are shown with their bytes as numbers.
    """

    @wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            return command(*args, **kwargs)
        except PipelineError as error:
            _end(f"{type(error).__name__}: {error}")
        except BrokenPipeError:
            raise  # whoever read has what it wanted; click ends quietly
        except OSError as error:
            where = f"{error.filename}: " if error.filename is not None else ""
            _end(f"Error: {where}{error.strerror or error}; look at this path and its rights")
        except RuntimeError as error:
            if str(error) == "Query interrupted":  # how DuckDB tells of Ctrl-C
                raise KeyboardInterrupt from None
            raise

    return guarded


def _end(message: str) -> NoReturn:
    click.echo(" ".join(message.splitlines()), err=True)
    sys.exit(1)


def _telling(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give *command* the options by which it says less, or says it to a program, and `told`, who is told."""

    @wraps(command)
    def telling(*args: Any, is_quiet: bool, as_json: bool, **kwargs: Any) -> Any:
        from tta_pipeline.console import told

        with told(is_quiet=is_quiet, as_json=as_json) as teller:
            status = command(*args, told=teller, **kwargs)
        if status:
            sys.exit(status)

    telling = click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")(telling)
    return click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Say nothing but what is wrong.")(telling)


class _Verbs(click.Group):
    """The verbs; no argument of theirs may hold a NUL, of which the system calls behind them make other errors."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse such an argument."""
        for argument in args:
            if "\0" in argument:
                raise click.UsageError(f"an argument is {argument!r}; expected one without the character NUL")
        return super().parse_args(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Robustness benchmarks of image classifiers, from archives to a leaderboard.

    Data lies under $TTA_DATA_ROOT, by default data/ in the working directory.
    """


@main.command()
@click.option("--by", type=click.Choice(["corruption"]), help="A line for each corruption and experiment.")
@click.option("--compare", "runs", nargs=2, metavar="RUN RUN", help="The cells that two runs share, side by side; the "
              "beginning of a run's id will do.")  # fmt: skip
@click.option("--sql", help="Ask this question instead; the database is open for reading only.")
@click.option("--format", "form", type=click.Choice(["table", "csv", "json", "parquet", "latex", "markdown"]),
              default="table", show_default=True, help="parquet needs --output.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write there instead of printing.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"Only the first N rows. Without it, --sql gives "
              f"{_ROWS_FOR_PEOPLE:,} as table, LaTeX or Markdown and all as CSV, JSON or Parquet.")  # fmt: skip
@_plain_errors
def metrics(
    *,
    by: str | None,
    runs: tuple[str, str] | None,
    sql: str | None,
    form: str,
    output: Path | None,
    limit: int | None,
) -> None:
    r"""Print the leaderboard: mean errors, their standard deviation over seeds, and what they cost.

    The best of those that compare is bold in tables, LaTeX and Markdown. Tables and views: docs/metrics.md; twenty
    questions with their SQL: docs/queries.md. Records that are damaged or foreign, and so count nowhere, are named
    behind the answer; the exit status is then 1.

    \b
    Examples:
      tta-pipeline metrics
      tta-pipeline metrics --by corruption --format latex --output table.tex
      tta-pipeline metrics --compare 5a0c2f51 91be7d30
      tta-pipeline metrics --format parquet --output leaderboard.parquet
      tta-pipeline metrics --sql "SELECT * FROM corruption_errors WHERE experiment = 'tent' ORDER BY mean_error DESC"
    """
    from tta_pipeline.errors import QuestionError
    from tta_pipeline.metrics.database import open_metrics, records_set_aside, require_current_schema
    from tta_pipeline.progress import told_to

    if sum(question is not None for question in (by, runs, sql)) > 1:
        raise click.UsageError("expected one of --by, --compare and --sql")
    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet needs --output FILE, since no terminal shows it")
    locations = Locations.from_environment()
    for note in require_current_schema(locations, told_to(_say)):
        _say(note)
    try:
        with open_metrics(locations.metrics) as connection, _answer(connection, by=by, runs=runs, sql=sql) as answer:
            if sql is None:
                _say_if_generated(connection, runs)
            _tell(answer, form, output, limit=limit, is_own_question=sql is not None)
    except QuestionError as error:
        raise click.UsageError(str(error)) from None
    _end_with(records_set_aside(locations))


def _end_with(set_aside: Sequence[str]) -> None:
    """Name the records that count nowhere, and end with status 1 if there are some."""
    for line in set_aside:
        _say(f"set aside: {line}")
    if set_aside:
        sys.exit(1)


def _answer(connection: Any, *, by: str | None, runs: tuple[str, str] | None, sql: str | None) -> "Answer":
    from tta_pipeline.reports import queries
    from tta_pipeline.reports.answers import Answer

    if sql is not None:
        return Answer(connection, sql)
    if runs:
        return Answer(connection, queries.COMPARISON, [_whole_run_id(connection, run) for run in runs])
    return Answer(connection, queries.BY_CORRUPTION if by else queries.ALL_LEADERBOARDS)


def _say_if_generated(connection: Any, runs: tuple[str, str] | None) -> None:
    """Say what it means where some of the results that were asked for are on images that were made here."""
    from tta_pipeline.reports.tables import GENERATED_NOTE

    which = [_whole_run_id(connection, run) for run in runs or ()]
    asked = "run_id IN (?, ?)" if which else "is_latest"
    sql = f"SELECT count(*) FROM evaluations WHERE generated AND {asked}"  # noqa: S608 - the words are ours
    ((num_generated,),) = connection.execute(sql, which).fetchall()
    if num_generated:
        _say(f"generated: {GENERATED_NOTE}")


def _tell(answer: "Answer", form: str, output: Path | None, *, limit: int | None, is_own_question: bool) -> None:
    """Print *answer* or write it into *output*: row by row to programs, and so many rows to people as they look at."""
    from tta_pipeline.reports.formats import FOR_PEOPLE, FOR_PROGRAMS, write_parquet
    from tta_pipeline.reports.tables import without_obvious

    if form in FOR_PEOPLE:
        if is_own_question and limit is None:
            limit = _ROWS_FOR_PEOPLE
        table, has_more = answer.table(limit)
        if not is_own_question:
            table = without_obvious(table)
        as_text = FOR_PEOPLE[form]
        if output:
            write_atomically(output, f"{as_text(table)}\n".encode())
        elif form == "table":
            _print(table)
        else:
            click.echo(as_text(table))
        if has_more:
            _say(f"These are the first {limit:,} rows, and there are more: --limit N for more, --format csv for all.")
    elif form == "parquet":
        assert output is not None
        schema, batches = answer.batches()
        with written_file(output) as path, path.open("wb") as binary:
            write_parquet(schema, batches if limit is None else _first(batches, limit), binary)
    elif output:
        with written_file(output) as path, path.open("w", encoding="utf-8", newline="") as file:
            FOR_PROGRAMS[form](answer.columns, islice(answer.rows(), limit), file)
    else:
        FOR_PROGRAMS[form](answer.columns, islice(answer.rows(), limit), sys.stdout)


def _first(batches: "Iterator[pa.RecordBatch]", limit: int) -> "Iterator[pa.RecordBatch]":
    """Yield the first *limit* rows of *batches*."""
    for batch in batches:
        yield batch.slice(length=limit)
        limit -= batch.num_rows
        if limit <= 0:
            return


def _whole_run_id(connection: Any, beginning: str) -> str:
    """Return the id of the one run that *beginning* is the beginning of."""
    from tta_pipeline.reports import queries
    from tta_pipeline.reports.tables import query

    found = query(connection, queries.RUNS, [beginning]).column("run_id")
    if beginning in found:
        return beginning
    if len(found) != 1:
        some = f": {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}" if found else ""
        raise click.UsageError(
            f"found {len(found)} runs whose id begins with {beginning!r}{some}; expected one: list them by "
            'tta-pipeline metrics --sql "FROM runs"'
        )
    return str(found[0])


@main.command("rebuild-metrics")
@_plain_errors
@_telling
def rebuild_metrics(*, told: "Told") -> int:
    """Make metrics.duckdb anew from the result records, which are the truth, each read whole.

    Records that are damaged or foreign are named and left out; the exit status is then 1.
    """
    from tta_pipeline.metrics.database import publish_metrics

    locations = Locations.from_environment()
    publication = publish_metrics(locations, rebuild=True, tell=told.progress)
    for note in publication.notes:
        told.say(note)
    facts = {
        "database": str(locations.metrics),
        "num_records": publication.num_added,
        "set_aside": list(publication.set_aside),
    }
    told.done(f"{locations.metrics}: {publication.num_added:,} records", facts, number=1, total=1)
    for line in publication.set_aside:
        _say(f"set aside: {line}")
    return 1 if publication.set_aside else 0


@main.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--group-depth", type=click.IntRange(0, 3), default=2, show_default=True, help="Levels of folders above "
              "the class folders: 0 one set, 2 corruption/severity, 3 archive/corruption/severity.")  # fmt: skip
@click.option("--group-prefix", "prefixes", multiple=True, help="Take only groups that begin so: fog, or fog/5.")
@click.option("--num-shards", type=click.IntRange(1), help="Exactly so many shards for each cell.")
@click.option("--samples-per-shard", type=click.IntRange(1), help="At most so many samples in a shard.")
@click.option("--max-shard-bytes", type=click.IntRange(10240), help="At most so many bytes in a shard.")
@click.option("--class-map", type=click.Path(path_type=Path), help="JSON or meta.mat; else the sorted class folders.")
@click.option("--order", type=click.Choice(["permuted", "by_class", "dirichlet", "source"]), default="permuted",
              show_default=True)  # fmt: skip
@click.option("--delta", type=float, default=0.1, show_default=True, help="Of the Dirichlet order.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order.")
@click.option("--format", "storage", type=click.Choice(["raw", "tensor"]), default="raw", show_default=True)
@click.option("--resize", type=click.IntRange(1), help="Shorter side in pixels; the images are encoded again.")
@click.option("--center-crop", type=click.IntRange(1), help="Height and width in pixels.")
@click.option("--quality", type=click.IntRange(1, 100), default=95, show_default=True, help="Of images encoded again.")
@click.option("--labels", is_flag=True, help="Add a .cls and a .json member to each sample.")
@click.option("--skip-damaged", is_flag=True, help="Leave damaged images out, and name them in the manifest.")
@click.option("--skip-foreign-classes", is_flag=True, help="Leave out class folders that the class map lacks.")
@click.option("--decode-all", is_flag=True, help="Decode every image while sharding.")
@click.option(
    "--expect-md5", "md5s", multiple=True, metavar="NAME=MD5", help="Of an archive; checked while it is read."
)
@click.option("--layout", type=click.Choice(["corruptions", "classes", "nested", "flat"]), default="corruptions",
              show_default=True, help="Of archives: nested holds a tar for each class, flat no folders.")  # fmt: skip
@click.option("--ground-truth", type=click.Path(path_type=Path), help="Classes of the files of a flat archive.")
@click.option("--class-pattern", help="Regular expression on <folder>/<file>; its first group is the class.")
@click.option("--jobs", type=click.IntRange(1, MOST_PROCESSES), default=len(os.sched_getaffinity(0)),
              show_default="one for each core", help="Processes that write and read shards.")  # fmt: skip
@_plain_errors
@_telling
def shard(*, told: "Told", md5s: tuple[str, ...], **options: Any) -> None:
    r"""Turn images into verified shards, without unpacking anything.

    SOURCE is a folder tree, one or more tar archives, or a folder of .npy files as CIFAR-10-C is published.

    \b
    Examples:
      tta-pipeline shard ImageNet-C shards --num-shards 16
      tta-pipeline shard noise.tar blur.tar shards --max-shard-bytes 1000000000
      tta-pipeline shard Tiny-ImageNet-C shards --num-shards 4 --group-prefix frost --class-map wnids.json \
          --skip-foreign-classes
      tta-pipeline shard imagenet/val shards/clean/0 --group-depth 0 --num-shards 16
    """
    from tta_pipeline.shards.command import ShardOrder, shard_everything

    named = {name: options.pop(name) for name in tuple(options) if name in ShardOrder.__dataclass_fields__}
    _require_quick_pattern(named.get("class_pattern"))
    order = ShardOrder(**named, expected_md5=_expected_md5(md5s), settings=_shard_settings(options))
    for number, total, published in shard_everything(order, told.progress):
        manifest = published.shard_set.manifest
        size = (
            f"{manifest.num_samples:,} samples in {len(manifest.shards)} shards, {manifest.shard_bytes / 1e6:,.1f} MB"
        )
        line = f"{manifest.cell.key}: {size}, manifest {manifest.sha256[:12]}"
        told.done(line, _shard_set_facts(published.shard_set), number=number, total=total)


def _expected_md5(md5s: Sequence[str]) -> dict[str, str]:
    """Return the MD5 of each archive by its name."""
    for md5 in md5s:
        name, _, digest = md5.rpartition("=")
        if not name or not re.fullmatch(r"[0-9a-fA-F]{32}", digest):
            raise click.UsageError(f"--expect-md5 is {md5!r}; expected NAME=MD5, the MD5 of 32 hexadecimal digits")
    return {name: digest.lower() for name, _, digest in (md5.rpartition("=") for md5 in md5s)}


def _require_quick_pattern(pattern: str | None) -> None:
    """Refuse a regular expression that names of 200 characters can keep busy for years, as (a+)+$ does."""
    if pattern is None:
        return
    try:
        command = [sys.executable, "-I", "-S", "-c", _TRY_PATTERN, pattern, *_PROBES]
        subprocess.run(command, timeout=_PATTERN_LIMIT_S, check=False, stderr=subprocess.DEVNULL)  # noqa: S603 - our own
    except subprocess.TimeoutExpired:
        raise click.UsageError(
            f"--class-pattern is {pattern!r}, which takes over {_PATTERN_LIMIT_S:.0f} s on a name of 200 characters; "
            "expected one without a repetition inside a repetition"
        ) from None


def _require_no_pipes(*locations: str | Path) -> None:
    """Refuse folders of shards that hold a FIFO, on whose writer a reader would wait for ever."""
    for location in map(Path, locations):
        for path in (location, *(location.rglob("*") if location.is_dir() else ())):
            if path.is_fifo():
                raise click.UsageError(f"{path} is a FIFO; expected shards and their manifests: take it away")


def _shard_set_facts(shard_set: "ShardSet") -> dict[str, Any]:
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


def _shard_settings(options: dict[str, Any]) -> "ShardSettings":
    from pydantic import ValidationError

    from tta_pipeline.benchmarks.spec import ShardSettings

    skips = {
        "damaged": "skip" if options.pop("skip_damaged") else "stop",
        "foreign_classes": "skip" if options.pop("skip_foreign_classes") else "refuse",
        "format": options.pop("storage"),
    }
    try:
        return ShardSettings.model_validate({**options, **skips})
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"].removeprefix("Value error, ").replace("_", "-")
        where = f"--{problem['loc'][0]} is {problem['input']!r}: ".replace("_", "-") if problem["loc"] else ""
        raise click.UsageError(f"{where}{message}") from None


@main.command()
@click.argument("folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@_plain_errors
@_telling
def verify(folders: tuple[Path, ...], *, told: "Told") -> int:
    r"""Hash every shard again and compare with the manifests: totals, completeness both ways, bytes, whose they are.

    Sets of before that have no fast checksums of their samples get them.

    \b
    Examples:
      tta-pipeline verify data/imagenet_c/shards
      tta-pipeline verify shards/fog --json
    """
    from dataclasses import asdict

    from tta_pipeline.shards.verification import find_shard_sets, verify

    _require_no_pipes(*folders)
    found = find_shard_sets(folders)
    num_problems = 0
    for number, verdict in enumerate(verify(found, told.progress), start=1):
        num_problems += len(verdict.problems)
        for problem in verdict.problems:
            click.echo(problem, err=True)
        state = f"{len(verdict.problems)} problems" if verdict.problems else "intact"
        size = f"{verdict.num_samples:,} samples, {verdict.num_shards} shards, {verdict.shard_bytes / 1e6:,.1f} MB"
        facts = {**asdict(verdict), "folder": str(verdict.folder)}
        told.done(f"{verdict.folder}: {size}: {state}", facts, number=number, total=len(found))
    return 1 if num_problems else 0


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--class-map", type=click.Path(path_type=Path), help="JSON or meta.mat; else the sorted classes found.")
@_plain_errors
@_telling
def adopt(folder: Path, *, told: "Told", class_map: Path | None) -> None:
    r"""Build manifests for shards that somebody else made; every byte is read, none rewritten.

    Every folder with *.tar files at or under DIR is one set; the last two levels are corruption and severity. A set
    that has a manifest is verified and stays as it is.

    \b
    Examples:
      tta-pipeline adopt shards
      tta-pipeline adopt shards/fog/5 --class-map wnids.json
    """
    from tta_pipeline.shards.command import adopt_everything

    _require_no_pipes(folder)
    for number, total, published in adopt_everything(folder, _class_map(class_map), told.progress):
        manifest = published.shard_set.manifest
        counts = f"{manifest.num_samples:,} samples of {len(manifest.classes)} classes in {len(manifest.shards)} shards"
        line = f"{published.shard_set.folder}: {counts}: {'adopted' if published.was_built else 'unchanged'}"
        facts = {**_shard_set_facts(published.shard_set), "was_built": published.was_built}
        told.done(line, facts, number=number, total=total)


@main.command()
@click.argument("locations", nargs=-1, required=True, metavar="URL...")
@click.argument("output", type=click.Path(path_type=Path, file_okay=False))
@_plain_errors
@_telling
def fetch(locations: tuple[str, ...], output: Path, *, told: "Told") -> None:
    r"""Copy shard sets from http, https, s3, gs or file URLs to OUTPUT/<corruption>/<severity>.

    Every byte is compared with the manifest while it arrives; what is there already is not fetched again. Braces in a
    URL stand for several.

    \b
    Examples:
      tta-pipeline fetch https://example.org/imagenet_c/fog/5 shards
      tta-pipeline fetch 's3://bucket/imagenet_c/{fog,snow}/{1..5}' shards
    """
    from tta_pipeline.streaming.remote import expanded
    from tta_pipeline.streaming.staging import fetch_shard_set

    _require_urls(locations)
    found = [location for pattern in locations for location in expanded(pattern)]
    _require_no_pipes(*found)
    for number, location in enumerate(found, start=1):
        shard_set, was_copied = fetch_shard_set(location, output, told.progress)
        size_mb = shard_set.manifest.shard_bytes / 1e6
        did = f"{size_mb:,.1f} MB fetched and verified" if was_copied else "there already"
        facts = {**_shard_set_facts(shard_set), "was_copied": was_copied}
        told.done(f"{shard_set.folder}: {did}", facts, number=number, total=len(found))


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--instances", type=click.IntRange(1), required=True, help="Number of equal parts.")
@_plain_errors
@_telling
def repartition(folder: Path, output: Path, *, told: "Told", instances: int) -> None:
    r"""Split a shard set equally over instances: no sample lost or doubled, bytes untouched, a manifest for each.

    \b
    Example:
      tta-pipeline repartition shards/fog/5 parts --instances 8
    """
    from tta_pipeline.shards.command import split

    _require_no_pipes(folder)
    for number, total, published in split(folder, output, instances, told.progress):
        line = f"{published.shard_set.folder}: {published.shard_set.manifest.num_samples:,} samples"
        told.done(line, _shard_set_facts(published.shard_set), number=number, total=total)


@main.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--function", metavar="MODULE:NAME", help="Is given each image, uint8 (H, W, 3), and returns another.")
@click.option("--resize", type=click.IntRange(1), help="Shorter side in pixels, after the function.")
@click.option("--center-crop", type=click.IntRange(1), help="Height and width in pixels.")
@click.option("--format", "storage", type=click.Choice(["raw", "tensor"]), default="raw", show_default=True)
@click.option("--quality", type=click.IntRange(1, 100), default=95, show_default=True, help="Of images encoded again.")
@click.option("--labels", is_flag=True, help="Add a .cls and a .json member to each sample.")
@click.option("--jobs", type=click.IntRange(1, MOST_PROCESSES), default=len(os.sched_getaffinity(0)),
              show_default="one for each core", help="Processes that write and read shards.")  # fmt: skip
@_plain_errors
@_telling
def transform(*, told: "Told", folder: Path, output: Path, storage: str, jobs: int, **options: Any) -> None:
    r"""Make another shard set of each one at or under DIR: other images, another size or format, further members.

    The order of the samples and the number of shards stay; what was done is in the new manifest. A function is looked
    for where Python looks and in the working directory.

    \b
    Examples:
      tta-pipeline transform shards small --resize 64 --format tensor --jobs 4
      tta-pipeline transform shards/fog/5 grey --function my_transforms:grey
    """
    from tta_pipeline.shards.transformation import transform_everything

    _require_no_pipes(folder)
    settings = _transform_settings({**options, "format": storage})
    every = transform_everything(folder, output, settings, jobs=jobs, progress=told.progress)
    for number, total, transformed in every:
        shard_set, was_written = transformed.published.shard_set, transformed.was_written
        size = f"{shard_set.manifest.num_samples:,} samples in {len(shard_set.manifest.shards)} shards"
        line = f"{shard_set.folder}: {size}: {'written' if was_written else 'unchanged'}"
        told.done(line, {**_shard_set_facts(shard_set), "was_written": was_written}, number=number, total=total)


def _transform_settings(options: dict[str, Any]) -> "Transform":
    from pydantic import ValidationError

    from tta_pipeline.benchmarks.spec import Transform

    try:
        return Transform.model_validate(options)
    except ValidationError as error:
        problem = error.errors()[0]
        message = problem["msg"].removeprefix("Value error, ")
        raise click.UsageError(f"--{problem['loc'][0]} is {problem['input']!r}: {message}") from None


@main.command("loader-bench")
@click.argument("location", metavar="[DIR|URL]", required=False)
@click.option("--loader", "loaders", multiple=True, metavar="NAME",
              help="Measure this one; may be repeated. Else all that are installed of indexed, webdataset, tar, "
              "imagefolder, dali, spdl, litdata, streaming.")  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1, 65_536), default=64, show_default=True)
@click.option("--threads", "num_threads", multiple=True, type=click.IntRange(0, MOST_PROCESSES),
              show_default="one for each core",
              help="Threads or worker processes; may be repeated, the fastest number counts. 0: nothing is read ahead.",
              default=[len(os.sched_getaffinity(0))])  # fmt: skip
@click.option("--processes", "num_processes", type=click.IntRange(1, MOST_PROCESSES), default=1, show_default=True,
              help="Each reads a part; the longest of their times and the sum of their samples count.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1, 1_000), default=3, show_default=True)
@click.option("--normalization", type=click.Choice(["own", "host", "device"]), default="own", show_default=True,
              help="Where images are normalised: as each system does, on the host, or on the device.")  # fmt: skip
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--stage", "is_staged", is_flag=True,
              help="Copy the shards to $TMPDIR first, which is timed apart; always done with a URL.")  # fmt: skip
@click.option(
    "--generate", type=click.IntRange(1, 10_000_000), metavar="N", help="Measure on N images made for it, without DIR."
)
@click.option("--image-size", type=click.IntRange(8, 4_096), default=64, show_default=True, help="Of generated images.")
@click.option("--format", "storage", type=click.Choice(["raw", "tensor"]), default="raw", show_default=True,
              help="Of generated shards: JPEG files, or tensors.")  # fmt: skip
@click.option("-q", "--quiet", "is_quiet", is_flag=True, help="Print the figures only.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@_plain_errors
def loader_bench(
    *, location: str | None, loaders: tuple[str, ...], is_staged: bool, is_quiet: bool, as_json: bool, **options: Any
) -> None:
    r"""Measure how fast loaders read the shard set at DIR or URL, without a model.

    Each pass of each loader has a process of its own; the loaders take turns. Told are medians with the range.

    \b
    Examples:
      tta-pipeline loader-bench data/imagenet_c/shards/fog/5
      tta-pipeline loader-bench shards --loader indexed --loader webdataset --threads 1 --threads 2 --threads 4
      tta-pipeline loader-bench shards --batch-size 256 --repeats 5 --json
      tta-pipeline loader-bench https://example.org/imagenet_c/fog/5 --loader indexed
      tta-pipeline loader-bench --generate 6000 --image-size 224 --format tensor
    """
    from dataclasses import asdict

    from tta_pipeline.errors import LoaderError
    from tta_pipeline.loader_bench.loaders import chosen_loaders
    from tta_pipeline.loader_bench.measure import Settings, compare

    try:
        names = chosen_loaders(loaders)
    except LoaderError as error:
        raise click.UsageError(str(error)) from None
    if location is not None:
        _require_urls([location])
        _require_no_pipes(location)
    generated = {name: options.pop(name) for name in ("generate", "image_size", "storage")}
    if (location is None) == (generated["generate"] is None):
        raise click.UsageError("expected either DIR, URL or --generate N")
    say = _nothing if is_quiet else _say
    with nullcontext(location) if location else _generated_shards(**generated, say=say) as shards:
        found = compare(str(shards), names, Settings(**options), say, is_staged=is_staged)
    rows = [asdict(row) for row in found]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _print_loaders(rows)


@contextmanager
def _generated_shards(
    *, generate: int, image_size: int, storage: Literal["raw", "tensor"], say: Callable[[str], None]
) -> Iterator[Path]:
    from tempfile import TemporaryDirectory

    from tta_pipeline.benchmarks.spec import ShardSettings
    from tta_pipeline.loader_bench.data import generated
    from tta_pipeline.progress import told_to

    settings = ShardSettings(num_shards=min(16, generate), format=storage)
    with TemporaryDirectory(prefix="tta_pipeline-generated-") as folder:
        yield generated(Path(folder), num_images=generate, image_size=image_size, settings=settings, tell=told_to(say))


def _print_loaders(rows: Sequence[Mapping[str, Any]]) -> None:
    from tta_pipeline.reports.tables import Table

    _print(Table(columns=_LOADER_COLUMNS, rows=tuple(tuple(row[name] for name in _LOADER_COLUMNS) for row in rows)))


def _require_urls(locations: Sequence[str]) -> None:
    """Refuse what looks like a URL and is none."""
    for location in locations:
        try:
            urlsplit(location)
        except ValueError as error:
            raise click.UsageError(
                f"{location!r} is no URL ({error}); expected a path, or such as https://host/a/b"
            ) from None


def _class_map(path: Path | None) -> "ClassMap | None":
    from tta_pipeline.sources.class_map import ClassMap
    from tta_pipeline.sources.labels import read_classes

    return ClassMap(classes=read_classes(path)) if path else None


def _say(line: str) -> None:
    click.echo(line, err=True)


def _nothing(line: str) -> None:
    del line


_LOADER_COLUMNS = (
    "loader", "output", "num_threads", "images_per_s", "images_per_s_min", "images_per_s_max", "time_to_first_batch_s",
    "cpu_s_per_image", "mb_per_s", "peak_memory_mib", "base_memory_mib",
)  # fmt: skip


def _print(table: "Table") -> None:
    from rich.console import Console

    from tta_pipeline.reports.formats import as_terminal

    click.echo(as_terminal(table, width=Console().width if sys.stdout.isatty() else None))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
@_plain_errors
def doctor(*, as_json: bool) -> None:
    r"""Look whether work can go on: data root, room, locks, left-overs, results, benchmark files, Dagster, devices.

    Nothing is changed. Each line is ok, a note, or a fault with what to do; the exit status is 1 if there is a fault.

    \b
    Examples:
      tta-pipeline doctor
      tta-pipeline doctor --json
    """
    from dataclasses import asdict

    from tta_pipeline.doctor import examine

    colours = {"ok": "green", "note": "yellow", "fault": "red"}
    findings = []
    for finding in examine(Locations.from_environment()):
        findings.append(finding)
        if not as_json:
            click.echo(f"{click.style(f'{finding.mark:<6}', colours[finding.mark])} {finding.subject}: {finding.found}")
            if finding.advice:
                click.echo(f"{'':<7}-> {finding.advice}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    sys.exit(1 if any(finding.mark == "fault" for finding in findings) else 0)


@main.command("new-benchmark")
@click.argument("name")
@click.argument("sources", metavar="[FOLDER | ARCHIVE...]", nargs=-1, type=click.Path(path_type=Path))
@click.option("--like", type=click.Choice(["imagenet_c", "tiny_imagenet_c", "cifar10_c", "cifar100_c"]),
              help="Without a source: whose file to write, with placeholders; else imagenet_c's.")  # fmt: skip
@click.option("--output", metavar="FILE", help="Where to write; - prints. Else benchmarks/NAME.yaml in the data root.")
@_plain_errors
def new_benchmark(*, name: str, sources: tuple[Path, ...], like: str | None, output: str | None) -> None:
    r"""Write a commented benchmark file for what lies in a folder or in archives, which are looked at, not unpacked.

    Nothing is overwritten. What is found: corruptions and severities, the number of classes, the size of the images,
    and which models fit.

    \b
    Examples:
      tta-pipeline new-benchmark imagenet_c noise.tar blur.tar weather.tar digital.tar
      tta-pipeline new-benchmark tiny Tiny-ImageNet-C
      tta-pipeline new-benchmark cifar CIFAR-10-C --output -
      tta-pipeline new-benchmark later --like cifar100_c
    """
    from tta_pipeline.new_benchmark import new_benchmark as made
    from tta_pipeline.new_benchmark import write_new

    if sources and like:
        raise click.UsageError("expected either a folder or archives, or --like")
    text, commands = made(name, sources, like=like or "imagenet_c")
    if output == "-":
        click.echo(text, nl=False)
    else:
        path = Path(output) if output else Locations.from_environment().benchmark_files / f"{name}.yaml"
        write_new(path, text)
        click.echo(f"{path}\nNext, one cell and then all of them:")
    for command in commands:
        click.echo(f"  {command}", err=output == "-")


@main.command()
@click.argument("benchmark")
@click.argument("experiment")
@click.argument("key", metavar="CELL")
@click.option("--device", default="auto", show_default=True, help="Where it would be evaluated: auto, cpu or cuda.")
@click.option("--all", "shows_all", is_flag=True, help="Every part, the equal ones too.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array, with every part.")
@_plain_errors
def why(*, benchmark: str, experiment: str, key: str, device: str, shows_all: bool, as_json: bool) -> None:
    r"""Say why a cell of an experiment is finished or not: what decided its result, and what would decide it now.

    CELL is a partition key: fog|5, clean|0, or that of a stream, such as 5 or all. The exit status is 0 if there is
    nothing to evaluate, 1 if there is. Versions of libraries are told where they differ, and outdate nothing.

    \b
    Examples:
      tta-pipeline why imagenet_c tent 'fog|5'
      tta-pipeline why digits_c tent_continual 5 --all
    """
    from tta_pipeline.benchmarks.loading import load_all
    from tta_pipeline.evaluation.explaining import COLUMNS, explain
    from tta_pipeline.reports.tables import Table

    locations = Locations.from_environment()
    loaded = load_all(locations)
    loaded.experiment(benchmark, experiment)
    found = explain(loaded.benchmark(benchmark), experiment, key, locations, device=device)
    if as_json:
        click.echo(json.dumps([cell.facts for cell in found], indent=1))
    else:
        for cell in found:
            click.echo(f"{cell.name}: {'finished' if cell.is_finished else 'not finished'}: {cell.reason}")
            if rows := tuple(cell.rows(shows_all=shows_all)):
                _print(Table(columns=COLUMNS, rows=rows))
    sys.exit(0 if all(cell.is_finished for cell in found) else 1)


@main.command()
@click.argument("kinds", metavar="[KIND...]", nargs=-1,
                type=click.Choice(["superseded", "gone", "predictions", "states", "decoded"]))  # fmt: skip
@click.option("--dry-run", is_flag=True, help="List, and remove nothing.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.option("--decoded", multiple=True, type=click.Path(path_type=Path, exists=True, file_okay=False),
              metavar="FOLDER", help="Look for decoded cells there too, the resource's `decoded_folder`.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: print one JSON array of files.")
@_plain_errors
def clean(*, kinds: tuple[str, ...], dry_run: bool, yes: bool, decoded: tuple[Path, ...], as_json: bool) -> None:
    r"""List what nothing refers to any more, with its size, and remove it on request.

    \b
    superseded   records of which there is a newer one; the history of speed and error goes with them
    gone         records of experiments, cells and streams that the benchmark file does not name any more
    predictions  predictions of each sample that no record names
    states       states of streams that no record would go on from
    decoded      decoded cells of shard sets that are no more

    Of benchmarks that have a file; others are not looked at. Do it while no run is at work.

    \b
    Examples:
      tta-pipeline clean --dry-run
      tta-pipeline clean gone predictions states --yes
      tta-pipeline clean decoded --decoded /scratch/me/decoded
    """
    from dataclasses import asdict

    from tta_pipeline.benchmarks.loading import load_all
    from tta_pipeline.metrics.database import publish_metrics
    from tta_pipeline.unreferenced import find_unreferenced, remove

    locations = Locations.from_environment()
    loaded = load_all(locations)
    for fault in loaded.faults:
        _say(f"nothing of {fault.benchmark} counts as gone, since its file has a fault: {fault.sentence}")
    everything = find_unreferenced(loaded, locations, decoded=decoded)
    found = [each for each in everything if not kinds or each.kind in kinds]
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], default=str, indent=1))
    else:
        _print_unreferenced(found, locations)
    if dry_run or not found:
        return
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("expected --yes to remove this, or --dry-run to list it")
    if yes or click.confirm(f"Remove these {len(found):,} files?"):
        remove(found, locations)
        for line in publish_metrics(locations).notes:
            _say(line)


def _print_unreferenced(found: "Sequence[Unreferenced]", locations: Locations) -> None:
    from tta_pipeline.reports.tables import Table

    groups: dict[tuple[str, str], list[int]] = {}
    for each in found:
        inside = each.path.is_relative_to(locations.root)
        where = "/".join(each.path.relative_to(locations.root).parts[:4][:-1]) if inside else str(each.path.parent)
        groups.setdefault((each.kind, where), []).append(each.size_bytes)
    rows = tuple((*group, len(sizes), round(sum(sizes) / 1e6, 3)) for group, sizes in sorted(groups.items()))
    if rows:
        _print(Table(columns=("kind", "folder", "num_files", "megabytes"), rows=rows))
    click.echo(f"{len(found):,} files, {sum(each.size_bytes for each in found) / 1e6:,.1f} MB to which nothing refers")


# In a raw docstring \b is two characters; click leaves lines alone only behind the one character that it stands for.
for _verb in main.commands.values():
    _verb.help = (_verb.help or "").replace("\\b\n", "\b\n")
