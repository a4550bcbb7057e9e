"""The page of `bench.photographs`: errors with intervals, differences with tests, cost, and what was not run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.domain.cells import CLEAN
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
_SEVERITIES = range(1, 6)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method over the same cells as the other rows of its table."""

    name: str
    error: Estimate
    clean: float | None
    changes: Mapping[str, Estimate]
    """Its error minus that of each reference."""
    p_values: Mapping[str, float]
    """By reference, after Holm over all of the table."""

    def verdict(self, reference: str) -> str:
        """Return `better`, `worse`, or `alike` if chance explains the difference."""
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


def make_rows(wrong: Mapping[str, Wrong], cells: Sequence[str]) -> Sequence[Row]:
    """Return a row for each method that has all *cells*, the lowest error first."""
    whole = {name: own for name, own in wrong.items() if set(cells) <= set(own)}
    names = sorted(whole, key=lambda name: _error(whole[name], cells).mean)
    changes = {name: {each: change(whole[each], whole[name], cells) for each in REFERENCES} for name in names}
    tested = [(name, each) for name in names for each in REFERENCES if name != each]
    corrected = dict(zip(tested, holm([changes[name][each].p_value for name, each in tested]), strict=True))
    return [
        Row(
            name=name, error=_error(whole[name], cells),
            clean=float(whole[name][CLEAN.key].is_wrong.mean()) if CLEAN.key in whole[name] else None,
            changes=changes[name], p_values={each: corrected.get((name, each), 1.0) for each in REFERENCES},
        )
        for name in names
    ]  # fmt: skip


def change(a: Wrong, b: Wrong, cells: Sequence[str]) -> Estimate:
    """Return the mean error of *b* minus that of *a* over *cells*; a photograph is drawn with all its corruptions."""
    return estimate_mean(
        [
            CellValues(values=b[cell].is_wrong.astype(float) - a[cell].is_wrong, photographs=a[cell].photographs)
            for cell in cells
        ],
        lowest=-1,
    )


