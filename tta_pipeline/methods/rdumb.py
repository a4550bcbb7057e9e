"""RDumb: ETA that resets itself every thousand steps.

Press et al. 2023, "RDumb: A simple approach that questions our progress in continual test-time adaptation": ETA with
the rule "periodic" (`resets`), which also forgets the samples seen.
"""

from tta_pipeline.methods.eta import Eta


class Rdumb(Eta):
    """Adapts as ETA and, by its preset, resets at regular intervals."""

    name = "rdumb"
