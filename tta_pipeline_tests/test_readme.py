"""What the README tells a reader to type works."""

import re
from pathlib import Path

from tta_pipeline.cli import main
from tta_pipeline_tests.conftest import Project

ROOT = Path(__file__).parents[1]
README, QUICKSTART = (ROOT / "README.md").read_text(), (ROOT / "docs" / "quickstart.md").read_text()


def test_every_verb_of_the_page_exists():
    """A verb that the README names is one of the command line's."""
    named = re.findall(r"tta-pipeline ([a-z][a-z-]*)", README)

    assert named
    assert set(named) <= set(main.commands)


def test_the_question_of_the_quickstart_is_answered(sweep: Project):
    """The SQL of the quickstart runs and names a corruption."""
    (sql,) = re.findall(r'query "\n(.*?)"\n', QUICKSTART, re.DOTALL)

    finished = sweep.run("tta-pipeline", "query", sql)

    assert 0 == finished.returncode, finished.stderr
    assert "contrast" in finished.stdout
