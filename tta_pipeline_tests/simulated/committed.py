"""The committed list of each method's waits, `waits.toml`: the cause of each, its number in a batch, and its reason.

    python -m tta_pipeline_tests.simulated.committed --write

runs each method, and rewrites the counts; reasons are kept. A wait without a reason fails the tests: add a reason, or
remove the wait.
"""

import json
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tta_pipeline.methods import METHODS
from tta_pipeline_tests.conftest import run_python

_PROGRAM = f"import warnings; warnings.simplefilter('error'); from {__package__} import run; run.main()"
_FILE = Path(__file__).with_name("waits.toml")
_HEAD = f"""# The most waits of the host in one batch after the first, for each method, by function and kind.
# `event` is a wait for a copy, or for a batch two before; the device goes on meanwhile. In each other wait it runs out
# of work. Write the counts anew: python -m {__package__}.committed --write
"""
Waits = dict[str, int]


def run(command: str, root: Path, *names: str) -> list[dict[str, Any]]:
    """Run a command of `run` in its own process, where warnings are errors, and return the lines that it prints."""
    done = run_python(_PROGRAM, command, str(root), *names)
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}; expected 0: {done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def most(batches: Sequence[Waits]) -> Waits:
    """Return the largest number of waits in one of *batches*, without the first, which has one-time initialisation."""
    found: Waits = {}
    for waits in batches[1:]:
        for place, count in waits.items():
            found[place] = max(count, found.get(place, 0))
    return found


def waits_of_methods() -> dict[str, Waits]:
    """Return the committed waits of each method."""
    methods: dict[str, Waits] = tomllib.loads(_FILE.read_text())["methods"]
    return methods


def reasons() -> dict[str, str]:
    """Return the reason of each wait."""
    found: dict[str, str] = tomllib.loads(_FILE.read_text())["reasons"]
    return found


def write(lines: Sequence[dict[str, Any]]) -> None:
    """Write the list from the output of `run cases`."""
    found = {line["case"].partition("/")[0]: most(line["waits"]) for line in lines}
    known = reasons() if _FILE.exists() else {}
    places = sorted({place for waits in found.values() for place in waits})
    text = [_HEAD, "[reasons]", *(f'"{place}" = {json.dumps(known.get(place, ""))}' for place in places)]
    for method, waits in found.items():
        text += ["", f"[methods.{method}]", *(f'"{place}" = {waits[place]}' for place in sorted(waits))]
    _FILE.write_text("\n".join(text) + "\n")


def main() -> None:
    """Rewrite the list: the only option."""
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(f"found {sys.argv[1:]}; expected --write")
    from tta_pipeline_tests.simulated.cases import make_shards

    with tempfile.TemporaryDirectory() as folder:
        make_shards(Path(folder))
        write(run("cases", Path(folder), *(f"{method}/reset_each_shift" for method in METHODS)))


if __name__ == "__main__":
    main()
