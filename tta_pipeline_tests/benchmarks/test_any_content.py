"""Whatever stands in one benchmark file, the others are read, and what is wrong with it is named."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tta_pipeline.benchmarks.load_files import UNEXPECTED_ERROR, load_all_benchmarks, load_benchmarks
from tta_pipeline.domain.locations import Locations
from tta_pipeline_tests.conftest import SMALL

ODD_VALUES: tuple[Any, ...] = (
    None, True, -1, 1.5, float("nan"), float("inf"), 2**63, "", " ", "a" * 300, "é" * 200, "a\nb", "../x", "~nobody/x",
    "http://[", "s3://", "[", "(", "%s", "{", "\u2028", "\U0001f600", "__main__:x", "a.b:c", "2001-01-01", [], {}, [[]],
    [None], ["a", "a"], {"x": None}, {"a" * 300: {}}, {"": 1}, {"base": 1}, {"protocols": [None]}, {"kind": {}},
)  # fmt: skip
SEVERAL = {
    "sets": {
        "imagenet_c": {"images": {"kind": "folder", "root": "x"}, "severities": [5]},
        "dusk": {"images": {"kind": "folder", "root": "x"}, "custom": {"names": ["evening"], "severities": [1]}},
    },
    "matrix": [{"models": ["cnn"], "methods": [{"eata": {"lr": 0.1}, "name": "fast"}], "protocols": ["continual"]}],
    "tuning": {"tent": {"grid": {"lr": [0.1]}, "severities": [3], "subset": {"first": 3}}},
    "image_size": 32,
    "models": {"cnn": {"kind": "torchvision", "architecture": "resnet18", "classes": "imagenet"}},
    "experiments": {"tent": {"model": "cnn", "method": "tent", "seeds": [0, 1], "subset": {"first": 3}}},
    "shards": {"samples_per_shard": 60},
    "title": "several",
}


def in_any_place(content: Any) -> list[tuple[Any, ...]]:
    """Return the way to each value of *content*."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [(), *((name, *way) for name, part in inner for way in in_any_place(part))]


def with_value(content: Any, way: tuple[Any, ...], value: Any) -> Any:
    """Return *content* with *value* at the end of *way*."""
    if not way:
        return value
    inner = with_value(content[way[0]], way[1:], value)
    if isinstance(content, dict):
        return {**content, way[0]: inner}
    return [inner if position == way[0] else part for position, part in enumerate(content)]


DOCUMENTS = (yaml.safe_load(SMALL), SEVERAL)
PLACES = [(document, way) for document in DOCUMENTS for way in in_any_place(document)]


@pytest.mark.parametrize("place", ["ftp://x/y", "~nobody_here/x"])
@pytest.mark.parametrize("kind", ["folder", "shards", "npy"])
def test_what_is_no_path_is_refused_when_the_file_is_read(tmp_path: Path, kind: str, place: str):
    """Not when its images are: `results list` would list what nobody can shard, and the home of no user is an error."""
    source = f'images: {{kind: {kind}, root: "{place}"}}'
    shards = "" if kind == "shards" else "shards: {samples_per_shard: 60}"
    model = "{kind: torchvision, architecture: resnet18}"
    text = f"title: x\n{source}\n{shards}\nimage_size: 32\nmodels: {{a: {model}}}\nexperiments: {{}}\n"
    (tmp_path / "mine.yaml").write_text(text)
    (tmp_path / "good.yaml").write_text(text.replace(place, "~/x"))

    loaded = load_benchmarks(tmp_path)

    assert ["good"] == list(loaded.benchmarks)
    assert place.partition(":")[0] in loaded.faults[0].sentence


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=st.sampled_from((*ODD_VALUES, *([each, each] for each in ODD_VALUES))))
def test_any_value_in_any_place_leaves_the_others(tmp_path: Path, place: tuple[Any, tuple[Any, ...]], value: Any):
    """What is not valid is a fault of that file, and not of its reader."""
    document, way = place
    content = with_value(document, way, value)
    locations = Locations(root=tmp_path)
    locations.benchmark_files.mkdir(exist_ok=True)
    (locations.benchmark_files / "bad.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))

    loaded = load_all_benchmarks(locations)

    assert "digits_c" in loaded.benchmarks
    assert all(fault.sentence.encode() and UNEXPECTED_ERROR not in fault.sentence for fault in loaded.faults)


def test_what_nobody_thought_of_is_a_fault_of_its_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A method of the user's own whose settings raise what nobody expects of settings; all else is read."""
    (tmp_path / "odd_method.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    odd = "  odd: {model: cnn, method: 'odd_method:METHOD', hyperparameters: {x: 0}}\n"
    (tmp_path / "mine.yaml").write_text(SMALL + odd)

    loaded = load_benchmarks(tmp_path)

    assert ["source", "norm", "tent"] == list(loaded.benchmarks["mine"].experiments)
    assert ["odd"] == [fault.experiment for fault in loaded.faults]
    assert "ZeroDivisionError" in loaded.faults[0].sentence
    assert str(tmp_path / "mine.yaml") in loaded.faults[0].sentence


ODD = """
from pydantic import field_validator
from tta_pipeline.methods.entry import Hyperparameters, MethodEntry

class Odd(Hyperparameters):
    x: int = 1

    @field_validator("x")
    @classmethod
    def _divides(cls, x):
        1 / x
        return x

METHOD = MethodEntry(implementation="odd_method:Odd", summary="", presets={"imagenet": Odd()})
"""
