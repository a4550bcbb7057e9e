"""The page docs/results/parity.md, and its data in parity.csv."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, stdev, variance

from bench.parity.comparison import (
    FIRST_BATCHES,
    MOST_DIFFERING_SHARE,
    MOST_RELATIVE_DIFFERENCE,
    Agreement,
    Comparison,
)
from bench.parity.comparisons import NOT_COMPARED, WITHOUT_CLONE
from bench.result_pages import Row, command, filled, table

COLUMNS = (
    "comparison", "repository", "commit", "hyperparameters", "images", "differing_predictions",
    "logits_first_batches", "logits_all", "our_error_percent", "their_error_percent", "result", "reason",
    "equal_without_it",
)  # fmt: skip
_HEADINGS = ("comparison", "images", "differ", "our error, %", "their error, %", "result")
_COMMANDS = """python -m bench.parity tent --clone tent --cifar CIFAR
python -m bench.parity 'cotta, augment_per: batch' --clone test-time-adaptation --cifar CIFAR --images 800"""
_REASONS = """- **Random draws.** We draw for each image of a view, the authors once per batch: `cotta`, `rotta`,
`petta`,
  `roid`, `cmf`, `rmt`. With `augment_per: batch` they agree.
- **Rounding.** Adam, AdamW or large first steps enlarge it: `tent` and `eata` in bfloat16, `shot_im`, `sotta`, `tpt`,
  `tps`, `onzeta`, `rmt`. With smaller steps, or on images that are less sure, they agree.
- **Our choice.** `bca` adds an image to the nearest embedding, `oga` caches in float32, `roid` and `cmf` multiply
  probabilities by the prior instead of logits, `rotta` and `petta` draw noise in the order of arrival,
  `petta` takes the divergence by class, and `adacontrast` enters labels after the loss.
- **Quirks that we do not copy.** `zoa` shifts a ResNet's features to a single number, `rem` adapts a norm layer that it
  means to leave out, `ecalp` chooses by chance among equal neighbours, `petta` without `symmetric` passes images only
  for statistics, and `rmt` goes on with the source images after the warm-up."""
_SEEDS = """If one side draws per image and the other per batch, single predictions cannot agree, but the mean errors
should. `python -m bench.parity NAME --images M --seeds N` compares them (± is the standard deviation over seeds):"""
_ORDERS = """`python -m bench.parity.orders --authors CLONES` compares the Dirichlet order with the samplers of RoTTA
and
NOTE, on labels alone and for three domains in turn. Both sides get the same random numbers. The toolkit's loader for
NOTE repeats one order for all domains; RoTTA and we draw one for each."""


def document(
    comparisons: Sequence[Comparison],
    rows: Sequence[Row],
    *,
    scene: str,
    over_seeds: Sequence[str] = (),
    orders: str = "",
) -> str:
    """Return the page: the *rows* of the data, and a sentence about the *scene*.

    *over_seeds* are lines about errors over seeds, and *orders* is the table of samplers.
    """
    done = {row["comparison"] for row in rows}
    left_out = [f"`{each.title}` ({each.repository})" for each in comparisons if each.title not in done]
    results = Counter(row["result"] for row in rows)
    shown = [
        (row["comparison"], f"{int(row['images']):,}", row["differing_predictions"], row["our_error_percent"],
         row["their_error_percent"], row["result"].removesuffix(", explained"))
        for row in rows
    ]  # fmt: skip
    without = [f"- left out, since there was no clone: {', '.join(left_out)}"] if left_out else []
    return filled(f"""# Parity with the authors' code

