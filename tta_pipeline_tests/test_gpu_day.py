"""The GPU day loses no figure: whatever a section does, its lines and a verdict remain."""

import os
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import torch

from bench.gpu_day.__main__ import main
from bench.gpu_day.correct import SameDraws
from bench.gpu_day.lines import Line, Verdict, append_line, exit_status, newest_lines, read_lines, verdict
from bench.gpu_day.passes import ON_ANY_NETWORK
from bench.gpu_day.report import COLUMNS, ReportError, figure_text, write_csv
from bench.gpu_day.run_sections import Section, run_sections
from bench.gpu_day.sections import MOST_S, SECTIONS
from bench.result_pages import read_data
from tta_pipeline_tests.conftest import run_python
from tta_pipeline_tests.simulated.device import missing
from tta_pipeline_tests.simulated.registered import register_in


def line(**changes: object) -> Line:
    """Return a line of a day on a GPU."""
    return Line(
        **{"section": "speed", "day": "2026-12-01T10:00:00+00:00", "is_rehearsal": False, "what": "x"} | changes
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"found": 0.95, "asked": ">= 0.95"}, "met"),
        ({"found": 0.949, "asked": ">= 0.95"}, "missed"),
        ({"found": 1.2, "asked": "<= 1.15"}, "missed"),
        ({"found": 0, "asked": "== 0"}, "met"),
        ({"found": 360, "asked": "< 360"}, "missed"),
        ({"found": float("nan"), "asked": ">= 0.95"}, "missed"),
        ({"found": 7}, "found"),
        ({"asked": ">= 0.95", "why_not": "not here"}, "not measured"),
        ({"asked": ">= 0.95", "why_not": "it broke", "is_failure": True}, "failed"),
        ({"found": 0.1, "asked": ">= 0.95", "is_speed": True}, "missed"),
        ({"found": 0.1, "asked": ">= 0.95", "is_speed": True, "is_rehearsal": True}, "rehearsed"),
        ({"found": 1, "asked": "== 0", "is_rehearsal": True}, "missed"),
    ],
)
def test_a_line_is_judged_by_what_is_asked(changes: dict[str, object], expected: str):
    """A rehearsal's speed says nothing; its correctness does."""
    assert expected == verdict(line(**changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"found": 1, "asked": ">= 0.95"}, 0),
        ({"why_not": "not here", "asked": ">= 0.95"}, 0),
        ({"found": 0.9, "asked": ">= 0.95"}, 1),
        ({"why_not": "it broke", "is_failure": True}, 1),
    ],
)
def test_the_exit_status_is_0_only_if_all_that_was_measured_is_met(changes: dict[str, object], expected: int):
    """What could not be measured is no failure; what broke is one."""
    assert expected == exit_status([line(found=1), line(**changes), line(found=1)])


def test_lines_survive_their_file(tmp_path: Path):
    """What is read is what was written, in its order."""
    lines = [line(found=0.5, low=0.4, high=0.6, unit="s", text="a|b"), line(why_not="not here")]
    for each in lines:
        append_line(tmp_path / "out" / "day.jsonl", each)

    assert lines == read_lines(tmp_path / "out" / "day.jsonl")


def test_a_section_that_was_run_again_replaces_its_lines():
    """Those of the other sections stay, and so does the order of sections."""
    later = "2026-12-01T11:00:00+00:00"
    lines = [line(section="a", what="1"), line(section="a", what="2"), line(section="b"), line(section="a", day=later)]

    assert [("a", later), ("b", lines[0].day)] == [(each.section, each.day) for each in newest_lines(lines)]


def test_a_figure_is_shown_with_range_and_unit():
    """Large figures have no decimals, small ones three digits."""
    assert "12,346 [12,000-13,000] images/s" == figure_text(line(found=12345.6, low=12000, high=13000, unit="images/s"))
    assert "0.953" == figure_text(line(found=0.9534))
    assert "nan" == figure_text(line(found=float("nan")))
    assert "" == figure_text(line(why_not="not here"))


