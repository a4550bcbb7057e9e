"""The folder of a project, which `tta-pipeline init` made."""

import os
from pathlib import Path

DAGSTER_SETTINGS = "dagster.yaml"
"""File that marks the folder of a project: the settings of its Dagster."""


def find_project() -> Path | None:
    """Return the folder of the project: the working directory, or the folder around the data root, with dagster.yaml.

    None if neither has this file, or the working directory was removed.
    """
    try:
        here = Path.cwd()
    except OSError:
        return None
    around = Path(os.environ.get("TTA_DATA_ROOT") or "data").absolute().parent
    return next((folder for folder in (here, around) if (folder / DAGSTER_SETTINGS).exists()), None)
