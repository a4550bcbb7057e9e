"""The division of a benchmark's streams into parts."""

from collections import Counter

import pytest
import yaml

from tta_pipeline.benchmarks.load_files import load_all_benchmarks
from tta_pipeline.benchmarks.stream_plans import partition_keys, stream_plans
from tta_pipeline.domain.cells import WHOLE, StreamKey
from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.work.costs import Costs
from tta_pipeline.evaluation.work.parts import Part, divide
from tta_pipeline_tests.conftest import SMALL

MODEL = {"model": "cnn"}
EXPERIMENTS = {
    "source": {**MODEL, "method": "source"},
    "tent": {**MODEL, "method": "tent", "seeds": [0, 1]},
    "memo": {**MODEL, "method": "memo", "subset": {"first": 1000}},
    "continual": {**MODEL, "method": "tent", "protocol": "continual"},
    "gradual": {**MODEL, "method": "tent", "protocol": "gradual"},
}


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory):
    """All corruptions, streams with and without state, methods of one pass and of many."""
    locations = Locations(root=tmp_path_factory.mktemp("parts"))
    locations.benchmark_files.mkdir()
    content = yaml.safe_load(SMALL) | {"experiments": EXPERIMENTS}
    del content["corruptions"], content["severities"]
    (locations.benchmark_files / "small.yaml").write_text(yaml.safe_dump(content))
    return load_all_benchmarks(locations).benchmark("small")


def places_of(benchmark, names=tuple(EXPERIMENTS)):
    """Return every place of the experiments *names*."""
    return [(name, key) for name in names for key in partition_keys(benchmark, name)]


def test_each_stream_is_in_exactly_one_of_parts_that_cost_about_the_same(benchmark):
    """One over several cells is never cut; no part costs more than its share and a cell, unless it has only streams."""
    costs, places = Costs.from_file(benchmark), places_of(benchmark)
    cost_of = {
        (name, key): sum(costs.expected_s(name, plan) for plan in stream_plans(benchmark, name, key))
        for name, key in places
    }
    for num_parts in range(1, 61):
        parts = divide(benchmark, places, num_parts)
        share = sum(cost_of.values()) / num_parts

        assert num_parts == len(parts)
        assert Counter(places) == Counter(place for part in parts for place in part)
        for part in parts:
            is_of_streams = all(isinstance(key, StreamKey) for _, key in part)
            most = max(cost for (_, key), cost in cost_of.items() if is_of_streams or not isinstance(key, StreamKey))
            assert sum(cost_of[place] for place in part) <= share + most
    assert {("gradual", WHOLE)} in divide(benchmark, places_of(benchmark, ("continual", "gradual")), 2)


def test_few_parts_read_each_cell(benchmark):
    """All experiments of a cell are together, but where a part ends; whoever asks for one part gets that."""
    places = places_of(benchmark, ("source", "tent", "memo"))
    parts = divide(benchmark, places, 7)
    readers = Counter(key for part in parts for key in {key for _, key in part})

    assert readers.total() <= len(readers) + 6
    assert not any(isinstance(key, StreamKey) for key in readers)
    for number, part in enumerate(parts, start=1):
        assert part == Part(number=number, num_parts=7).places(benchmark, places)
