"""Definition of a trial: one combination of a tuning's grid, and what its evaluations yield."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from tta_pipeline.results.record_fields import FORBID_UNKNOWN_FIELDS, Column

Value = bool | int | float | str
"""A value of a hyperparameter."""


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One combination of the grid, evaluated on every cell of the tuning.

    Scores without labels are means over evaluations; None if not enabled, and if a logit is not finite.
    """

    trial: Annotated[str, Column("Name of the trial: a hash of its values")]
    hyperparameters: Annotated[str, Column("Values of the grid, by hyperparameter", sql="JSON")]
    error: Annotated[
        float,
        Column("Mean over evaluations of the top-1 error in [0, 1]", at_least=0, at_most=1),
    ]
    errors: Annotated[
        tuple[float, ...],
        Column("Top-1 error of each evaluation: a cell, in each stream and with each seed", at_least=0, at_most=1),
    ]
    cells: Annotated[tuple[str, ...], Column("Cell of each evaluation, as speckle_noise|5")]
    mean_entropy: Annotated[
        float | None, Column("Mean entropy of the predictions, in nats; NULL if a logit is not finite", at_least=0)
    ]
    view_agreement: Annotated[
        float | None,
        Column("Share of predictions that a shifted view shares; NULL if not enabled", at_least=0, at_most=1),
    ]
    neighbourhood_density: Annotated[
        float | None, Column("Soft neighbourhood density, in nats; NULL if not enabled", at_least=0)
    ]
    source_agreement: Annotated[
        float | None,
        Column("Share of predictions that the source model shares; NULL if not enabled", at_least=0, at_most=1),
    ]
    num_samples: Annotated[int, Column("Images of the smallest evaluation", above=0)]
    num_diverged: Annotated[int, Column("Evaluations with a broken model, as defined by diverged", at_least=0)]
    wall_s: Annotated[float, Column("Sum of the evaluations' wall_s", above=0)]

    @property
    def values(self) -> Mapping[str, Value]:
        """The values, by hyperparameter."""
        found: Mapping[str, Value] = json.loads(self.hyperparameters)
        return found
