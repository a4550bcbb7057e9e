"""Every option of every verb is used by a test: one that none uses can break without a word, as --layout once did."""

import ast
from functools import cache
from pathlib import Path

import click
import pytest

from tta_pipeline.cli import main
from tta_pipeline.cli.verbs import walk_verbs

TESTS = Path(__file__).parent
OPTIONS = [
    (name, option.name, frozenset((*option.opts, *option.secondary_opts)))
    for name, command in walk_verbs(main)
    for option in command.params
    if isinstance(option, click.Option) and option.name != "help"
]


@pytest.mark.parametrize(("verb", "name", "strings"), OPTIONS, ids=[f"{verb} {name}" for verb, name, _ in OPTIONS])
def test_every_option_of_every_verb_is_used(verb: str, name: str, strings: frozenset[str]):
    """It stands in a module of tests that names the verb, itself or in what it imports for its tests."""
    assert any(words.issuperset(verb.split()) and words & strings for words in words_of_tests()), (
        f"no test uses {name} of {verb}"
    )


@cache
def words_of_tests() -> list[frozenset[str]]:
    """Return the words of each module of tests with those of its helpers; read in the one worker that asks."""
    modules = {
        ".".join(path.relative_to(TESTS.parent).with_suffix("").parts): words_and_helpers(path)
        for path in TESTS.rglob("*.py")
    }
    return [
        words.union(*(modules[helper][0] for helper in helpers if helper in modules))
        for name, (words, helpers) in modules.items()
        if ".test_" in name and not name.endswith(Path(__file__).stem)
    ]


def words_and_helpers(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words in a module's strings, without docstrings, and the modules of tests that it imports from.

    Of `--name=value` the name is the word.
    """
    docstrings, strings, helpers = set(), [], set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):  # a parent comes before what is in it
        match node:
            case ast.Module(body=[ast.Expr(value=first), *_]) | ast.ClassDef(body=[ast.Expr(value=first), *_]):
                docstrings.add(first)
            case ast.FunctionDef(body=[ast.Expr(value=first), *_]):
                docstrings.add(first)
            case ast.ImportFrom(module=str(module)) if module.startswith(TESTS.name):
                helpers.add(module)
            case ast.Constant(value=str(text)) if node not in docstrings:
                strings.append(text)
    words = frozenset(word.partition("=")[0] for text in strings for word in text.split())
    return words, frozenset(helpers)
