"""The page docs/parity.md."""

from collections.abc import Mapping, Sequence

from bench.parity.comparison import (
    FIRST_BATCHES,
    MOST_DIFFERING_SHARE,
    MOST_RELATIVE_DIFFERENCE,
    Agreement,
    Comparison,
)
from bench.parity.comparisons import NOT_COMPARED

_HEAD = """# Parity

Our methods beside the code of their authors, with the same network, pixels, order, hyperparameters and random draws.
This page is made by

<!-- not run by the tests: it needs clones of the authors' repositories and CIFAR-10, and hours -->
```sh
python -m bench.parity --authors CLONES --cifar CIFAR --output docs/parity.md
```

{scene}

Both sides have the hyperparameters of the preset `cifar`, with the changes that the table names, and start from the
same seed. The authors' code runs as it is cloned; only what it imports to read data and to build models has a stand-in,
RoTTA's arguments of torchvision have the names of today, and where code asks for CUDA by name it gets the CPU.
mariodoebler/test-time-adaptation stands for repositories that cannot be imported or have no settings for CIFAR. Views
that a loader makes there, those of AdaContrast, MEMO and TTAug, are ours on both sides. REM needs a ViT: both sides
have a small one with random weights, whose error means nothing. Methods for a CLIP have the ResNet-20 as an image
tower, and the rows of its last layer as text features; on both sides in float32.

*Equal*: in the first {first} batches no logit differs by more than {bound:g} of the largest, some thousand times the
rounding of float32, and over the stream at most {share:.1%} of the predictions differ, since updates enlarge rounding.
A difference has its reason, and the comparison without that reason must be equal; otherwise the command ends with
status 1.

{columns}
"""
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
) -> str:
    """Return the page: *found* by title, *commits* by repository, and a sentence about the *scene*."""
    done = [each for each in comparisons if each.title in found]
    left_out = [f"`{each.title}` ({each.repository})" for each in comparisons if each.title not in found]
    head = _HEAD.format(
        scene=scene,
        first=FIRST_BATCHES,
        bound=MOST_RELATIVE_DIFFERENCE,
        share=MOST_DIFFERING_SHARE,
        columns=_cells(_COLUMNS) + "\n" + _cells(["---"] * len(_COLUMNS)),
    )
    rows = "\n".join(_row(each, found[each.title]) for each in done)
    reasons = [f"- {each.title}: {each.reason}. Without: {each.shown_by}." for each in done if each.reason]
    code = [f"- {repository}, `{commit}`" for repository, commit in sorted(commits.items())]
    code += [f"- not compared: `{method}`, {why}" for method, why in NOT_COMPARED.items()]
    code += [f"- left out, since there was no clone: {', '.join(left_out)}"] if left_out else []
    return "\n".join([head + rows, "", "## Reasons", "", *reasons, "", "## Code", "", *code, ""])


def _row(comparison: Comparison, found: Agreement) -> str:
    changes = [f"`{name}` {value}" for name, value in comparison.changes.items()]
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