def test_the_help_says_what_a_machine_needs(capsys: pytest.CaptureFixture[str]):
    """It names every section with its limit, the wheels that are missing, and the command for the documents."""
    with pytest.raises(SystemExit):
        main(["--help"])
    told = capsys.readouterr().out

    assert all(f"{each.limit_s} s  {each.summary}" in told for each in SECTIONS)
    assert "simplejpeg==1.9.0 pydantic==2.14.3 pydantic_core==2.50.4" in told
    assert "--write docs/results/gpu-day.csv gpu_day.jsonl" in told


WITHOUT = """
import sys
absent = {"dagster", "duckdb", "jinja2", "matplotlib", "obstore", "sklearn", "webdataset"}

class Absent:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name)

for name in [*sys.modules]:
    if name.partition(".")[0] in {"bench", "tta_pipeline", *absent}:
        del sys.modules[name]
sys.meta_path.insert(0, Absent())
"""
"""A process that has imported everything has what the help lists, and must import the project again."""


def test_sections_import_only_what_the_help_lists():
    """A machine without the rest of the project's dependencies runs them all."""
    modules = ", ".join(sorted({each.function.partition(":")[0] for each in SECTIONS}))
    finished = run_python(f"{WITHOUT}import {modules}\nprint('tta_pipeline' in sys.modules)")

    assert "True\n" == finished.stdout, finished.stderr


def test_both_devices_draw_the_same_numbers():
    """Whatever way a method draws, the numbers are those of a generator of the CPU with the same seed."""

    def draws(generator: torch.Generator) -> list[torch.Tensor]:
        images = torch.rand(2, 3, generator=generator, device="cpu")
        return [
            images,
            torch.empty(4).uniform_(-1, 1, generator=generator),
            torch.empty(4).exponential_(generator=generator),
            torch.nn.init.uniform_(torch.nn.Parameter(torch.empty(3)), -1, 1, generator=generator),
            torch.randint(5, (4,), generator=generator),
            torch.multinomial(images, 2, generator=generator),
        ]

    expected = draws(torch.Generator().manual_seed(7))
    untouched = torch.Generator().manual_seed(7)
    with SameDraws():
        found = draws(untouched)

    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
    assert torch.equal(torch.Generator().manual_seed(7).get_state(), untouched.get_state()), "only its twin draws"


def test_the_figures_are_written_as_csv(tmp_path: Path):
    """A row for each line of each section's newest run; writing again changes nothing."""
    target, lines = tmp_path / "gpu-day.csv", tmp_path / "day.jsonl"
    target.write_text("old")
    append_line(lines, line(section="machine", what="device", text="NVIDIA H200"))
    append_line(lines, line(what="images", found=12345.6, low=12000, high=13000, unit="images/s"))
    append_line(lines, line(what="streamed / resident", found=0.97, low=0.96, high=0.98, asked=">= 0.95"))
    append_line(lines, line(what="DALI", why_not='DALI<8>, "nightly", is not installed'))

    write_csv(target, lines)
    written = target.read_text()
    write_csv(target, lines)

    assert written == target.read_text()
    assert [
        ",".join(COLUMNS),
        "2026-12-01,machine,device,,,,,,found,NVIDIA H200",
        "2026-12-01,speed,images,12346,12000,13000,images/s,,found,",
        "2026-12-01,speed,streamed / resident,0.97,0.96,0.98,,>= 0.95,met,",
        '2026-12-01,speed,DALI,,,,,,not measured,"DALI<8>, ""nightly"", is not installed"',
    ] == written.splitlines()


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"is_rehearsal": True}, r"day\.jsonl.*\bNVIDIA H200\b.* 1 "),
        ({"what": "something else"}, r"day\.jsonl.*\bNone\b.* 0 "),
    ],
)
def test_only_figures_of_a_gpu_are_written(tmp_path: Path, changes: dict[str, object], found: str):
    """Neither a rehearsal's nor those of an unknown machine; what was there stays."""
    target, lines = tmp_path / "gpu-day.csv", tmp_path / "day.jsonl"
    target.write_text("old")
    append_line(lines, line(**({"section": "machine", "what": "device", "text": "NVIDIA H200"} | changes)))

    with pytest.raises(ReportError, match=found):
        write_csv(target, lines)
    assert "old" == target.read_text()


