"""The net covers the whole command line and every asset, and sees what changes."""

import json
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tta_pipeline_tests.net.comparison import differences
from tta_pipeline_tests.net.coverage import UNREACHED, unreached, used, wanted
from tta_pipeline_tests.net.normal import Normal
from tta_pipeline_tests.net.probes.command_line import known_parameters
from tta_pipeline_tests.net.recording import record
from tta_pipeline_tests.net.tour import STEPS, help_steps


def test_every_verb_option_and_choice_is_on_the_tour():
    """A new option fails here until a step uses it; the parser itself says which there are."""
    (entry,) = entry_points(group="console_scripts", name="tta-pipeline")
    known = known_parameters(entry.load())

    assert [] == sorted(set(wanted(known)) - used((*STEPS, *help_steps(known)), known))


def test_a_tour_without_a_step_lacks_its_options():
    """What no step uses is named, with its choices."""
    (entry,) = entry_points(group="console_scripts", name="tta-pipeline")
    known = known_parameters(entry.load())
    left = [
        step for step in STEPS if "--layout" not in step.command and not step.command.startswith("tta-pipeline why")
    ]

    missing = set(wanted(known)) - used((*left, *help_steps(known)), known)

    assert {"shards make --layout", "shards make --layout nested", "why --all"} <= missing
    assert "why" not in missing  # its help is still asked for


def test_a_changed_file_and_a_lost_step_are_differences(tmp_path: Path):
    """A hash, a line and a file that only one has; times are none."""
    for name, sha256 in (("one", "aa"), ("other", "bb")):
        (tmp_path / name).mkdir()
        step = {"status": 0, "stdout": ["same"], "files": {"a.tar": sha256}}
        (tmp_path / name / "000-shard.json").write_text(json.dumps(step))
        (tmp_path / name / "times.json").write_text(json.dumps({"shard": len(name)}))
    (tmp_path / "one" / "001-verify.json").write_text("{}")

    found = list(differences(tmp_path / "one", tmp_path / "other"))

    assert "000-shard.json [files][a.tar]:" in found
    assert f"001-verify.json is not in {tmp_path / 'other'}" in found
    assert not [line for line in found if "times" in line]
    assert [] == list(differences(tmp_path / "one", tmp_path / "one"))


def test_speeds_are_left_out_and_errors_stay():
    """In a table for the user, in CSV, in JSON and in a line of the log."""
    normal = Normal({"<root>": "/some/where"})
    table = "experiment  mean error  images per s\ntent            12.3%         1,234\n"

    assert ["experiment  mean error  images per s", "tent  12.3%  <...>"] == normal.lines(table)
    assert ["error,wall_s,seed", "0.5,<...>,1"] == normal.lines("error,wall_s,seed\n0.5,3.25,1\n")
    assert {"error": 0.5, "wall_s": "<...>"} == json.loads("".join(normal.said('{"wall_s": 3.0, "error": 0.5}')))
    assert ["<time> tent: error 12.3%, <n> images/s, in <root>/a"] == normal.lines(
        "21:40:54 tent: error 12.3%, 1,234 images/s, in /some/where/a\nclean: 3 of 9 images, 5 images/s, 2 s left\n"
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_step_ends_as_it_should_and_every_asset_is_made(tmp_path: Path):
    """The whole tour; assets are those of the definitions, made ones those of Dagster's history."""
    finished = list(record(tmp_path / "recording", tmp_path / "tour"))

    odd = [each for each in finished if each.step.status not in (None, each.status)]
    assert [] == [(each.step.command, each.status, each.stderr[-500:]) for each in odd]
    assert [] == [each.step.command for each in finished if "Traceback" in each.stderr]
    (path,) = (tmp_path / "recording").glob("*-dg-list-defs*.json")
    defined = json.loads("\n".join(json.loads(path.read_text())["stdout"]))["assets"]
    keys = {asset["asset_key"] for asset in defined if asset["is_executable"]}
    made = json.loads((tmp_path / "recording" / "history.json").read_text())["assets"]
    assert set() == keys - unreached(keys) - made.keys()
    assert all(reason for reason in UNREACHED.values())
