"""Data of the page that compares two experiments, and of the leaderboard's significance marks."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from tta_pipeline.report.pages.collected_results import (
    MAX_PHOTOGRAPHS,
    TILE,
    CollectedResults,
    PhotographsOfCell,
    unit_name,
)
from tta_pipeline.report.significance.estimates import Estimate
from tta_pipeline.report.significance.paired_tests import LEVEL, holm
from tta_pipeline.report.significance.pairwise import Pair, WrongSamples, estimate_error
from tta_pipeline.report.significance.verdict import say_same_predictions, say_verdict

Pairs = Mapping[tuple[str, str], Pair]


def comparison_script(gathered: CollectedResults, pairs: Pairs) -> str:
    """Return the data as a script, since a browser does not let a page on disk read a data file."""
    number_of = {unit_name(unit): number for number, unit in enumerate(gathered.units)}
    numbers = list(gathered.units)
    experiments = list(gathered.errors)
    classes: dict[str, int] = {}
    data = {
        "experiments": experiments,
        "cells": [asdict(facts) for facts in gathered.units.values()],
        "errors": {name: [by_unit.get(unit) for unit in numbers] for name, by_unit in gathered.errors.items()},
        "pairs": {
            f"{a} {b}": {
                "cells": [
                    [number_of[unit], only_a, only_b, float(f"{p_holm:.3g}")]
                    for unit, (only_a, only_b, p_holm) in pair.cells.items()
                ],
                "verdicts": [verdict_on((a, b), pair), verdict_on((b, a), pair.swapped())],
            }
            for (a, b), pair in pairs.items()
        },
        "photographs": [_photographs(each, experiments, classes) for each in gathered.photographs],
        "num_photographs": MAX_PHOTOGRAPHS,
        "tile": TILE,
    }
    data["classes"] = list(classes)
    # A class may be called "</script>": escaped, so that the script stays valid even if it is inlined in a page.
    return "const COMPARISON = " + json.dumps(data, separators=(",", ":")).replace("<", "\\u003c") + ";\n"


def verdict_on(names: tuple[str, str], pair: Pair, *, p_holm: float | None = None, num_tests: int = 1) -> str | None:
    """Return the verdict on the two experiments of *pair* in a sentence; None if no common cell counts in the mean.

    No line ends within a p-value.
    See `say_verdict` for *p_holm* and *num_tests*.
    """
    if pair.change is None or pair.means is None:
        return None
    if pair.num_same:
        return say_same_predictions(names, pair.num_same, pair.means[0])
    said = say_verdict(
        names,
        pair.means,
        pair.change,
        p_holm=p_holm,
        num_tests=num_tests,
        same_order=pair.same_order,
        batch_sizes=pair.batch_sizes,
    )
    return re.sub(r"(p )?(<?=) (?=\d)", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), said)


def _photographs(found: PhotographsOfCell, experiments: Sequence[str], classes: dict[str, int]) -> Mapping[str, object]:
    """Return the label and each experiment's prediction for every photograph, as numbers of *classes*."""

    def number_of(name: str) -> int:
        return classes.setdefault(name, len(classes))

    photos = []
    for photograph in found.photographs:
        said = {name: number_of(each) for each, names in photograph.said.items() for name in names}
        photos.append([number_of(photograph.label), [said.get(name) for name in experiments]])
    return {"page": found.page, "title": found.title, "photos": photos}


def mean_errors(gathered: CollectedResults) -> Mapping[str, Estimate]:
    """Return the mean error, with its interval, of each experiment with stored predictions."""
    judged = gathered.judged_cells()
    return _known(
        {name: estimate_error(each for each in judged[name].values() if each.counts_in_mean) for name in judged}
    )


def corruption_errors(gathered: CollectedResults) -> Mapping[str, Mapping[str, Estimate]]:
    """Return the error under each corruption, with its interval, of each experiment with stored predictions."""
    judged = gathered.judged_cells()
    found: dict[str, dict[str, list[WrongSamples]]] = {name: {} for name in judged}
    for unit, facts in gathered.units.items():
        for name in judged:
            if cell := judged[name].get(unit_name(unit)):
                found[name].setdefault(facts.corruption, []).append(cell)
    return {name: _known({each: estimate_error(cells) for each, cells in own.items()}) for name, own in found.items()}


def _known(estimates: Mapping[str, Estimate | None]) -> Mapping[str, Estimate]:
    return {name: each for name, each in estimates.items() if each is not None}


def p_values_beside(best: str, others: Sequence[str], pairs: Pairs) -> Mapping[str, float]:
    """Return the p-value, by Holm's correction over all of them, of each of *others* against *best*.

    Experiments that cannot be compared with *best* are left out: those on another stream, without predictions, or whose
    mean covers cells that the two do not share.
    """
    return _correct_beside(best, others, comparable_p_values(pairs))


def comparable_p_values(pairs: Pairs) -> Mapping[tuple[str, str], float]:
    """Return the p-value of each of *pairs* whose means cover the same cells."""
    return {names: pair.change.p_value for names, pair in pairs.items() if pair.change and pair.covers_both}


def not_significantly_worse(
    best: str, others: Sequence[str], p_values: Mapping[tuple[str, str], float]
) -> frozenset[str] | None:
    """Return the experiments among *others* that are not significantly worse than *best*, by Holm's correction.

    None: no experiment can be compared with *best*.

    Args:
        best: The experiment with the lowest error.
        others: Experiments on the same cells.
        p_values: See `comparable_p_values`.
    """
    corrected = _correct_beside(best, others, p_values)
    return frozenset(name for name, p_value in corrected.items() if p_value > LEVEL) if corrected else None


def _correct_beside(best: str, others: Sequence[str], p_values: Mapping[tuple[str, str], float]) -> Mapping[str, float]:
    """Return the corrected p-value of each of *others* that can be compared with *best*."""
    found = {name: p_values.get((best, name), p_values.get((name, best))) for name in others}
    known = {name: each for name, each in found.items() if each is not None}
    return dict(zip(known, holm(list(known.values())), strict=True))
