"""Means are taken of one pass over a stream, never of segments of several."""

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tta_pipeline.results.chains import Link, choose_chain, ends_of_chains

NAMES = ("one", "two", "three")


def link(name: str, previous: str | None = None, *, at: int = 0, device: str = "cpu") -> Link:
    """Return a result called *name* that continued from *previous*."""
    return Link(
        file=f"{name}.json", sha256=name, previous=previous, finished_at=f"2026-01-01T00:00:{at:02d}", device=device
    )


def chosen(found: Mapping[str, Sequence[Link]]) -> list[str]:
    """Return the names of the results that count."""
    return [each.sha256 for each in choose_chain(NAMES, found)]


def test_the_longest_chain_counts():
    """Even if its first result is the newest."""
    found = {"one": [link("a1", at=1), link("b1", at=5)], "two": [link("b2", "b1", at=6)]}

    assert ["b1", "b2"] == chosen(found)


def test_of_equally_long_chains_the_one_of_fewest_devices_counts_then_the_oldest():
    """A chain that two cards computed stands back for a chain of one card, however old it is."""
    mixed = {"one": [link("a1", at=1)], "two": [link("a2", "a1", at=2, device="H100")]}
    pure = {"one": [link("b1", at=5)], "two": [link("b2", "b1", at=6)]}
    newer = {"one": [link("c1", at=7)], "two": [link("c2", "c1", at=8)]}
    both = {name: [*mixed[name], *newer[name], *pure[name]] for name in mixed}

    assert ["b1", "b2"] == chosen(both)


def test_a_result_without_its_predecessor_does_not_count():
    """The middle of a pass is lost: what follows it came from a state that nobody can check."""
    found = {"one": [link("a1")], "three": [link("a3", "a2")]}
    assert ["a1"] == chosen(found)

    found["two"] = [link("b2", "b1")]
    assert ["a1"] == chosen(found)


def test_a_resumed_pass_and_the_one_that_went_on_share_their_beginning():
    """A stream that was evaluated again from its second segment on has two ends; the older pass counts."""
    found = {
        "one": [link("a1", at=1)],
        "two": [link("b2", "a1", at=4), link("a2", "a1", at=2)],
        "three": [link("b3", "b2", at=5), link("a3", "a2", at=3)],
    }

    assert ["a1", "a2", "a3"] == chosen(found)
    assert [["a1"], ["a2", "b2"], ["a3", "b3"]] == [
        [each.sha256 for each in ends] for ends in ends_of_chains(NAMES, found)
    ]


def test_nothing_counts_of_nothing():
    """A stream without results has none."""
    assert [] == chosen({})
    assert [] == chosen({"two": [link("a2", "a1")]})


FILES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 9), st.sampled_from(["cpu", "H100"])), max_size=9
)


@given(files=FILES, order=st.randoms())
def test_the_choice_is_a_chain_and_depends_on_no_order(files: list[tuple[int, int, int, str]], order):
    """Each result continues from the one before it, and files may be listed in any order."""
    found: dict[str, list[Link]] = {name: [] for name in NAMES}
    for number, (at, before, finished, device) in enumerate(files):
        earlier = [each.sha256 for each in found[NAMES[at - 1]]] if at else []
        previous = earlier[before % len(earlier)] if earlier else None if at == 0 else "lost"
        found[NAMES[at]].append(link(f"f{number}", previous, at=finished, device=device))
    chain = choose_chain(NAMES, found)

    for before, after in itertools.pairwise([None, *chain]):
        assert after.previous == (before.sha256 if before else None)
    for links in found.values():
        order.shuffle(links)
    assert chain == choose_chain(NAMES, found)
