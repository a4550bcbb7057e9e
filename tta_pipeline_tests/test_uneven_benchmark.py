"""A class folder that one cell lacks is said wherever a reader meets the numbers."""

import json
from pathlib import Path

from tta_pipeline_tests.conftest import Project, write_tree


def test_a_cell_without_a_class_is_named_everywhere(project: Project, tmp_path: Path):
    """By the run, the doctor, the leaderboard for people and programs, and the pages and figures of the report."""
    for shift in ("dusk", "fog", "snow"):
        write_tree(tmp_path / "images" / shift / "1", classes={"a": 4, "b": 4} if shift != "fog" else {"a": 4})
    model = ("--model", "torchvision:shufflenet_v2_x0_5", "--weights", "none")
    written = project.run("tta-pipeline", "new-benchmark", "mine", str(tmp_path / "images"), *model)
    assert 0 == written.returncode, written.stderr

    run, doctor, leaderboard, table = (
        project.run("tta-pipeline", *words)
        for words in (
            ("run", "mine", "--experiment", "source"),
            ("doctor", "mine", "--json"),
            ("leaderboard",),
            ("leaderboard", "--format", "csv"),
        )
    )

    sentence = "fog|1 has 4 images of 1 classes, but other cells have 8 images of 2 classes"
    assert 0 == run.returncode, run.stderr[-3000:]
    assert 1 == run.stderr.count(sentence)
    assert sentence in [each["found"] for each in json.loads(doctor.stdout)]
    assert sentence in " ".join(leaderboard.stdout.split())
    assert sentence in table.stderr
    report = project.locations.report("mine")
    assert sentence in (report / "index.html").read_text()
    assert sentence in (report / "compare.html").read_text()
    assert "fog|1 has" in (report / "figures" / "heat_map.svg").read_text()
