"""Every option of every verb is used by a test: one that none uses can break without a word, as --layout once did."""

import ast
from pathlib import Path

import click
import pytest

from tta_pipeline.cli import main
from tta_pipeline.cli.verbs import walk_verbs

TESTS = Path(__file__).parent


def words_in(tree: ast.Module) -> frozenset[str]:
    """Return the words in the strings of a module, its docstrings left out; of `--name=value` the name."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    firsts = [node.body[0] for node in ast.walk(tree) if isinstance(node, documented) and node.body]
    docstrings = {first.value for first in firsts if isinstance(first, ast.Expr)}
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in docstrings)
    return frozenset(word.partition("=")[0] for text in strings if isinstance(text, str) for word in text.split())


def helpers_of(tree: ast.Module) -> frozenset[str]:
    """Return the names of the modules of tests that a module imports from."""
    modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return frozenset(name for name in modules if name.startswith(TESTS.name))


TREES = {
    ".".join(path.relative_to(TESTS.parent).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
    for path in TESTS.rglob("*.py")
}
WORDS = [
    words_in(tree).union(*(words_in(TREES[helper]) for helper in helpers_of(tree) if helper in TREES))
    for name, tree in TREES.items()
    if ".test_" in name and not name.endswith(Path(__file__).stem)
]
OPTIONS = [
    (name, option.name, frozenset((*option.opts, *option.secondary_opts)))
    for name, command in walk_verbs(main)
    for option in command.params
    if isinstance(option, click.Option) and option.name != "help"
]


@pytest.mark.parametrize(("verb", "name", "strings"), OPTIONS, ids=[f"{verb} {name}" for verb, name, _ in OPTIONS])
def test_every_option_of_every_verb_is_used(verb: str, name: str, strings: frozenset[str]):
    """It stands in a module of tests that names the verb, itself or in what it imports for its tests."""
    assert any(words.issuperset(verb.split()) and words & strings for words in WORDS), f"no test uses {name} of {verb}"
