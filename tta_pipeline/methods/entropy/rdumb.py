"""RDumb: ETA that resets to the source model every 1000 steps.

Press et al. 2023, "RDumb: A simple approach that questions our progress in continual test-time adaptation". This is
ETA with the reset rule "periodic" (`resets`); a reset also forgets the earlier predictions.
"""

from tta_pipeline.methods.entropy.eta import Eta


class Rdumb(Eta):
    """ETA that, by its preset, resets at regular intervals."""

    name = "rdumb"
