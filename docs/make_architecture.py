"""Draw which package imports which, into docs/contributing/architecture.md: `python docs/make_architecture.py`."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE, PAGE = ROOT / "tta_pipeline", ROOT / "docs" / "contributing" / "architecture.md"
_BEGIN, _END = "```mermaid\n", "```"


def rooms() -> list[str]:
    """Return the folders of the package."""
    return sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def statements(path: Path) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return what a file imports, anywhere in it."""
    return tuple(node for node in walk(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is in *node*, except expressions, which are most of a tree and have no statements."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from walk(child)


@cache
def imports() -> tuple[tuple[Path, str], ...]:
    """Return each file of the package with each module of it that it imports, anywhere in the file."""
    return tuple(
        (path.relative_to(PACKAGE), module.removeprefix("tta_pipeline."))
        for path in sorted(PACKAGE.rglob("*.py"))
        if path != PACKAGE / "__init__.py"
        for module in _imported(path)
        if module.startswith("tta_pipeline.") and module != "tta_pipeline.__version__"
    )


def edges() -> Mapping[str, set[str]]:
    """Return which rooms each room imports."""
    found: dict[str, set[str]] = {room: set() for room in rooms()}
    for path, module in imports():
        room, other = path.parts[0], module.partition(".")[0]
        if room != other and room in found and other in found:
            found[room].add(other)
    return found


def drawn() -> str:
    """Return the picture; an arrow that follows from others is left out."""
    found = edges()
    lines = ["flowchart LR"]
    for room, others in sorted(found.items()):
        lines += [
            f"    {other} --> {room}"
            for other in sorted(others)
            if not any(other in _reached(found, via, without=room) for via in others - {other})
        ]
    return "\n".join(lines) + "\n"


def _reached(found: Mapping[str, set[str]], room: str, *, without: str) -> set[str]:
    """Return the rooms that *room* imports, directly or not, other than through *without*."""
    seen, todo = set[str](), [room]
    while todo:
        for other in found[todo.pop()] - seen - {without}:
            seen.add(other)
            todo.append(other)
    return seen - {room}


def _imported(path: Path) -> Iterator[str]:
    for node in statements(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module:
            yield node.module


def page(text: str) -> str:
    """Return the text of the page with the picture as it is now."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{drawn()}{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
