"""How often the alarm is false, and how late it is: `python -m bench.alarm CIFAR [NUM_OF_A_CLASS]`.

CIFAR is the folder of `bench.leaderboard`; its published ResNet-20 is watched on the first test images of each class,
by default 400, corrupted here at all five severities. Data and results lie in $TTA_DATA_ROOT; finished evaluations are
not repeated. The page is docs/alarm.md, with its picture.

False alarms are counted on 1,000 clean streams. Each is a random permutation of the clean confidences, whose first
quarter is the calibration and whose rest is watched: real scores, and exchangeable by construction. Beside them stand
scores whose distribution is known: independent exponential ones, and independent ones with five values only, so that
most are tied.
"""

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.stats import binom

from bench.leaderboard import DOCS, MODELS, first_test_images, run_benchmark, write_benchmark
from tta_pipeline.report.alarm.martingale import Numbers, alarm_at, conformal_ranks, log_wealth
from tta_pipeline.report.alarm_figures import curves_of_table, wealth_curves
from tta_pipeline.report.figure_style import as_png, lay_out
from tta_pipeline.report.kept_predictions import predictions
from tta_pipeline.report.queries import ALARM_WEALTH
from tta_pipeline.report.tables import Table, query
from tta_pipeline.results.database.database import open_metrics
from tta_pipeline.util.locations import Locations

NAME = "cifar_alarm"
SEVERITIES = (1, 2, 3, 4, 5)
LEVELS = (0.01, 0.05)
NUM_STREAMS = 1_000
_DELAYS = """
SELECT corruption, severity, alarm_at, num_samples FROM latest_alarms WHERE benchmark = ? AND corruption <> 'clean'
"""


def main(folder: Path, num_of_a_class: int) -> None:
    """Run the unfinished evaluations, and write the page."""
    locations = Locations.from_environment()
    sys.path.append(str(folder))  # for resnet.py
    num_calibration = num_of_a_class * 10 // 4
    write_benchmark(locations, NAME, {
        "title": "The alarm on CIFAR-10", "shift_set": "cifar_10_c", "severities": list(SEVERITIES), "image_size": 32,
        "source": {"kind": "generated", "severity_table": "cifar_c",
                   "clean": str(first_test_images(locations, folder, num_of_a_class))},
        "shards": {"num_shards": 1}, "models": {"model": MODELS["resnet"](folder)},
        "experiments": {"source": {"model": "model", "method": "source", "batch_size": 200}},
        "alarm": {"num_calibration": num_calibration},
    })  # fmt: skip
    run_benchmark(folder, NAME)
    with open_metrics(locations.metrics) as connection:
        delays, wealth = query(connection, _DELAYS, [NAME]), query(connection, ALARM_WEALTH, [NAME, "cifar_10_c"])
    figure = wealth_curves(curves_of_table(wealth), level=LEVELS[0])
    lay_out(figure)
    (DOCS / "images" / "alarm.png").write_bytes(as_png(figure))
    lines = (*_text(num_of_a_class), *_false_alarms(_confidences("clean|0"), num_calibration), *_delays(delays),
             *_late_shift(num_calibration))  # fmt: skip
    (DOCS / "alarm.md").write_text("\n".join(lines) + "\n")


def _text(num_of_a_class: int) -> Iterator[str]:
    yield f"""# An alarm without labels: how often false, how late

Made by `python -m bench.alarm CIFAR`. A published ResNet-20 of CIFAR-10, not adapted, on the first {num_of_a_class}
test images of each class; corruptions were **made here**, so the figures compare with each other only. What the alarm
is and what it assumes: [Watch a model](how-to/watch.md).

![Evidence along the streams](images/alarm.png)
"""


def _confidences(cell: str) -> Numbers:
    """Return the confidences on *cell* in stream order, (N,)."""
    found: Numbers = np.asarray(predictions(NAME, "source", cell)["confidence"], np.float64)
    return found


