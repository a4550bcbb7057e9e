"""The command line: the tree of verbs, in the order of `--help`. Each verb is a file."""

import click

from tta_pipeline import __version__
from tta_pipeline.cli.adopt import adopt
from tta_pipeline.cli.bench import bench
from tta_pipeline.cli.check_model import check_model
from tta_pipeline.cli.clean import clean
from tta_pipeline.cli.compare import compare
from tta_pipeline.cli.doctor import doctor
from tta_pipeline.cli.download import download
from tta_pipeline.cli.evaluate import evaluate
from tta_pipeline.cli.fetch_results import fetch_results
from tta_pipeline.cli.init import init
from tta_pipeline.cli.list_experiments import list_experiments
from tta_pipeline.cli.make_shards import make_shards
from tta_pipeline.cli.metrics import metrics
from tta_pipeline.cli.new_benchmark import new_benchmark
from tta_pipeline.cli.publish_results import publish_results
from tta_pipeline.cli.rebuild import rebuild
from tta_pipeline.cli.reproduce import reproduce
from tta_pipeline.cli.run import run
from tta_pipeline.cli.split import split
from tta_pipeline.cli.submit import submit
from tta_pipeline.cli.tune import tune
from tta_pipeline.cli.verbs import Group
from tta_pipeline.cli.verify import verify
from tta_pipeline.cli.why import why
from tta_pipeline.util.source_code import import_from_here

_SHARDS = Group(
    help="Tar shards: make, verify, adopt, split, bench.",
    examples=["tta-pipeline shards make ImageNet-C shards --num-shards 16"],
    sections={
        "Verbs": {
            "make": make_shards, "verify": verify, "adopt": adopt, "split": split, "bench": bench,
        },
    },
)  # fmt: skip
_MODELS = Group(
    help="Check the mean and std of a model.",
    examples=["tta-pipeline models check imagenet_c resnet50"],
    sections={"Verbs": {"check": check_model}},
)
_RESULTS = Group(
    help="Progress of experiments; publish, reproduce, fetch, rebuild.",
    examples=["tta-pipeline results list imagenet_c"],
    sections={
        "Verbs": {
            "list": list_experiments, "publish": publish_results, "reproduce": reproduce, "fetch": fetch_results,
            "rebuild": rebuild,
        },
    },
)  # fmt: skip
_SECTIONS = {
    "Data and models": {
        "new-benchmark": new_benchmark, "download": download, "shards": _SHARDS, "models": _MODELS,
    },
    "Evaluate": {"run": run, "evaluate": evaluate, "tune": tune},
    "Results": {"metrics": metrics, "compare": compare, "why": why, "results": _RESULTS},
    "Machines": {"submit": submit},
    "Care": {"init": init, "doctor": doctor, "clean": clean},
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

    Data lies under $TTA_DATA_ROOT, by default data/ in the working directory. Shards that others maintain lie under
    $TTA_SHARDS_ROOT.
    """
    import_from_here()
