"""The page docs/results/parity.md."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev, variance
from types import MappingProxyType

from bench.parity.clones import check_out
from bench.parity.comparison import (
    FIRST_BATCHES,
    MOST_DIFFERING_SHARE,
    MOST_RELATIVE_DIFFERENCE,
    Agreement,
    Comparison,
)
from bench.parity.comparisons import NOT_COMPARED, WITHOUT_CLONE

_HEAD = """# Parity

This page compares our methods with the code of their authors, on the same network, pixels, order, hyperparameters and
random draws. A row is repeated by one command:

<!-- not run by the tests: it needs a clone of the authors' repository and CIFAR-10 -->
```sh
python -m bench.parity tent --clone tent --cifar CIFAR
python -m bench.parity 'cotta, draws: batch' --clone test-time-adaptation --cifar CIFAR --images 800
```

A name is a method or the title of a row; `--clone` is a clone of the row's repository, at the commit [below](#code).
Nothing is fetched: without the clone, the command prints how to get it. `CIFAR` is a folder with `test.tar.gz` and
`train.tar.gz`, whose members are `<split>/<class>/<name>.jpg`, and with `resnet.py` and `resnet20-12fca82f.th` of
akamaster/pytorch_resnet_cifar10. The whole page is made by
`python -m bench.parity --authors CLONES --cifar CIFAR --output docs/results/parity.md`, which needs every clone, and hours.

{scene}

Both sides have the hyperparameters of the preset `cifar`, with the changes that the table names, and start from the
same seed. The authors' code runs unchanged, with five exceptions: the modules from which it reads data and builds
models are replaced by stand-ins, RoTTA's torchvision arguments have their current names, UniEnt's Gaussians start from
our draw, SoTTA's memory draws our numbers, and code that asks for CUDA by name gets the CPU.
mariodoebler/test-time-adaptation replaces repositories that
cannot be imported or have no settings for CIFAR. Where a loader makes the views there (AdaContrast, MEMO, TTAug), both
sides use our views. REM and IMSE need
a ViT: both sides have a small one with random weights, whose error means nothing. Methods for a CLIP use the ResNet-20
as the image tower, and the rows of its last layer as text features, which pass a layer norm for BATCLIP; rows with the
name of a CLIP have that ViT as the image tower. Both sides compute in float32.

*Equal*: in the first {first} batches no logit differs by more than {bound:g} of the largest, some thousand times the
rounding of float32, and over the stream at most {share:.1%} of the predictions differ, since updates enlarge rounding.
Each difference must have a reason, and the comparison without that reason must be equal; otherwise the command exits
with status 1.

{columns}
"""
_SEEDS = """Where each image of a view has its own draws in ours, and a whole batch has one in theirs, single
predictions cannot agree; the errors over seeds should. By `python -m bench.parity NAME --images M --seeds N`; ± is the
standard deviation over seeds. Three rows with such draws have no line. `cmf` with its preset steps as `roid` does,
whose line is here. `petta` differs by class as well, so its errors would show two reasons at once. `rmt` warms up
before each seed: five seeds would take about ten minutes of a core, by the times of its method, and were not run."""
_ORDERS = """The Dirichlet order and the samplers that papers used, on labels alone, for three domains in turn. Both
sides get the same numbers where they draw: the shares of each class, and the order of the classes in a slot. By
`python -m bench.parity.orders --authors CLONES`, which needs no data. NOTE's sampler is that of
mariodoebler/test-time-adaptation, whose loader sets its seed anew for each domain, so that all domains have one order;
RoTTA's and ours draw for each."""
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


def document(
    comparisons: Sequence[Comparison],
    found: Mapping[str, Agreement],
    *,
    commits: Mapping[str, str],
    scene: str,
    over_seeds: Mapping[str, Sequence[Agreement]] = MappingProxyType({}),
    orders: str = "",
) -> str:
    """Return the page: *found* and *over_seeds* by title, *commits* by repository, and a sentence about the *scene*.

    *orders* is the table of samplers.
    """
    done = [each for each in comparisons if each.title in found]
    left_out = [f"`{each.title}` ({each.repository})" for each in comparisons if each.title not in found]
    head = _HEAD.format(
        scene=scene,
        first=FIRST_BATCHES,
        bound=MOST_RELATIVE_DIFFERENCE,
        share=MOST_DIFFERING_SHARE,
        columns=headings(),
    )
    rows = "\n".join(row(each, found[each.title]) for each in done)
    reasons = [reason_of(each) for each in done if each.reason]
    seeds = [describe_seeds(title, agreements) for title, agreements in over_seeds.items()]
    code = [
        f"- {repository}: `{check_out(repository, commit)}`"
        + (f"; the rows above were made with {WITHOUT_CLONE[repository]}" if repository in WITHOUT_CLONE else "")
        for repository, commit in sorted(commits.items())
    ]
    code += [f"- not compared: `{method}`, {why}" for method, why in NOT_COMPARED.items()]
    code += [f"- left out, since there was no clone: {', '.join(left_out)}"] if left_out else []
    sections = [head + rows, "", "## Reasons", "", *reasons, *_seeds_section(seeds), *orders_section(orders)]
    return "\n".join([*sections, "", "## Code", "", *code, ""])


def headings() -> str:
    """Return the head of the table."""
    return _cells(_COLUMNS) + "\n" + _cells(["---"] * len(_COLUMNS))


def reason_of(comparison: Comparison) -> str:
    """Return the line that says why *comparison* differs, and which one shows it."""
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


def _seeds_section(lines: Sequence[str]) -> list[str]:
    return ["", "## Over seeds", "", _SEEDS, "", *lines] if lines else []


def orders_section(orders: str) -> list[str]:
    """Return the lines about the table *orders* of samplers; none without one."""
    return ["", "## Orders", "", _ORDERS, "", orders] if orders else []


def row(comparison: Comparison, found: Agreement) -> str:
    """Return the row of *comparison*."""
    changes = [
        f"`{name}` {' and '.join(value) if isinstance(value, tuple) else value}"
        for name, value in comparison.changes.items()
    ]
    outputs = [f"{comparison.num_outputs:,} outputs"] if comparison.num_outputs else []
    resets = [f"{found.num_resets} resets"] if found.num_resets else []
    is_explained = "differs, explained" if comparison.reason else "**differs**"
    return _cells(
        [
            comparison.title,
            comparison.repository,
            ", ".join(changes + outputs + resets),
            f"{found.num_images:,}",
            f"{found.num_differing}",
            f"{found.first_logit_difference:.0e}",
            f"{found.logit_difference:.0e}",
            f"{100 * found.our_error:.2f}",
            f"{100 * found.their_error:.2f}",
            "equal" if found.is_equal else is_explained,
        ]
    )


def _cells(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"
