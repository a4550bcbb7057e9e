"""Prints as JSON every verb of the installed command line with its options and their choices."""

import json
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import click


def facts(parameter: click.Parameter) -> dict[str, object]:
    """Return the names and the choices of an option or an argument."""
    choices = list(parameter.type.choices) if isinstance(parameter.type, click.Choice) else []
    return {
        "names": [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else [],
        "choices": choices,
        "nargs": parameter.nargs,
        "is_flag": getattr(parameter, "is_flag", False),
    }


def parameters(command: click.Command, parent: click.Context | None = None) -> list[dict[str, object]]:
    """Return the facts of every parameter of *command*, including the help option."""
    context = click.Context(command, parent=parent, **command.context_settings)
    return [facts(parameter) for parameter in command.get_params(context)]


def known_parameters(
    command: click.Command, words: tuple[str, ...] = (), parent: click.Context | None = None
) -> dict[str, list[dict[str, object]]]:
    """Return the parameters of *command* and of each verb under it; the command line itself is the verb ""."""
    found = {" ".join(words): parameters(command, parent)}
    if isinstance(command, click.Group):
        context = click.Context(command, parent=parent, **command.context_settings)
        for name, verb in command.commands.items():
            found |= known_parameters(verb, (*words, name), context)
    return found


def main() -> None:
    """Print the parameters, and the location of the package."""
    (entry,) = entry_points(group="console_scripts", name="tta-pipeline")
    known = known_parameters(entry.load())
    package = find_spec(entry.value.partition(".")[0])
    assert package is not None
    assert package.origin is not None
    print(json.dumps({"package": str(Path(package.origin).parent), **known}))  # noqa: T201


if __name__ == "__main__":
    main()
