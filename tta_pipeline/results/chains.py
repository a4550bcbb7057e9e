"""The one rule for which results of a stream count: one chain of results, in which each file names its predecessor.

A method carries its state from segment to segment, so a mean must never combine segments of different passes. Of
several passes, the longest counts. Ties go to the pass on the fewest devices, then to the pass with the oldest first
file. A later pass, such as another timing, never changes an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A result as a part of a chain."""

    file: str
    sha256: str
    previous: str | None
    """sha256 of the file before it; None for the first segment."""
    finished_at: str
    device: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _End:
    """A chain up to its last link."""

    link: Link
    before: "_End | None"
    first: Link
    devices: frozenset[str]

    @property
    def rank(self) -> tuple[int, str, str, str, str]:
        """The lowest counts."""
        first, last = self.first, self.link
        return len(self.devices), first.finished_at, first.sha256, last.finished_at, last.sha256


def choose_chain(fingerprints: Sequence[str], found: Mapping[str, Iterable[Link]]) -> tuple[Link, ...]:
    """Return the results that count of a stream, from its first segment on; it may be incomplete, or empty.

    Args:
        fingerprints: Fingerprint of each segment of the stream, in order.
        found: The results by fingerprint, without void ones.
    """
    ends = _ends(fingerprints, found)
    end = min(ends[-1], key=lambda each: each.rank) if ends else None
    chain: list[Link] = []
    while end is not None:
        chain.append(end.link)
        end = end.before
    return tuple(reversed(chain))


def ends_of_chains(fingerprints: Sequence[str], found: Mapping[str, Iterable[Link]]) -> tuple[tuple[Link, ...], ...]:
    """Return, for each segment that a chain reaches, the last links of all chains up to it, those that count first."""
    ends = _ends(fingerprints, found)
    return tuple(tuple(end.link for end in sorted(each, key=lambda end: end.rank)) for each in ends)


def _ends(fingerprints: Sequence[str], found: Mapping[str, Iterable[Link]]) -> list[list[_End]]:
    """Return the ends of all chains up to each segment, as far as any chain reaches."""
    ends: list[list[_End]] = []
    before: dict[str | None, _End | None] = {None: None}
    for fingerprint in fingerprints:
        links = (link for link in found.get(fingerprint, ()) if link.previous in before)
        if not (continued := [_continued(link, before[link.previous]) for link in links]):
            break
        ends.append(continued)
        before = {end.link.sha256: end for end in continued}
    return ends


def _continued(link: Link, before: _End | None) -> _End:
    if before is None:
        return _End(link=link, before=None, first=link, devices=frozenset((link.device,)))
    devices = before.devices if link.device in before.devices else before.devices | {link.device}
    return _End(link=link, before=before, first=before.first, devices=devices)
