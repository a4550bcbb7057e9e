"""Tent: entropy minimisation at test time.

Wang et al. 2021, "Tent: Fully test-time adaptation by entropy minimization", sections 3.1 to 3.3. The loss is the
entropy of the predictions. Weight and bias of the norm layers adapt, and batch norm uses batch statistics. The
prediction comes from the forward pass before the update.
"""

from tta_pipeline.methods.entropy.entropy_method import EntropyMethod


class Tent(EntropyMethod):
    """Minimises the mean entropy of each batch over the affine parameters of all norm layers."""

    name = "tent"
