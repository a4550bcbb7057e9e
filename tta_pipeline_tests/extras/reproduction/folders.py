"""What tests of published results share: verbs on a data root, and results that others forged."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from click.testing import Result as Answer

from tta_pipeline.cli import main
from tta_pipeline.results.names import find_results, plan_files
from tta_pipeline.results.result_files import Result, name_of, read_result
from tta_pipeline_tests.flat_facts import changed, flat_row


def ask(root: Path, *arguments: str) -> Answer:
    """Run a verb on the data root *root*."""
    return CliRunner(env={"TTA_DATA_ROOT": str(root)}).invoke(main, list(arguments))


def result_of(folder: Path, experiment: str, key: str = "contrast-5") -> Path:
    """Return the only result of *experiment* at *key* in *folder*, a data root or a published folder."""
    (path,) = (
        path
        for path in find_results(folder / "results" / "small" / key)
        if read_result(path).result.evaluations[0].labels.experiment == experiment
    )
    return path


def forge(path: Path, change: Callable[[Result], Result]) -> Path:
    """Put the result that *change* makes of the one in *path* in its place, under the name that its content has."""
    forged = change(read_result(path).result)
    data = forged.encoded()
    path.unlink()
    target = path.with_name(name_of(forged, data))
    target.write_bytes(data)
    return target


def with_facts(result: Result, **facts: Any) -> Result:
    """Return *result* with other facts in its first evaluation; those that are functions get the present ones."""
    first, *others = result.evaluations
    before = flat_row(first)
    now = {name: fact(before[name]) if callable(fact) else fact for name, fact in facts.items()}
    return replace(result, evaluations=(changed(first, **now), *others))


def forge_fingerprint(folder: Path, experiment: str, key: str, **parts: object) -> Path:
    """Let the result of *experiment* at *key* have other *parts* in its fingerprint, and the plan ask for it."""
    path = result_of(folder, experiment, key)
    present = read_result(path).result.evaluations[0]
    text = json.dumps({**json.loads(present.setup.fingerprint_parts), **parts}, sort_keys=True)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()
    kept = next(path.parent.glob(f"{present.setup.fingerprint[:16]}-*.parquet"))
    kept.rename(kept.with_name(kept.name.replace(present.setup.fingerprint[:16], fingerprint[:16])))
    for plan in plan_files(folder / "results"):
        plan.write_text(plan.read_text().replace(present.setup.fingerprint, fingerprint))
    return forge(
        path,
        lambda result: replace(
            with_facts(result, fingerprint=fingerprint, fingerprint_parts=text), fingerprint=fingerprint
        ),
    )


def change_plan(folder: Path, experiment: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Let *change* edit the content of the plan of *experiment* in *folder*."""
    (path,) = (path for path in plan_files(folder / "results") if path.stem == experiment)
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))
