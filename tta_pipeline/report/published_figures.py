"""Tables of published errors, shipped or from a user's CSV file, for comparison with errors measured here."""

import csv
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from tta_pipeline.errors import QuestionError

_SHIPPED = Path(__file__).parent / "published"
COLUMNS = ("experiment", "corruption", "severity", "error", "source")
ROBUSTBENCH = "RobustBench's layout: accuracies by corruption and severity"
AGREEMENT = """
WITH published AS (
    SELECT unnest(?::VARCHAR[]) AS published_as, unnest(?::VARCHAR[]) AS corruption, unnest(?::INTEGER[]) AS severity,
           unnest(?::DOUBLE[]) AS published_error, unnest(?::VARCHAR[]) AS source
),
kept AS (
    SELECT unnest(?::VARCHAR[]) AS benchmark, unnest(?::VARCHAR[]) AS dataset, unnest(?::VARCHAR[]) AS experiment,
           unnest(?::VARCHAR[]) AS subset, unnest(?::DOUBLE[]) AS kept_mean, unnest(?::DOUBLE[]) AS standard_error
),
other_classes AS (FROM shard_sets WHERE num_classes <> ?),
seeds AS (
    SELECT benchmark, dataset, experiment, subset, generated, corruption, severity, seed,
           avg(error) AS error, max(num_samples) AS num_images
    FROM evaluations ANTI JOIN other_classes USING (benchmark, dataset, corruption, severity, manifest_sha256)
    WHERE counts AND benchmark = coalesce(?, benchmark) GROUP BY ALL
),
cells AS (
    SELECT benchmark, dataset, experiment, subset, generated, corruption, severity,
           avg(error) AS error, max(num_images) AS num_images
    FROM seeds GROUP BY ALL
),
lines AS (
    SELECT published_as, count(*) AS num_published, avg(published_error) AS mean_published, any_value(source) AS source
    FROM published WHERE published_as = coalesce(?, published_as) GROUP BY ALL
),
common AS (
    SELECT *, avg(error) OVER (PARTITION BY benchmark, dataset, experiment, subset, generated, published_as) AS mean
    FROM cells JOIN published USING (corruption, severity)
    WHERE published_as = coalesce(?, experiment)
),
found AS (
    SELECT benchmark, dataset, generated, experiment, published_as, subset, count(*) AS num_cells,
           avg(error) AS mean_error, avg(published_error) AS published_error,
           mean_error - avg(published_error) AS error_change,
           -- Cells show the same photographs. Without predictions, their errors count as wholly dependent.
           1.96 * sqrt(2) * coalesce(
               any_value(standard_error) FILTER (abs(kept_mean - mean) < 1e-9),
               avg(sqrt(published_error * (1 - published_error) / num_images))
           ) AS chance_error,
           arg_max(error - published_error, abs(error - published_error)) AS largest_change,
           arg_max(corruption || '|' || severity, abs(error - published_error)) AS largest_at
    FROM common LEFT JOIN kept USING (benchmark, dataset, experiment, subset)
    GROUP BY ALL
)
SELECT benchmark, dataset, generated, experiment, published_as, subset, coalesce(num_cells, 0) AS num_cells,
       num_published, mean_error, coalesce(published_error, mean_published) AS published_error, error_change,
       chance_error,
       CASE WHEN experiment IS NULL THEN 'not run'
            WHEN abs(error_change) <= chance_error THEN 'agrees'
            ELSE format('differs by {:.1f} points', 100 * abs(error_change)) END AS verdict,
       largest_change, largest_at, source
FROM lines LEFT JOIN found USING (published_as)
ORDER BY benchmark NULLS LAST, dataset, subset, published_as, experiment
"""
"""Each published line beside the experiment of its name, or each experiment beside the line that is asked for.

Errors are means over their common cells; `num_published` counts the cells of the line. The parameters after the lists
are the table's number of classes, the benchmark, and twice the name of the line; None: any. `chance_error` is how far
the means of two samples of so many photographs are apart in 95 % of cases.
"""


