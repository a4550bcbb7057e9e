"""Plans beside what earlier submissions have under way."""

from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.work.pieces import Cut
from tta_pipeline.extras.cluster.under_way import apart_from, plan_beside
from tta_pipeline_tests.evaluation.work.test_pieces import KEYS, WORK, cut, range_of, work_at
from tta_pipeline_tests.evaluation.work.test_planning import change, planner_of


def test_what_is_under_way_is_not_planned_again(tmp_path):
    """What needs it is left out with a word: submissions do not wait for each other."""
    locations = Locations(root=tmp_path)
    change(locations)
    told = []
    planner = planner_of(locations, tell=told.append)
    all_pieces = plan_beside(planner, (), by="corruption", num_devices=1)

    assert () == plan_beside(planner, all_pieces, by="corruption", num_devices=1)
    assert () == plan_beside(planner, all_pieces[:1], by="corruption", num_devices=1)
    assert any(line.startswith("15 partitions need shards or models") for line in told)


@given(work=WORK, under_way=st.sets(st.sampled_from(KEYS)), by=st.sampled_from(get_args(Cut)))
def test_a_range_does_not_reach_over_what_is_under_way(work, under_way, by):
    """Two runs would evaluate the same cell at the same time."""
    busy = {work_at(*key).place for key in under_way}
    left = [each for each in work if each.place not in busy]

    assert not busy & {place for piece in cut(apart_from(left, busy), by=by) for place in range_of(piece)}
