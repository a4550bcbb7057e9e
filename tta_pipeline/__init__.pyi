from tta_pipeline.api import shard as shard
from tta_pipeline.api import verify as verify
from tta_pipeline.defs.component import RobustnessBenchmark as RobustnessBenchmark
from tta_pipeline.errors import PipelineError as PipelineError
from tta_pipeline.evaluation.evaluate_shards import evaluate as evaluate
from tta_pipeline.loading.dataset import Shards as Shards
from tta_pipeline.loading.dataset import open_shards as open_shards
from tta_pipeline.methods import build as build
from tta_pipeline.models.load_by_name import load_model as load_model
from tta_pipeline.report.arrow_query import query as query
from tta_pipeline.report.kept_predictions import predictions as predictions
from tta_pipeline.results.evaluation_record import Evaluation as Evaluation

__all__ = [
    "Evaluation", "PipelineError", "RobustnessBenchmark", "Shards", "__version__", "build", "evaluate", "load_model",
    "open_shards", "predictions", "query", "shard", "verify",
]  # fmt: skip
__version__: str
