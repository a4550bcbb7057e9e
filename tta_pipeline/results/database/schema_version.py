"""Version of the schema, known without making it."""

import hashlib
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_FILES = (
    *(_FOLDER / name for name in ("schema.py", "schema.sql", "baselines.sql", "views.sql")),
    *(
        _FOLDER.parent / f"{name}.py"
        for name in (
            "record_fields", "evaluation_parts", "evaluation_record", "training_record", "tuning_record",
            "tuning_trial", "tuning_criteria",
        )
    ),
)  # fmt: skip
"""Files whose text defines the tables and views."""


@cache
def schema_version() -> str:
    """Return the version of the schema: a hash of the files that define it, so that no change is overlooked."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in _FILES)).hexdigest()[:12]


def quoted(text: str) -> str:
    """Return *text* as a literal of SQL, for statements that take no bound value."""
    return "'" + text.replace("'", "''") + "'"
