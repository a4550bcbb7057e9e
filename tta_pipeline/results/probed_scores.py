"""Scores that an evaluation has only if it probes: they cost passes or memory, and choose hyperparameters."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tta_pipeline.results.record_fields import FORBID_UNKNOWN_FIELDS, Column

Probe = Literal["neighbourhood", "second_view", "source"]
"""What is asked of each batch besides the prediction: `neighbourhood` keeps the probabilities of all samples,
`second_view` predicts a shifted view from the same state, and `source` predicts by the source model."""


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class ProbedScores:
    """Scores of one cell by probes, none of which needs a label; None: not probed, or a logit is not finite."""

    neighbourhood_density: Annotated[
        float | None,
        Column("Soft neighbourhood density of the predictions, in nats, by no label; NULL if not probed", at_least=0),
    ] = None
    view_agreement: Annotated[
        float | None,
        Column(
            "Share of predictions that a shifted view of the image shares, by no label; NULL if not probed",
            at_least=0, at_most=1,
        ),
    ] = None  # fmt: skip
