"""The page of `bench.photographs` and its data: errors with intervals, differences with tests, and cost."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from bench.result_pages import Row, command, filled, listed, table
from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.locations import Locations
from tta_pipeline.report.pages.cells import read_cells
from tta_pipeline.report.pages.collected_results import CollectedResults, unit_name
from tta_pipeline.report.significance.estimates import CellValues, Estimate, estimate_mean
from tta_pipeline.report.significance.paired_tests import LEVEL, holm
from tta_pipeline.report.significance.pairwise import WrongSamples, estimate_error
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics

Wrong = Mapping[str, WrongSamples]
"""The wrong samples of an experiment by cell, such as `fog|5`."""
COSTS = """
SELECT experiment, avg(ece), sum(num_forwards) / sum(num_samples), sum(num_backwards) / sum(num_samples),
       1000 * sum(wall_s) / sum(num_samples)
FROM evaluations WHERE counts AND benchmark = ? AND subset = 'all' AND severity = 5 GROUP BY experiment
"""
REFERENCES = ("source", "norm")
ALL, SOME = "15 corruptions", "3 corruptions"
COLUMNS = (
    "images", "severity", "method", "error_percent", "error_low", "error_high",
    *(f"minus_{name}{part}" for name in REFERENCES for part in ("", "_low", "_high")),
    *(f"vs_{name}" for name in (*REFERENCES, "best")),
    "ece_percent", "forwards_per_image", "backwards_per_image", "ms_per_image",
)  # fmt: skip
_HEADINGS = ("method", "error [95 % interval]", "clean error", "points to `source`", "points to `norm`", "ms per image")
_SEVERITIES = range(1, 6)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A method over the same cells as the other rows of its table."""

    name: str
    error: Estimate
    changes: Mapping[str, Estimate]
    """Its error minus each reference's."""
    p_values: Mapping[str, float]
    """By reference, after Holm over all rows."""
    against_best: str
    """`best` for the lowest error, `alike` if the difference to it is not significant, otherwise `worse`."""

    def verdict(self, reference: str) -> str:
        """Return `better`, `worse`, or `alike` if the difference is not significant."""
        if self.p_values[reference] > LEVEL:
            return "alike"
        return "better" if self.changes[reference].mean < 0 else "worse"


def read_wrong(benchmark: Benchmark, locations: Locations) -> Mapping[str, Wrong]:
    """Return the wrong samples of each experiment on all photographs, by cell."""
    gathered = CollectedResults()
    for results in read_cells(benchmark, locations):
        gathered.add(results, ())
    units = {unit_name(unit): f"{facts.corruption}|{facts.severity}" for unit, facts in gathered.units.items()}
    return {
        name: {units[unit]: wrong for unit, wrong in cells.items()}
        for name, cells in gathered.judged.items()
        if gathered.subsets[name] == "all"
    }


def make_rows(wrong: Mapping[str, Wrong], cells: Sequence[str]) -> Sequence[Found]:
    """Return a row for each method that has all *cells*, the lowest error first."""
    whole = {name: own for name, own in wrong.items() if set(cells) <= set(own)}
    names = sorted(whole, key=lambda name: _error(whole[name], cells).mean)
    changes = {name: {each: change(whole[each], whole[name], cells) for each in REFERENCES} for name in names}
    tested = [(name, each) for name in names for each in REFERENCES if name != each]
    corrected = dict(zip(tested, holm([changes[name][each].p_value for name, each in tested]), strict=True))
    to_best = [change(whole[names[0]], whole[name], cells).p_value for name in names[1:]]
    verdicts = dict(zip(names, ("best", *("alike" if p > LEVEL else "worse" for p in holm(to_best))), strict=True))
    return [
        Found(
            name=name, error=_error(whole[name], cells), changes=changes[name], against_best=verdicts[name],
            p_values={each: corrected.get((name, each), 1.0) for each in REFERENCES},
        )
        for name in names
    ]  # fmt: skip


def change(a: Wrong, b: Wrong, cells: Sequence[str]) -> Estimate:
    """Return *b*'s mean error minus *a*'s over *cells*; a photograph is drawn with all its corruptions."""
    return estimate_mean(
        [
            CellValues(values=b[cell].is_wrong.astype(float) - a[cell].is_wrong, photographs=a[cell].photographs)
            for cell in cells
        ],
        lowest=-1,
    )


def data_rows(
    images: str, severity: int, rows: Sequence[Found], costs: Mapping[str, Sequence[float]]
) -> Iterator[Sequence[object]]:
    """Yield *rows* in the order of COLUMNS, with the *costs* that are known."""
    for row in rows:
        others = [name for name in REFERENCES if name != row.name]
        changes = [_three(row.changes[name], "+.1f") if name in others else [""] * 3 for name in REFERENCES]
        verdicts = [row.verdict(name) if name in others else "" for name in REFERENCES]
        ece, *passes, ms = costs.get(row.name, [None] * 4)
        cost = ["" if ece is None else f"{100 * ece:.1f}", *map(_one_digit, passes), "" if ms is None else f"{ms:.0f}"]
        errors = _three(row.error, ".1f")
        yield images, severity, row.name, *errors, *changes[0], *changes[1], *verdicts, row.against_best, *cost


def severity_rows(
    wrong: Mapping[str, Wrong], names: Sequence[str], corruptions: Sequence[str]
) -> Iterator[Sequence[object]]:
    """Yield errors at severities 1 to 4 in the order of COLUMNS, if all methods *names* have all *corruptions*."""
    if list(graded(wrong, names, corruptions)) == list(corruptions):
        for name in names:
            for severity in _SEVERITIES[:-1]:
                own = _error(_at_all_severities(wrong, name), [f"{each}|{severity}" for each in corruptions])
                yield ALL, severity, name, *_three(own, ".1f"), *[""] * (len(COLUMNS) - 6)


