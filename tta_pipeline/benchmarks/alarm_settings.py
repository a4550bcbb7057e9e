"""The alarm of a benchmark: whose confidences it watches, and how often it may be false."""

from pydantic import Field

from tta_pipeline.util.config_model import ConfigModel
from tta_pipeline.util.identifiers import Name


class Alarm(ConfigModel):
    """A test that compares confidences with those on clean images, one image after the other."""

    experiment: Name | None = None
    """Experiment whose confidences are watched; None: the first with method `source`, since adapting changes the
    confidences."""
    level: float = Field(default=0.01, gt=0, lt=1)
    """Probability of a false alarm, however long one looks."""
    num_calibration: int = Field(default=1_000, ge=20, le=1_000_000)
    """Clean images that later ones are compared with, 20 to 1,000,000. They are drawn by name, and a stream is watched
    without its versions of them."""
    seed: int = Field(default=0, ge=0)
    """Seed of the draw, and of the order among equal confidences."""
