"""The instances of Dagster in `cluster/` are that of the project, but for what an engine needs."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Return the settings of a YAML document by their dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    return {
        path: each for key, inner in value.items() for path, each in flat(inner, f"{name}.{key}".lstrip(".")).items()
    }


def test_ray_has_the_same_instance_but_for_the_launcher_and_its_patience():
    """So that the history, the limits and the second try are those that are tested."""
    ours = flat(yaml.safe_load((ROOT / "dagster.yaml").read_text()))
    rays = flat(yaml.safe_load((ROOT / "cluster" / "ray" / "dagster.yaml").read_text()))
    differ = {name for name in ours.keys() | rays.keys() if ours.get(name) != rays.get(name)}

    assert 1 == rays["run_launcher.config.ray.num_gpus"]
    assert {
        "concurrency.runs.max_concurrent_runs",
        "run_monitoring.start_timeout_seconds",
        "run_monitoring.cancel_timeout_seconds",
    } == {name for name in differ if not name.startswith(("run_launcher.", "run_coordinator."))}
