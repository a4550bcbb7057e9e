"""Prints the oldest versions that pyproject.toml allows, as constraints for pip; `make test-oldest` uses them.

For packages that users install, `>=` becomes `==`. The tests' own tools are taken from constraints.txt, since older
ones are not supported.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
USERS_EXTRAS = ("clip", "postgres", "remote", "timm")
TOOLS_EXTRA = "dev"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_AT_LEAST = re.compile(r">=([0-9.]+)")


def oldest_constraints() -> Iterator[str]:
    """Yield `<name>==<version>` for each package that users install, and for each of the tests' tools."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for requirement in (*project["dependencies"], *(each for extra in USERS_EXTRAS for each in extras[extra])):
        oldest = _AT_LEAST.search(requirement)
        if oldest is None:
            raise ValueError(f"{requirement!r} in pyproject.toml has no oldest version; expected one with >=")
        yield f"{_name(requirement)}=={oldest[1]}"
    tools = {_name(each) for each in extras[TOOLS_EXTRA]}
    tested = (REPOSITORY / "constraints.txt").read_text().splitlines()
    yield from (line for line in tested if not line.startswith("#") and _name(line) in tools)


def _name(requirement: str) -> str:
    found = _NAME.match(requirement)
    assert found is not None, requirement
    return re.sub("[-_.]+", "-", found[0]).lower()


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in oldest_constraints())
