"""What is remembered: a queue of the latest rows, and a bank that stays balanced."""

import math
from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_pipeline.methods.teachers.memory_bank import BalancedBank, Queue


@settings(max_examples=60, deadline=None)
@given(capacity=st.integers(1, 9), counts=st.lists(st.integers(0, 12), max_size=8))
def test_a_queue_holds_the_latest_rows_in_step(capacity: int, counts: list[int]):
    """Whatever the sizes of the batches, the last rows of all stay, each with its partner."""
    queue, offered = Queue(capacity), []
    for count in counts:
        numbers = torch.arange(len(offered), len(offered) + count)
        queue.append(numbers.float().unsqueeze(1), numbers)
        offered += numbers.tolist()

    assert min(capacity, len(offered)) == len(queue)
    if counts:
        values, numbers = queue.rows()
        assert sorted(offered[-capacity:]) == sorted(numbers.tolist())
        assert torch.equal(values.flatten(), numbers.float())
    queue.clear()
    assert 0 == len(queue)


def bank_of(offers: list[tuple[int, float]], *, capacity: int, num_classes: int) -> BalancedBank:
    """Return a bank that was offered images whose one value is their number."""
    bank = BalancedBank(capacity, num_classes=num_classes, lambda_t=1, lambda_u=1)
    for number, (label, uncertainty) in enumerate(offers):
        bank.add(torch.full((3, 2, 2), float(number)), label=label, uncertainty=uncertainty)
    return bank


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 12),
    offers=st.lists(st.tuples(st.integers(0, 3), st.floats(0, math.log(4))), min_size=1, max_size=60),
)
def test_a_bank_stays_balanced(capacity: int, offers: list[tuple[int, float]]):
    """It holds no more than its capacity, of no class more than its share, and ages are those of what it holds."""
    bank = bank_of(offers, capacity=capacity, num_classes=4)
    numbers = bank.images()[:, 0, 0, 0].int().tolist()
    counts = Counter(offers[number][0] for number in numbers)

    assert 0 < len(bank) <= capacity
    assert len(set(numbers)) == len(numbers) == len(bank)
    assert max(counts.values()) <= math.ceil(capacity / 4)
    ages = [(len(offers) - number) / capacity for number in numbers]
    torch.testing.assert_close(torch.tensor(ages), bank.ages())


def test_the_uncertain_one_goes_first():
    """In a full class, a sure image takes the place of the unsure one, and an unsure one is turned away."""
    assert 1 == bank_of([(0, 1.0), (0, 0.1)], capacity=2, num_classes=2).images()[0, 0, 0, 0]
    assert 0 == bank_of([(0, 0.1), (0, 1.0)], capacity=2, num_classes=2).images()[0, 0, 0, 0]


def test_the_old_one_goes_first():
    """Of equally sure images the older one makes room."""
    assert [1] == bank_of([(0, 0.5), (0, 0.5)], capacity=2, num_classes=2).images()[:, 0, 0, 0].tolist()


def test_a_full_bank_makes_room_for_a_rare_class():
    """The class with most images gives one up."""
    offers = [(0, 0.9), (0, 0.8), (1, 0.1), (2, 0.1)]
    kept = bank_of(offers, capacity=3, num_classes=2 + 1).images()[:, 0, 0, 0].tolist()

    assert sorted(kept) == [1, 2, 3]