def test_the_committed_figures_are_of_a_day_on_a_gpu():
    """They have the columns of the command, name the device, and have each section."""
    rows = read_data("gpu-day")

    assert list(COLUMNS) == list(rows[0])
    assert [each["remark"] for each in rows if each["what"] == "device"] == ["NVIDIA H200"]
    assert {each["section"] for each in rows} == {*(each.name for each in SECTIONS), "verdicts"}
    assert {each["verdict"] for each in rows} <= set(get_args(Verdict))


def test_a_section_that_fails_says_so_and_stops_no_other(tmp_path: Path):
    """Its line has the reason, what it had measured stays, and the status is not 0."""
    sections = [
        Section(name=name, function=f"tta_pipeline_tests.gpu_day_sections:{name}", limit_s=limit_s, summary="")
        for name, limit_s in (("crashes", 100), ("hangs", 4), ("dies", 100), ("measures", 100))
    ]
    told: list[str] = []
    lines = run_sections(
        sections, tmp_path / "day.jsonl", day="today", rehearsed_on="", folder=tmp_path, tell=told.append
    )

    assert lines == read_lines(tmp_path / "day.jsonl")
    failed = {each.section: each.why_not for each in lines if verdict(each) == "failed"}
    assert {"crashes", "hangs", "dies"} == set(failed)
    assert failed["crashes"].endswith("RuntimeError: CUDA error: an illegal memory access was encountered")
    assert failed["hangs"].startswith("ran longer than 4 s and was killed")
    assert failed["dies"].startswith("ended with status -9")
    measured = [(each.section, each.found) for each in lines if each.what in ("before", "is rehearsal", "never")]
    assert [("crashes", 1), ("hangs", 2), ("measures", 0)] == measured
    assert any("in hangs" in text for text in told), "the trace says where it hung"
    assert 1 == exit_status(lines)


def test_the_limits_keep_the_day_below_nine_minutes():
    """Even if every section is killed at its limit; each has a name of its own."""
    assert sum(each.limit_s for each in SECTIONS) < MOST_S <= 540
    assert len({each.name for each in SECTIONS}) == len(SECTIONS)


NOT_ON_THE_SIMULATED_DEVICE = {
    "clocks",
    "the sanitizer",
    "tf32",
    "bf16 and fp16",
    "CUDA graphs",
    "source: longest kernels",
    "tent: longest kernels",
    "device busy over the sweep, by the profiler",
    "several streams on one device: speed over the sequential sweep",
    "JPEG decoded on the GPU",
}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_day_can_be_rehearsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every section runs on a CPU, nothing breaks, and all that a CPU can show is as asked."""
    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / "data"))

    assert 0 == main(["--rehearse", "--out", str(tmp_path / "day.jsonl")])
    assert {*(each.name for each in SECTIONS), "verdicts"} == {
        each.section for each in read_lines(tmp_path / "day.jsonl")
    }


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(missing() is not None, reason=missing() or "")
def test_the_day_can_be_rehearsed_on_the_simulated_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Every section runs; correctness, waits and memory are as asked, and what only a real device shows is named."""
    register_in(tmp_path)
    monkeypatch.setenv("TTA_DATA_ROOT", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    assert 0 == main(["--rehearse", "simulated", "--out", str(tmp_path / "day.jsonl")])
    lines = read_lines(tmp_path / "day.jsonl")
    assert "simulated accelerator" in [each.text for each in lines if each.what == "device"]
    met = Counter(each.section for each in lines if verdict(each) == "met")
    assert {"sanitizer": 2, "methods": 2 * len(ON_ANY_NETWORK), "waits": 4, "memory": 2, "graphs": 8, "cells": 2} == met
    assert NOT_ON_THE_SIMULATED_DEVICE == {
        each.what for each in lines if each.why_not and "in a sweep" not in each.what
    }
