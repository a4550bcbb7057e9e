"""Coverage of the command line and the assets by the tour, and the only list of exceptions."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import pairwise
from typing import Any

from tta_pipeline_tests.net.tour import Step

PROGRAM = "tta-pipeline"
UNREACHED: Mapping[str, str] = {
    "asset digits_c/evaluation/*_continual": "a stream has 9,000 images: minutes each; `own` has all protocols",
    "asset digits_c/evaluation/*_mixed": "as above",
    "asset digits_c/evaluation/*_correlated": "as above",
    "asset digits_c/held_out/*": "twelve cells for the next line; `own` has held-out shifts",
    "asset digits_c/tuning/tent": "four trials on twelve cells: minutes; `own/tuning/tent` is materialized",
    "asset arrays/*source_split": "images on disk are observed, from the web UI or by a sensor: no command does",
    "asset kinds/*source_split": "as above",
    "asset */loader_benchmark": "measures speed alone; those of `first` and `own` are materialized",
    "behaviour submit --engine slurm": "needs Slurm: the plan alone is made, by --dry-run",
    "behaviour submit --engine ray": "needs Ray: the plan alone is made, by --dry-run",
    "behaviour stream_speed, adaptation_budget_s": "predictions depend on the speed of the machine",
    "behaviour loaders dali, spdl, litdata, streaming": "are not installed with the project's own extras",
    "behaviour models of kind open_clip, hf, timm, torchvision, and methods for CLIP": "weights come by the network",
    "behaviour device cuda, compile": "needs an accelerator",
    "behaviour web UI, sensors new_cells, arrivals, make_what_is_out_of_date": "no commands; they have their own tests",
    "behaviour a second data store, Postgres": "needs another service; they have tests of their own",
}
"""Assets (by pattern) and behaviours without an option that no step reaches, with the reason."""


def wanted(known: Mapping[str, Any]) -> Iterator[str]:
    """Yield every verb, every option string and every choice, as `verb --option choice`.

    Args:
        known: Parameters by verb, from the parser.
    """
    for verb, parameters in known.items():
        yield verb
        for parameter in parameters:
            yield from (_joined(verb, name) for name in parameter["names"])
            shown = next((name for name in parameter["names"] if name.startswith("--")), "")
            yield from (_joined(verb, shown, choice) for choice in parameter["choices"])


def used(steps: Iterable[Step], known: Mapping[str, Any]) -> set[str]:
    """Return the items of `wanted` that *steps* use."""
    commands = [shlex.split(step.command) for step in steps]
    return {each for program, *words in commands if program == PROGRAM for each in _of_command(words, known)}


def unreached(assets: Iterable[str]) -> set[str]:
    """Return the items of *assets* that are in the list of exceptions."""
    patterns = [name.removeprefix("asset ") for name in UNREACHED if name.startswith("asset ")]
    return {asset for asset in assets if any(fnmatch(asset, pattern) for pattern in patterns)}


def _of_command(words: Sequence[str], known: Mapping[str, Any]) -> Iterator[str]:
    num_words = next((number for number in (2, 1) if " ".join(words[:number]) in known), 0)
    verb, rest = " ".join(words[:num_words]), words[num_words:]
    yield verb
    for parameter in known[verb]:
        if not parameter["names"]:
            yield from (_joined(verb, "", word) for word in rest if word in parameter["choices"])
            continue
        shown = next((name for name in parameter["names"] if name.startswith("--")), "")
        for name, value in pairwise([*rest, ""]):
            if name in parameter["names"]:
                yield _joined(verb, name)
                if value in parameter["choices"]:
                    yield _joined(verb, shown, value)


def _joined(*words: str) -> str:
    return re.sub(" +", " ", " ".join(words)).strip()
