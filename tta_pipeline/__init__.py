"""Robustness benchmarks of image classifiers, from archives to a leaderboard.

In a notebook or a script, `import tta_pipeline as tta`: see docs/guides/python.md. Each name here is imported when it
is first used, so that importing the package imports neither torch nor Dagster.
"""

from importlib import import_module

__version__ = "0.3.0"
__all__ = [
    "Evaluation", "PipelineError", "RobustnessBenchmark", "Shards", "__version__", "build", "evaluate", "load_model",
    "open_shards", "predictions", "query", "shard", "verify",
]  # fmt: skip
_HOME = {
    "Evaluation": "results.evaluation_record",
    "PipelineError": "errors",
    "RobustnessBenchmark": "defs.component",
    "Shards": "loading.dataset",
    "build": "methods",
    "evaluate": "evaluation.evaluate_shards",
    "load_model": "models.load_by_name",
    "open_shards": "loading.dataset",
    "predictions": "report.kept_predictions",
    "query": "report.arrow_query",
    "shard": "api",
    "verify": "api",
}
"""Module of each name, below this package."""


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; expected one of {', '.join(__all__)}")
    found: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
