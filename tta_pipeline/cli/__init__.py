"""The command line: one file for each verb, in the order of `--help` here."""

import click

from tta_pipeline import __version__
from tta_pipeline.cli.adopt import adopt
from tta_pipeline.cli.check_model import check_model
from tta_pipeline.cli.clean import clean
from tta_pipeline.cli.doctor import doctor
from tta_pipeline.cli.download import download
from tta_pipeline.cli.evaluate import evaluate
from tta_pipeline.cli.experiments import experiments
from tta_pipeline.cli.fetch import fetch
from tta_pipeline.cli.fetch_results import fetch_results
from tta_pipeline.cli.init import init
from tta_pipeline.cli.loader_bench import loader_bench
from tta_pipeline.cli.metrics import metrics
from tta_pipeline.cli.new_benchmark import new_benchmark
from tta_pipeline.cli.publish_data import publish_data
from tta_pipeline.cli.publish_results import publish_results
from tta_pipeline.cli.rebuild_metrics import rebuild_metrics
from tta_pipeline.cli.repartition import repartition
from tta_pipeline.cli.reproduce import reproduce
from tta_pipeline.cli.shard import shard
from tta_pipeline.cli.stop_training import stop_training
from tta_pipeline.cli.submit import submit
from tta_pipeline.cli.transform import transform
from tta_pipeline.cli.tune import tune
from tta_pipeline.cli.verify import verify
from tta_pipeline.cli.why import why
from tta_pipeline.util.source_code import import_from_here

_VERBS = (
    metrics, rebuild_metrics, fetch_results, shard, verify, adopt, fetch, download, repartition, transform,
    publish_data, publish_results, reproduce, loader_bench, evaluate, tune, submit, doctor, init, new_benchmark,
    experiments, check_model, stop_training, why, clean,
)  # fmt: skip


class _Verbs(click.Group):
    """The verbs. No argument may hold a NUL: system calls behind the verbs would raise errors that nobody catches."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse an argument that holds a NUL."""
        for argument in args:
            if "\0" in argument:
                raise click.UsageError(f"an argument is {argument!r}; expected one without the character NUL")
        return super().parse_args(ctx, args)


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Robustness benchmarks of image classifiers, from archives to a leaderboard.

    Data lies under $TTA_DATA_ROOT, by default data/ in the working directory. Shards that others maintain lie under
    $TTA_SHARDS_ROOT.
    """
    import_from_here()


for _verb in _VERBS:
    # In a raw docstring, \b is two characters. Click leaves lines unwrapped only after the real backspace character.
    _verb.help = (_verb.help or "").replace("\\b\n", "\b\n")
    main.add_command(_verb)