def _three(found: Estimate, form: str) -> list[str]:
    return [format(100 * each, form) for each in (found.mean, found.low, found.high)]


def _one_digit(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def graded(wrong: Mapping[str, Wrong], names: Sequence[str], corruptions: Sequence[str]) -> Sequence[str]:
    """Return the *corruptions* that every method of *names* has at all severities."""
    own = [_at_all_severities(wrong, name) for name in names]
    return [
        each for each in corruptions if all({f"{each}|{number}" for number in _SEVERITIES} <= set(of) for of in own)
    ]


def page(rows: Sequence[Row], version: str = torch.__version__) -> str:
    """Return the page in Markdown."""
    whole, some, clean = ({row["method"]: row for row in rows if (row["images"], row["severity"]) == which}
                          for which in ((ALL, "5"), (SOME, "5"), ("clean", "0")))  # fmt: skip
    best, source, norm = next(iter(whole.values())), whole["source"], whole["norm"]
    on_some = {
        (name, verdict): [row["method"] for row in some.values() if row[f"vs_{name}"] == verdict]
        for name in REFERENCES
        for verdict in ("better", "alike", "worse")
    }
    widest = max(_half_width(row, "minus_norm") for row in some.values() if row["method"] not in REFERENCES)
    shown = [[f"`{name}`", _interval(row), _clean(clean, name), *_against(row), row["ms_per_image"]]
             for name, row in whole.items()]  # fmt: skip
    return filled(f"""# Photographs of ImageNet

**Blending batch-norm statistics beats replacing them.** On 500 photographs under 15 corruptions, `{best["method"]}`
lowers the error of an EfficientNet-Lite1 from {source["error_percent"]} to {best["error_percent"]} %, below the other
methods by more than chance. `norm`, which replaces the statistics, reaches {norm["error_percent"]} %. The gradient
steps
of `tent` add nothing to `norm` that these images can show. Do not generalise: on [CIFAR-10](cifar.md), with larger
batches, `norm` is better than `bn_alpha`.

![Error over milliseconds per image](../images/photograph-leaderboard.png)

{table(_HEADINGS, shown)}

Bold differences are more than chance. {len(some)} methods ran on three of the corruptions, gaussian_noise,
defocus_blur and fog. By more than chance,
{len(on_some["source", "better"])} of them are better than `source`, but only {listed(on_some["norm", "better"])} is
better than `norm`. {listed(on_some["source", "alike"])} cannot be told apart from `source`, and
{listed(on_some["source", "worse"])} is worse. [`photographs.csv`](photographs.csv) has all figures, and severities 1 to
4 for `source`, `norm` and `tent`.

## Measure it again

{command("python -m bench.photographs FOLDER", needs="photographs of ImageNet and published weights")}

The docstring of `bench/photographs.py` lists the files of `FOLDER`. Finished evaluations are not repeated.

## Setup and limits

One photograph of every second class of ImageNet, 240 pixels, all 1,000 classes to choose from, severity 5, batches of
64, preset `imagenet`, bfloat16, one seed, a reset before each cell. Measured with torch {version}.

- The photographs were corrupted here. Compare these figures with each other, not with published tables.
- With 500 photographs, the mean error over 15 corruptions is known to about
  ±{median(_half_width(row, "error") for row in whole.values()):.1f} points. Differences to `norm` are known to
  ±{widest:.1f} points or better, since both methods saw the same images.
- A cell has eight batches. Methods that learn over a stream have hardly begun, and may gain on the 50,000 images of a
  published cell.
- The network may have seen some of these photographs in training, so its clean error may be too low.
- The machine was shared: use the times as a rough guide.
- `cotta`, `memo` and `ttaug` were too slow to run here. `petta` and `rmt` need clean labelled images of all classes.
""")


def _half_width(row: Row, name: str) -> float:
    return (float(row[f"{name}_high"]) - float(row[f"{name}_low"])) / 2


def _interval(row: Row) -> str:
    return f"{row['error_percent']} % [{row['error_low']}, {row['error_high']}]"


def _clean(clean: Mapping[str, Row], name: str) -> str:
    return f"{clean[name]['error_percent']} %" if name in clean else ""


def _against(row: Row) -> Iterator[str]:
    for name in REFERENCES:
        text = row[f"minus_{name}"]
        yield text if row[f"vs_{name}"] in ("alike", "") else f"**{text}**"


def _at_all_severities(wrong: Mapping[str, Wrong], name: str) -> Wrong:
    return {**wrong.get(f"{name}_milder", {}), **wrong.get(name, {})}


def read_costs(locations: Locations, benchmark: str) -> Mapping[str, Sequence[float]]:
    """Return ECE, forwards, backwards and milliseconds per image of each experiment at severity 5."""
    with open_metrics(locations.metrics) as connection:
        return {name: rest for name, *rest in query(connection, COSTS, [benchmark]).rows}


def points(
    everywhere: Sequence[Found],
    at_few: Sequence[Found],
    costs: Mapping[str, Sequence[float]],
    num_all: int,
    num_few: int,
) -> Table:
    """Return errors and costs of both tables for the figure, one panel each."""
    columns = ("subset", "num_cells", "experiment", "ms_per_image", "mean_error")
    both = [(num_all, row) for row in everywhere] + [(num_few, row) for row in at_few]
    return Table(
        columns=columns,
        rows=tuple(("all", number, row.name, costs[row.name][3], row.error.mean) for number, row in both),
    )


def _error(own: Wrong, cells: Sequence[str]) -> Estimate:
    found = estimate_error(own[cell] for cell in cells)
    assert found is not None, "a table has cells"
    return found
