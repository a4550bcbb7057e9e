"""Tent: entropy minimisation at test time.

Wang et al. 2021, "Tent: Fully test-time adaptation by entropy minimization", sections 3.1 to 3.3: the entropy of the
prediction is the loss, weight and bias of the norm layers are the parameters, batch statistics normalise, and the
prediction is that of the forward pass before the update.
"""

from tta_pipeline.methods.entropy_method import EntropyMethod


class Tent(EntropyMethod):
    """Adapts the affine parameters of all norm layers by the mean entropy of each batch."""

    name = "tent"
