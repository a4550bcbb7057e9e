"""Every pair of experiments, as the pages compare them."""

from dataclasses import replace

import numpy as np

from tta_pipeline.report.pages.comparison import verdict_on
from tta_pipeline.report.significance.pairwise import WrongSamples, compare_pairs
from tta_pipeline.shards.photographs import Numbered


def judged(*is_wrong: bool) -> WrongSamples:
    """Return a cell that enters the mean."""
    shown = Numbered(group=0, numbers=np.arange(len(is_wrong)))
    return WrongSamples(
        samples="same",
        photographs=shown,
        cell="fog|1",
        seed=0,
        counts_in_mean=True,
        is_wrong=np.array(is_wrong),
        predictions_sha256=str(is_wrong),
        order_hash="1",
        batch_size=64,
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


def test_a_pair_that_saw_the_images_in_different_orders_is_marked():
    """The stored order and that of seed 0 are both called seed 0: the difference may be the order's."""
    stored = judged(True, False, False, False)

    for order_hash, same in (("1", True), ("2", False)):
        shuffled = replace(judged(True, True, False, False), order_hash=order_hash)
        (pair,) = compare_pairs({"a": {"fog|1": stored}, "b": {"fog|1": shuffled}}).values()

        assert same == pair.same_order
        assert same == ("in this order" in str(verdict_on(("a", "b"), pair)))


def test_a_pair_that_predicts_the_same_is_told_so():
    """As `compare` says, instead of a difference of 0 points; equal errors alone are not enough."""
    cell = judged(True, False, False)

    for other, is_same in ((cell, True), (replace(cell, predictions_sha256="other classes"), False)):
        (pair,) = compare_pairs({"source": {"fog|1": cell}, "tent": {"fog|1": other}}).values()

        said = str(verdict_on(("source", "tent"), pair))
        assert is_same == said.startswith("All 3 predictions of source and tent over their common cells are the same")


def test_a_pair_with_the_source_model_is_over_every_seed():
    """Its predictions are the same in every order: one run has a partner in each of a method's runs of the cell."""
    source = replace(judged(True, True, False, False), ignores_stream=True)
    tent = {f"{seed}": replace(judged(True, False, False, False), seed=seed, order_hash=f"{seed}") for seed in (1, 2)}

    other = {"5": replace(source, cell="fog|5")}

    for more_of_source, more_of_tent in (({}, {}), (other, {}), ({}, other)):
        (pair,) = compare_pairs({"source": {"0": source} | more_of_source, "tent": tent | more_of_tent}).values()

        assert pair.change is not None
        assert (2, -0.25) == (pair.change.num_seeds, pair.change.mean)
        assert pair.covers_both == (not more_of_source and not more_of_tent)
        assert pair.same_order