**Our methods predict what their authors' code predicts.** {results["equal"]} of {len(rows)} comparisons agree on the
same network, pixels, order, hyperparameters and random draws. The other {len(rows) - results["equal"]} differ for
reasons [below](#why-some-differ), and agree without them.

Look up your method in the table. You need the rest only if its row differs, or to check it yourself.

## Check a method yourself

{command(_COMMANDS, needs="a clone of the authors' repository and CIFAR-10")}

Name a method or a row. `--clone` is a clone of the authors' repository; without it, the command prints how to get it.
`CIFAR` is a folder with `train.tar.gz` and `test.tar.gz` (`<split>/<class>/<name>.jpg`), and with `resnet.py` and
`resnet20-12fca82f.th` from akamaster/pytorch_resnet_cifar10. The exit status is 1 if something differs without a
reason.

## Comparisons

{table(_HEADINGS, shown)}

*Differ* counts predictions. *Equal* means: in the first {FIRST_BATCHES} batches no logit differs by more than
{MOST_RELATIVE_DIFFERENCE:g} of the largest, and at most {100 * MOST_DIFFERING_SHARE:g} % of all predictions differ,
since
updates enlarge rounding. [`parity.csv`](parity.csv) has the repository and commit of each row, changed hyperparameters,
differences of logits, and the reason.

## Why some differ

{_REASONS}

## Setup and limits

{scene} Both sides use preset `cifar`, the same seed and float32, unless a row is marked bfloat16. The authors' code
runs unchanged except for stand-ins for data and models, renamed torchvision arguments, the CPU instead of CUDA, and our
random numbers in UniEnt, SoTTA and FOZO. mariodoebler/test-time-adaptation replaces repositories that cannot be
imported or have no settings for CIFAR. REM, IMSE, DPCore, FOZO, ZOA and rows with CLIP in their name use a small ViT
with random weights, so their errors mean nothing; ZOA's ResNet has random weights too. DPCore gets a batch of each
shift in turn, so that shifts come back. Other methods for CLIP use the ResNet-20 as image tower and its last layer as
text features.

Not compared:

{chr(10).join([*(f"- `{name}`: {why}." for name, why in NOT_COMPARED.items()), *without])}

{_section("Errors over seeds", _SEEDS, chr(10).join(over_seeds))}

{_section("Orders of streams", _ORDERS, orders)}
""")


def _section(title: str, text: str, found: str) -> str:
    return f"## {title}\n\n{text}\n\n{found}" if found else ""


def data_rows(
    comparisons: Sequence[Comparison], found: Mapping[str, Agreement], *, commits: Mapping[str, str]
) -> Iterator[Sequence[object]]:
    """Yield the row of each of *comparisons* that was *found*, by title; *commits* are by repository."""
    for each in comparisons:
        if each.title in found:
            agreement = found[each.title]
            note = f" ({WITHOUT_CLONE[each.repository]})" if each.repository in WITHOUT_CLONE else ""
            yield (
                each.title, each.repository, f"{commits[each.repository]}{note}", _changes(each, agreement),
                agreement.num_images, agreement.num_differing, f"{agreement.first_logit_difference:.0e}",
                f"{agreement.logit_difference:.0e}", f"{100 * agreement.our_error:.2f}",
                f"{100 * agreement.their_error:.2f}", _result(each, agreement), each.reason, each.shown_by,
            )  # fmt: skip


_COLUMNS = (
    "comparison",
    "code",
    "hyperparameters",
    "images",
    "predictions that differ",
    f"logits, first {FIRST_BATCHES} batches",
    "logits, all",
    "our error, %",
    "their error, %",
    "",
)


def headings() -> str:
    """Return the head of the table that the command prints."""
    return _cells(_COLUMNS) + "\n" + _cells(["---"] * len(_COLUMNS))


def reason_of(comparison: Comparison) -> str:
    """Return the line with the reason why *comparison* differs, and which one shows it."""
    return f"- {comparison.title}: {comparison.reason}. Without: {comparison.shown_by}."


def describe_seeds(title: str, agreements: Sequence[Agreement]) -> str:
    """Return the line about the errors of both sides over seeds, with the standard error of their difference."""
    ours, theirs = ([100 * getattr(each, side) for each in agreements] for side in ("our_error", "their_error"))
    error = math.sqrt((variance(ours) + variance(theirs)) / len(agreements))
    return (
        f"- {title}, {len(agreements)} seeds, {agreements[0].num_images:,} images: our error {mean(ours):.2f} ± "
        f"{stdev(ours):.2f} %, theirs {mean(theirs):.2f} ± {stdev(theirs):.2f} %; the means differ by "
        f"{mean(ours) - mean(theirs):+.2f}, with a standard error of {error:.2f}"
    )


def row(comparison: Comparison, found: Agreement) -> str:
    """Return the row of *comparison* in the table that the command prints."""
    return _cells(
        [
            comparison.title,
            comparison.repository,
            _changes(comparison, found),
            f"{found.num_images:,}",
            f"{found.num_differing}",
            f"{found.first_logit_difference:.0e}",
            f"{found.logit_difference:.0e}",
            f"{100 * found.our_error:.2f}",
            f"{100 * found.their_error:.2f}",
            _result(comparison, found),
        ]
    )


def _changes(comparison: Comparison, found: Agreement) -> str:
    """Return the hyperparameters that are not the preset's, and the resets."""
    changes = [
        f"`{name}` {' and '.join(value) if isinstance(value, tuple) else value}"
        for name, value in comparison.changes.items()
    ]
    outputs = [f"{comparison.num_outputs:,} outputs"] if comparison.num_outputs else []
    resets = [f"{found.num_resets} resets"] if found.num_resets else []
    return ", ".join(changes + outputs + resets)


def _result(comparison: Comparison, found: Agreement) -> str:
    if found.is_equal:
        return "equal"
    return "differs, explained" if comparison.reason else "**differs**"


def _cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"
