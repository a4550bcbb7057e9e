"""Every pair of experiments, as the pages compare them."""

import numpy as np

from tta_pipeline.report.significance.pairwise import WrongSamples, compare_pairs
from tta_pipeline.shards.photographs import Numbered


def judged(*is_wrong: bool) -> WrongSamples:
    """Return a cell that enters the mean."""
    shown = Numbered(group=0, numbers=np.arange(len(is_wrong)))
    return WrongSamples(
        samples="same", photographs=shown, cell="fog|1", seed=0, counts_in_mean=True, is_wrong=np.array(is_wrong)
    )


def test_the_means_of_a_pair_are_over_the_cells_that_both_have():
    """An experiment with a hard cell more is not called worse for it: the means differ by just the change."""
    easy, hard = judged(True, False, False, False), judged(True, True, True, True)

    (pair,) = compare_pairs(
        {"a": {"fog|1": easy, "fog|5": hard}, "b": {"fog|1": judged(True, True, False, False)}}
    ).values()

    assert (0.25, 0.5) == pair.means
    assert pair.change is not None
    assert pair.change.mean == 0.25
    assert not pair.covers_both
