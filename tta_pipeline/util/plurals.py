"""Numbers of things in messages: 1 run, 2 runs."""


def count_of(number: int, noun: str) -> str:
    """Return *number* and *noun*, which is in the singular, as text: `1 run`, `1,200 classes`."""
    return f"{number:,} {noun if number == 1 else _plural(noun)}"


def _plural(noun: str) -> str:
    if noun.endswith(("s", "tch")):  # but epochs
        return f"{noun}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"
