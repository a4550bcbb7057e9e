"""The command line: the tree of verbs, in the order of `--help`. Each verb is a file."""

import click

from tta_pipeline import __version__
from tta_pipeline.cli.verbs import Group
from tta_pipeline.util.source_code import import_from_here

_SHARDS = Group(
    help="Tar shards: make, verify, index, split, bench.",
    examples=["tta-pipeline shards make ImageNet-C shards --num-shards 16"],
    sections={
        "Verbs": {
            "make": "make_shards", "verify": "verify", "index": "index", "split": "split", "bench": "bench",
        },
    },
)  # fmt: skip
_MODELS = Group(
    help="Check the mean and std of a model.",
    examples=["tta-pipeline models check imagenet_c resnet50"],
    sections={"Verbs": {"check": "check_model"}},
)
_RESULTS = Group(
    help="List, publish, reproduce, add, void, verify, rebuild results.",
    examples=["tta-pipeline results list imagenet_c"],
    sections={
        "Verbs": {
            "list": "list_experiments", "publish": "publish_results", "reproduce": "reproduce", "add": "add_results",
            "void": "void_result", "verify": "verify_results", "rebuild": "rebuild",
        },
    },
)  # fmt: skip
_SECTIONS = {
    "Data and models": {
        "new-benchmark": "new_benchmark", "download": "download", "shards": _SHARDS, "models": _MODELS,
    },
    "Evaluate": {"run": "run", "evaluate": "evaluate", "tune": "tune"},
    "Results": {
        "leaderboard": "leaderboard", "query": "query", "compare": "compare", "why": "why", "results": _RESULTS,
    },
    "Machines": {"submit": "submit"},
    "Project": {"init": "init", "doctor": "doctor", "prune": "prune"},
}  # fmt: skip


@click.group(
    cls=Group,
    sections=_SECTIONS,
    examples=["tta-pipeline download imagenet_c archives"],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__)
def main() -> None:
    """Robustness benchmarks of image classifiers, from archives to a leaderboard.

    Data is stored in $TTA_DATA_ROOT, by default data/ in the working directory. Shared shards are read from
    $TTA_SHARDS_ROOT.
    """
    import_from_here()
