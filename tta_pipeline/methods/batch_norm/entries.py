"""The source model, and methods that change only the statistics of batch norm."""

from collections.abc import Mapping

from pydantic import Field

from tta_pipeline.methods.entry import PRESETS, RESNET_PRESETS, Hyperparameters, MethodEntry, Paper


class BnAlphaHyperparameters(Hyperparameters):
    """Hyperparameters of BN-alpha."""

    alpha: float = Field(default=0.1, ge=0, le=1)
    """Weight of the batch statistics; n / (N + n) for batches of n and a prior strength N."""


class BnEmaHyperparameters(Hyperparameters):
    """Hyperparameters of BN-EMA."""

    momentum: float = Field(default=0.1, gt=0, le=1)
    """Weight of a batch in the running statistics."""


_SCHNEIDER = Paper(
    authors="Schneider, Steffen and others",
    venue="NeurIPS",
    year=2020,
    arxiv="2006.16971",
    title="Improving robustness against common corruptions by covariate shift adaptation",
)
METHODS: Mapping[str, MethodEntry] = {
    "source": MethodEntry(
        implementation="tta_pipeline.methods.batch_norm.source:Source",
        predicts_frozen=True,
        summary="The model as it is, without adaptation.",
        presets=dict.fromkeys(PRESETS, Hyperparameters()),
    ),
    "norm": MethodEntry(
        implementation="tta_pipeline.methods.batch_norm.norm:Norm",
        predicts_frozen=True,
        summary="Batch norm uses the statistics of the current batch (BN-1).",
        layers="batch norm",
        presets=dict.fromkeys(RESNET_PRESETS, Hyperparameters()),
        min_batch_size=2,
        paper=_SCHNEIDER,
    ),
    "bn_alpha": MethodEntry(
        implementation="tta_pipeline.methods.batch_norm.bn_alpha:BnAlpha",
        predicts_frozen=True,
        summary="Batch norm mixes the statistics of the source and of the current batch.",
        layers="batch norm",
        presets=dict.fromkeys(RESNET_PRESETS, BnAlphaHyperparameters()),
        paper=_SCHNEIDER,
    ),
    "bn_ema": MethodEntry(
        implementation="tta_pipeline.methods.batch_norm.bn_ema:BnEma",
        predicts_frozen=True,
        summary="Batch norm keeps updating its running statistics.",
        adapts="statistics of batch norm",
        prediction="after the update",
        layers="batch norm",
        written_from="code of another benchmark",
        presets=dict.fromkeys(RESNET_PRESETS, BnEmaHyperparameters()),
        min_batch_size=2,
        passes=2,
    ),
}