def _false_alarms(clean: Numbers, num_calibration: int) -> Iterator[str]:
    """Yield the table of false alarms."""
    length = len(clean) - num_calibration
    kinds: dict[str, Callable[[np.random.Generator], Numbers]] = {
        "clean confidences, permuted": lambda random: random.permutation(clean),
        "exponential scores": lambda random: random.exponential(size=len(clean)),
        "five values only": lambda random: random.integers(0, 5, len(clean)).astype(np.float64),
    }
    yield f"""## False alarms

Of {NUM_STREAMS:,} streams of {length:,} images without a shift, each with {num_calibration:,} calibration images of its
own, how many raised the alarm at any time. In brackets: the most that a rate of exactly the level gives in 99 of 100
such counts. No correction is made for the finite calibration set: the test needs none.

| scores | {" | ".join(f"level {level:g}" for level in LEVELS)} |
|---|{"---|" * len(LEVELS)}"""
    for seed, (name, draw) in enumerate(kinds.items()):
        random = np.random.default_rng(seed)
        ranks = np.array(
            [
                conformal_ranks(scores[:num_calibration], scores[num_calibration:], seed=number)
                for number in range(NUM_STREAMS)
                for scores in [draw(random)]
            ]
        )
        highest = log_wealth(ranks).max(1)
        counts = (
            f"{int((highest >= -math.log(level)).sum())} ({binom.ppf(0.99, NUM_STREAMS, level):.0f})"
            for level in LEVELS
        )
        yield f"| {name} | {' | '.join(counts)} |"
    yield ""


def _delays(table: Table) -> Iterator[str]:
    """Yield the table of the delay on each corruption and severity."""
    rows = list(zip(*map(table.column, table.columns), strict=True))
    delay = {(corruption, severity): at for corruption, severity, at, _ in rows}
    yield f"""## Delay

Images until the alarm at level {LEVELS[0]:g}, from the start of a stream of {rows[0][3]:,} corrupted images; -: no
alarm.

| corruption | {" | ".join(f"severity {each}" for each in SEVERITIES)} |
|---|{"---|" * len(SEVERITIES)}"""
    for corruption in dict.fromkeys(row[0] for row in rows):
        yield f"| {corruption} | {' | '.join(_shown(delay[corruption, each]) for each in SEVERITIES)} |"
    yield f"| **median** | {' | '.join(_median([delay[c, each] for c, *_ in rows]) for each in SEVERITIES)} |\n"


def _late_shift(num_calibration: int) -> Iterator[str]:
    """Yield the table of the delay after a clean beginning."""
    clean = predictions(NAME, "source", "clean|0")
    keys, scores = np.array(clean["key"].to_pylist()), np.asarray(clean["confidence"], np.float64)
    order = np.random.default_rng(0).permutation(len(keys))
    calibration, before = order[:num_calibration], order[num_calibration : 2 * num_calibration]
    seen = {*keys[calibration], *keys[before]}
    delays: dict[int, list[int | None]] = {severity: [] for severity in SEVERITIES}
    with open_metrics(Locations.from_environment().metrics) as connection:
        cells = query(connection, _DELAYS, [NAME])
    for corruption, severity in zip(cells.column("corruption"), cells.column("severity"), strict=True):
        table = predictions(NAME, "source", f"{corruption}|{severity}")
        shifted = np.asarray(table["confidence"], np.float64)[[key not in seen for key in table["key"].to_pylist()]]
        stream = np.concatenate([scores[before], shifted])
        at = alarm_at(log_wealth(conformal_ranks(scores[calibration], stream, seed=0)), level=LEVELS[0])
        delays[severity].append(None if at is None else at - len(before))
    yield f"""The same, median over the corruptions, where {num_calibration:,} other clean images come first, and no
corrupted image is a version of a clean one before it; below 0 would be an alarm before the shift.

| | {" | ".join(f"severity {each}" for each in SEVERITIES)} |
|---|{"---|" * len(SEVERITIES)}
| median delay | {" | ".join(_median(delays[each]) for each in SEVERITIES)} |
| shifts without an alarm | {" | ".join(str(sum(at is None for at in delays[each])) for each in SEVERITIES)} |"""


def _median(delays: list[int | None]) -> str:
    """Return the median of *delays*, in which None is later than any."""
    middle = sorted(math.inf if each is None else each for each in delays)[len(delays) // 2]
    return _shown(None if middle == math.inf else int(middle))


def _shown(delay: int | None) -> str:
    return "-" if delay is None else f"{delay:,}"


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 400)
