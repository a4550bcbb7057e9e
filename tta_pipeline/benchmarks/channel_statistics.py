"""Mean and standard deviation of a channel in a benchmark file, as fractions of the brightest value."""

from typing import Annotated

from pydantic import BeforeValidator, Field


def _refuse_eight_bits(value: object) -> object:
    if isinstance(value, int | float) and value > 1:
        raise ValueError(
            f"found {value:g}; expected at most 1, since pixels lie in [0, 1] before they are normalised: divide a "
            "mean or deviation of pixels up to 255 by 255"
        )
    return value


Mean = Annotated[float, Field(ge=0, le=1), BeforeValidator(_refuse_eight_bits)]
Deviation = Annotated[float, Field(gt=0, le=1), BeforeValidator(_refuse_eight_bits)]