class PublishedError(NamedTuple):
    """A published top-1 error in [0, 1] of one cell."""

    published_as: str
    corruption: str
    severity: int
    error: float
    source: str


def shipped_tables() -> dict[str, Path]:
    """Return the published tables that the project ships, by name."""
    return {path.stem: path for path in sorted(_SHIPPED.glob("*.csv"))}


def classes_of(path: Path) -> int | None:
    """Return the number of classes of the table at *path*: those of ImageNet if it is shipped; None: unknown."""
    return 1_000 if path in shipped_tables().values() else None


def read_published(path: Path) -> list[PublishedError]:
    """Return the errors in *path*: a row for each cell with `COLUMNS`, or RobustBench's layout.

    RobustBench's layout has a column for each cell; its first row is the corruption, its second the severity, and each
    further row the name of a model and its accuracies in [0, 1].

    Raises:
        QuestionError: the file has neither layout, or a value is no number in its range.
    """
    try:
        rows = [row for row in csv.reader(path.read_bytes().decode().splitlines()) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise QuestionError(f"--reference {path} cannot be read ({error}); expected a CSV file in UTF-8") from error
    if len(rows) > 1 and not rows[0][0] and not rows[1][0]:
        found = list(_cells_of_columns(path, rows))
    elif rows and set(COLUMNS) <= set(rows[0]):
        found = [
            _cell_of(path, dict(zip(rows[0], row, strict=False)), number) for number, row in enumerate(rows[1:], 2)
        ]
    else:
        begins = f"begins with {', '.join(rows[0][:6])}" if rows else "is empty"
        raise QuestionError(
            f"--reference {path} {begins}; expected the columns {', '.join(COLUMNS)}, or RobustBench's layout "
            "(accuracies by corruption and severity)"
        )
    if not found:
        raise QuestionError(f"--reference {path} has a header but no errors; expected a row for each cell")
    return found


class KeptError(NamedTuple):
    """The mean error of an experiment over the published cells, and its standard error, from kept predictions."""

    benchmark: str
    dataset: str
    experiment: str
    subset: str
    mean: float
    standard_error: float


def as_parameters(found: Sequence[PublishedError], kept: Sequence[KeptError]) -> list[list[object]]:
    """Return the columns of both, for `AGREEMENT`."""
    return [
        [row[at] for row in rows]
        for rows, kind in ((found, PublishedError), (kept, KeptError))
        for at in range(len(kind._fields))
    ]


def _cells_of_columns(path: Path, rows: Sequence[Sequence[str]]) -> Iterator[PublishedError]:
    (_, *corruptions), (_, *severities), *models = rows
    for number, (name, *accuracies) in enumerate(models, 3):
        for corruption, severity, accuracy in zip_longest(corruptions, severities, accuracies, fillvalue=""):
            cell = {"experiment": name, "corruption": corruption, "severity": severity, "source": ROBUSTBENCH}
            found = _cell_of(path, {**cell, "error": accuracy}, number)
            yield found._replace(error=1 - found.error)


def _cell_of(path: Path, row: dict[str, str], number: int) -> PublishedError:
    """Return the error in the row *number* of the file, whose value must be in [0, 1]."""
    try:
        error, severity = float(row["error"]), int(row["severity"])
    except (KeyError, ValueError) as raised:
        raise QuestionError(
            f"--reference {path}, row {number}: the severity is {row.get('severity')!r} and the error is "
            f"{row.get('error')!r}; expected a whole number and a fraction from 0 to 1"
        ) from raised
    if not 0 <= error <= 1:
        raise QuestionError(
            f"--reference {path}, row {number}: the value is {error:g}; expected a fraction from 0 to 1: divide "
            "percentages by 100"
        )
    return PublishedError(row["experiment"], row["corruption"], severity, error, row.get("source", ""))