def table(rows: Sequence[Row], costs: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Return the lines of the table of *rows*."""
    yield (
        "| method | error | 95 % interval | clean | minus `source` | minus `norm` | ECE | forwards an image | "
        "backwards an image | ms an image |"
    )
    yield "|" + "---|" * 10
    for row in rows:
        ece, forwards, backwards, ms = costs[row.name]
        clean = "" if row.clean is None else f"{100 * row.clean:.1f} %"
        against = " | ".join("" if row.name == each else _points(row, each) for each in REFERENCES)
        yield (
            f"| {row.name} | {100 * row.error.mean:.1f} % | {100 * row.error.low:.1f} to {100 * row.error.high:.1f} | "
            f"{clean} | {against} | {100 * ece:.1f} % | {forwards:.1f} | {backwards:.1f} | {ms:.0f} |"
        )


def sentences(rows: Sequence[Row], wrong: Mapping[str, Wrong], cells: Sequence[str], where: str) -> Iterator[str]:
    """Return what *rows* allow to say."""
    for number, reference in enumerate(REFERENCES, 1):
        others = [row for row in rows if row.name not in REFERENCES[:number]]
        said = {
            verdict: [row.name for row in others if row.verdict(reference) == verdict]
            for verdict in ("better", "worse", "alike")
        }
        parts = [
            f"{_names(said[verdict])} {'is' if len(said[verdict]) == 1 else 'are'} {text}"
            for verdict, text in (
                ("better", f"better than `{reference}` by more than chance"),
                ("worse", f"worse than `{reference}` by more than chance"),
                ("alike", f"not to be told apart from `{reference}`"),
            )
            if said[verdict]
        ]
        if parts:
            yield f"- On these photographs {where}, {'; '.join(parts)}."
    best, *rest = rows
    against = [change(wrong[best.name], wrong[row.name], cells) for row in rest]
    equal = [
        row.name
        for row, p in zip(rest, holm([each.p_value for each in against]), strict=True)
        if p > LEVEL
    ]  # fmt: skip
    beside = (
        f"; {_names(equal)} cannot be told apart from it" if equal else ", lower than all others by more than chance"
    )
    yield f"- `{best.name}` has the lowest error {where}{beside}."


def graded(wrong: Mapping[str, Wrong], names: Sequence[str], corruptions: Sequence[str]) -> Sequence[str]:
    """Return those of *corruptions* that every method of *names* has at all severities."""
    own = [_at_all_severities(wrong, name) for name in names]
    return [
        each for each in corruptions if all({f"{each}|{number}" for number in _SEVERITIES} <= set(of) for of in own)
    ]


def severities(wrong: Mapping[str, Wrong], names: Sequence[str], corruptions: Sequence[str]) -> Iterator[str]:
    """Return the lines of a table of errors by severity, over *corruptions*, which every method has."""
    yield "| method | severity 1 | 2 | 3 | 4 | 5 |"
    yield "|" + "---|" * 6
    for name in names:
        own = _at_all_severities(wrong, name)
        found = [_error(own, [f"{corruption}|{number}" for corruption in corruptions]) for number in _SEVERITIES]
        errors = (f"{100 * each.mean:.1f} % ({100 * each.low:.1f} to {100 * each.high:.1f})" for each in found)
        yield f"| {name} | {' | '.join(errors)} |"


def _at_all_severities(wrong: Mapping[str, Wrong], name: str) -> Wrong:
    return {**wrong.get(f"{name}_milder", {}), **wrong.get(name, {})}


def read_costs(locations: Locations, benchmark: str) -> Mapping[str, Sequence[float]]:
    """Return ECE, forwards and backwards an image, and milliseconds an image, of each experiment at severity 5."""
    with open_metrics(locations.metrics) as connection:
        return {name: rest for name, *rest in query(connection, COSTS, [benchmark]).rows}


def points(
    everywhere: Sequence[Row], at_few: Sequence[Row], costs: Mapping[str, Sequence[float]], num_all: int, num_few: int
) -> Table:
    """Return errors and costs of both tables in the form that the figure takes, a panel for each."""
    columns = ("subset", "num_cells", "experiment", "ms_per_image", "mean_error")
    both = [(num_all, row) for row in everywhere] + [(num_few, row) for row in at_few]
    return Table(
        columns=columns,
        rows=tuple(("all", number, row.name, costs[row.name][3], row.error.mean) for number, row in both),
    )


def power(everywhere: Sequence[Row], at_few: Sequence[Row], num_photographs: int) -> str:
    """Return what the number of photographs allows, in a sentence with the measured intervals."""
    means, means_of_few = (
        median((row.error.high - row.error.low) / 2 for row in rows) for rows in (everywhere, at_few)
    )
    changes = [row.changes["norm"] for row in at_few if row.name not in REFERENCES]
    paired = sorted((each.high - each.low) / 2 for each in changes)
    cell = 1.96 * (0.25 / num_photographs) ** 0.5
    return (
        f"{num_photographs} photographs give the error of one cell to ±{100 * cell:.1f} points at worst, the mean over "
        f"15 corruptions to about ±{100 * means:.1f} and over three to about ±{100 * means_of_few:.1f}: an error by "
        "itself is known too roughly for a claim about a few points. The difference of two methods on the same "
        f"photographs is known better, against `norm` to between ±{100 * paired[0]:.1f} and ±{100 * paired[-1]:.1f} "
        "points in the second table."
    )


def _error(own: Wrong, cells: Sequence[str]) -> Estimate:
    found = estimate_error(own[cell] for cell in cells)
    assert found is not None, "a table has cells"
    return found


def _points(row: Row, reference: str) -> str:
    found = row.changes[reference]
    text = f"{100 * found.mean:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    return text if row.verdict(reference) == "alike" else f"**{text}**"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
