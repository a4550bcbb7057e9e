"""Looks at a watched folder: each content is in exactly one day, whatever happens to files and looks."""

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tta_pipeline.errors import ShardError, SourceError
from tta_pipeline.extras.watching.look import SEEN_FILE, Look, find_arriving, kept_contents, take_in

LATER_S = 1e10
"""A time at which every file has settled."""
NAMES = ("a.jpg", "b.jpg", "late/c.JPEG", "late/d.png")
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES), st.sampled_from([b"a", b"bc", b"def"])),
        st.tuples(st.just("remove"), st.sampled_from(NAMES)),
        st.tuples(st.just("rename"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
        st.tuples(st.just("look")),
        st.tuples(st.just("look and forget")),
        st.tuples(st.just("next day")),
    ),
    max_size=25,
)


def look_at(root: Path, kept: Path, day: str = "2026-11-01", *, now_s: float = LATER_S) -> Look:
    """Look, a minute after the files have settled."""
    return take_in(root, kept, day=day, settle_s=60, now_s=now_s)


def days_of(kept: Path) -> dict[bytes, list[str]]:
    """Return the days that have each content."""
    found: dict[bytes, list[str]] = {}
    for path in kept.glob("*/*"):
        found.setdefault(path.read_bytes(), []).append(path.parent.name)
    return found


@settings(max_examples=40, deadline=None)
@given(EVENTS)
def test_each_content_is_in_the_day_of_the_first_look_that_found_it(events: list[tuple]):
    """None is lost and none is there twice, after copies, deletions, late files and looks whose end was lost."""
    with tempfile.TemporaryDirectory() as folder:
        root, kept = Path(folder, "root"), Path(folder, "kept")
        (root / "late").mkdir(parents=True)
        day, expected = 1, dict[bytes, list[str]]()
        for what, *of in [*events, ("look",)]:
            paths = [root / name for name in of if isinstance(name, str)]
            if what == "write":
                paths[0].write_bytes(of[1])
            elif what == "remove":
                paths[0].unlink(missing_ok=True)
            elif what == "rename" and paths[0].exists():
                paths[0].replace(paths[1])
            elif what == "next day":
                day += 1
            elif what.startswith("look"):
                there = {path.read_bytes() for path in root.rglob("*.*") if path.is_file()}
                is_new = there - expected.keys()
                seen = (kept / SEEN_FILE).read_bytes() if (kept / SEEN_FILE).exists() else b"{"
                assert len(is_new) == look_at(root, kept, f"2026-11-{day:02}").num_new
                expected |= {content: [f"2026-11-{day:02}"] for content in is_new}
                if what == "look and forget":  # the process was killed before it could say what it has read
                    (kept / SEEN_FILE).write_bytes(seen)
            assert expected == days_of(kept)


def test_a_file_that_may_still_be_written_waits(tmp_path: Path):
    """It is neither read nor lost, and files that are no image, hidden or empty are never taken in."""
    root, kept = tmp_path / "root", tmp_path / "kept"
    root.mkdir()
    for name, data in (("a.jpg", b"half"), ("b.txt", b"text"), (".c.jpg", b"hidden"), ("d.jpg", b"")):
        (root / name).write_bytes(data)
    changed_s = (root / "a.jpg").stat().st_ctime

    early = look_at(root, kept, now_s=changed_s + 59)
    (root / "a.jpg").write_bytes(b"whole")
    late = look_at(root, kept)

    assert [(0, 1), (1, 0)] == [(look.num_new, look.num_unsettled) for look in (early, late)]
    assert [b"whole"] == list(days_of(kept))


def test_only_new_files_are_asked_for_and_read(tmp_path: Path):
    """What a look has read is not arriving any more; a modification time that a program has set is no age."""
    root, kept = tmp_path / "root", tmp_path / "kept"
    root.mkdir()
    (root / "a.jpg").write_bytes(b"one")
    (root / os.fsdecode(b"\xff.jpg")).write_bytes(b"one")
    os.utime(root / "a.jpg", (0, 0))

    before = find_arriving(root, kept, settle_s=60, now_s=LATER_S)
    assert len(find_arriving(root, kept, settle_s=60, now_s=(root / "a.jpg").stat().st_ctime).unsettled) == 2
    look = look_at(root, kept)

    assert 2 == len(before.settled)
    assert (1, 1) == (look.num_new, look.num_duplicates)
    assert not find_arriving(root, kept, settle_s=60, now_s=LATER_S).settled
    assert 1 == len(Counter(kept_contents(kept)))


def test_a_look_that_cannot_write_goes_on_later(tmp_path: Path):
    """It says what is in the way, and the next look takes in what is left."""
    root, kept = tmp_path / "root", tmp_path / "kept"
    root.mkdir()
    (root / "a.jpg").write_bytes(b"one")
    kept.mkdir()
    (kept / "2026-11-01").write_text("a file where the folder of the day should be")

    with pytest.raises(ShardError, match=r"cannot be written .*then look again"):
        look_at(root, kept)
    (kept / "2026-11-01").unlink()

    assert 1 == look_at(root, kept).num_new


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path):
    """A disk that is not mounted is no folder without images."""
    with pytest.raises(SourceError, match=r"gone is no folder; expected the folder that is watched"):
        look_at(tmp_path / "gone", tmp_path / "kept")
