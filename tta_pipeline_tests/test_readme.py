"""What the README and the overview say holds."""

import re
from collections import Counter
from pathlib import Path

from tta_pipeline.cli import main
from tta_pipeline.cli.verbs import walk_verbs
from tta_pipeline.methods import METHODS
from tta_pipeline_tests.conftest import Project

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
USE = (ROOT / "docs" / "use.md").read_text()
MOST_LINES = 120


def test_a_newcomer_reads_two_screens():
    """What it is, a picture, two commands, own data, and where everything else is."""
    assert len(README.splitlines()) < MOST_LINES


def test_the_page_counts_the_methods():
    """All but the two that adapt nothing."""
    assert f"There are {len(METHODS.keys() - {'source', 'zero_shot'})}\n[methods]" in README


def test_every_verb_and_every_verb_only_is_on_the_page():
    """A verb that is named exists and explains itself, and none is left out."""
    verbs = dict(walk_verbs(main))

    def named(text: str) -> set[str]:
        return {verb for verb in verbs if re.search(rf"tta-pipeline {verb}\b", text)}

    assert named(USE) == set(verbs)
    assert {typed.split()[0] for typed in named(README)} <= set(main.commands)


def test_the_question_of_the_first_screen_is_answered(sweep: Project):
    """The SQL on the first screen runs and names a corruption."""
    (sql,) = re.findall(r'metrics --sql "\n(.*?)"\n', README, re.DOTALL)

    finished = sweep.run("tta-pipeline", "metrics", "--sql", sql)

    assert 0 == finished.returncode, finished.stderr
    assert "contrast" in finished.stdout


def test_the_table_on_the_first_screen_has_the_columns_of_the_program(sweep: Project):
    """And the marks above it; columns in which rows are equal are left out, so the demo has more."""
    (printed,) = re.findall(r"```\n(generated: .*?)```", README, re.DOTALL)

    finished = sweep.run("tta-pipeline", "metrics")

    assert 0 == finished.returncode, finished.stderr
    assert Counter(above_the_rows(finished.stdout)) <= Counter(above_the_rows(printed))


def above_the_rows(text: str) -> list[str]:
    """Return the words of the notes and of the head of a table."""
    rows = re.search(r"^\w+ +[\d.]+%", text, re.MULTILINE)
    assert rows
    return text[: rows.start()].split()


def test_the_annotated_tree_is_the_package():
    """Every room of the package stands in the annotated tree."""
    rooms = {path.name for path in (ROOT / "tta_pipeline").iterdir() if (path / "__init__.py").exists()}

    tree = (ROOT / "docs" / "architecture.md").read_text()
    assert all(f"  {room}/" in tree for room in rooms)
