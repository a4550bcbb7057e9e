"""Methods that adapt on a part of the stream, and predict the rest as they are by then."""

import pytest
import torch

from tta_pipeline.benchmarks.protocol import Protocol
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver, SourceModel
from tta_pipeline.domain.locations import Locations
from tta_pipeline.methods import build
from tta_pipeline_tests.evaluation.small import CONTRAST_5, SEVERITY_5, evaluated, killed_after, results_of, run_at

IMAGES = torch.rand(26, 3, 8, 8, generator=torch.Generator().manual_seed(0)).split(4)
"""Seven batches, the last one smaller."""


def driver_of(part: dict[str, float]) -> ProtocolDriver:
    """Return the driver of a fresh `tent` on a small network, always the same, that adapts on *part*."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    source = SourceModel(make=lambda: network, synchronize=lambda: None)
    method = build("tent", network, num_classes=4 * 36, preset="cifar", lr=0.1)
    return Protocol.model_validate({"adapt": part}).drive(method, source)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"first": 8}, [True, True, False, False, False, False, False]),
        ({"every": 3}, [True, False, False, True, False, False, True]),
        ({"share": 0.4}, [True, False, False, True, False, True, False]),
    ],
    ids=["first", "every", "share"],
)
def test_each_part_has_its_batches(part: dict[str, float], expected: list[bool]):
    """The first samples, every third batch, or two fifths of the samples; the weights change with no other batch."""
    driver, found = driver_of(part), []
    for images in IMAGES:
        before = driver.method.model[1].weight.clone()
        driver.predict(images)
        found.append(not torch.equal(before, driver.method.model[1].weight))

    assert expected == found
    num_left = sum(len(images) for images, adapts in zip(IMAGES, expected, strict=True) if not adapts)
    assert (num_left, 26, 26 - num_left) == (
        driver.num_unadapted, driver.method.num_forwards, driver.method.num_backwards,
    )  # fmt: skip


@pytest.mark.parametrize("part", [{"first": 8}, {"every": 3}, {"share": 0.4}], ids=["first", "every", "share"])
@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_stream_that_goes_on_keeps_its_place(part: dict[str, float], stop: int):
    """Wherever it stopped, every later prediction is the same, bit for bit."""
    whole, first, second = (driver_of(part) for _ in range(3))
    predicted = [whole.predict(images) for images in IMAGES]
    for images in IMAGES[:stop]:
        first.predict(images)
    second.load_state_dict(first.state_dict())

    torch.testing.assert_close(predicted[stop:], list(map(second.predict, IMAGES[stop:])), rtol=0, atol=0)


def test_a_stream_that_was_killed_inside_its_part_goes_on_to_the_same_end(data: Locations):
    """In its second cell, which begins with the sixth batch."""
    protocol = {"shift": "continual", "adapt": {"every": 4}}
    own = results_of(data, protocol=protocol, batch_size=8, subset={"first": 40}, hyperparameters={"lr": 0.1})
    with killed_after(1):
        run_at(own, SEVERITY_5)
    resumed = run_at(own, SEVERITY_5)

    whole = run_at(own, SEVERITY_5, force=True)

    assert [each.predicted.predictions_sha256 for each in whole] == [
        each.predicted.predictions_sha256 for each in resumed
    ]
    assert [24, 32] == [each.cost.num_unadapted for each in resumed]


@pytest.mark.parametrize("part", [{"every": 1}, {"share": 1}, {"first": 160}], ids=["every", "share", "first"])
def test_a_part_that_is_the_whole_stream_changes_nothing(data: Locations, part: dict[str, float]):
    """The predictions are those of the protocol without a part."""
    usual, same = (
        evaluated(results_of(data, protocol=protocol), CONTRAST_5)[0]
        for protocol in ("reset_each_shift", {"adapt": part})
    )

    assert (usual["predictions_sha256"], 0) == (same["predictions_sha256"], same["num_unadapted"])
    assert usual["num_backwards"] == same["num_backwards"] == 150


def test_tables_name_the_part():
    """So that experiments of one list differ in name."""
    parts = [{"first": 512}, {"every": 10}, {"share": 0.01}]

    assert ["continual_first_512", "continual_every_10", "continual_share_0_01"] == [
        Protocol.model_validate({"shift": "continual", "adapt": part}).name for part in parts
    ]
