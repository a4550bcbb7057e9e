"""What all verbs share: a help text that begins with examples, and groups that keep their order."""

import textwrap
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from typing import Any

import click

from tta_pipeline.errors import in_lines
from tta_pipeline.util.interrupts import InterruptedExit


class Verb(click.Command):
    r"""A command whose help text begins with examples.

    In a raw docstring, \b is two characters; click leaves lines unwrapped only after the real backspace character.
    """

    def __init__(self, *args: Any, examples: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.help = (self.help or "").replace("\\b\n", "\b\n")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; after Ctrl-C, `ends_on_interrupt` prints the message instead of click."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if ctx.parent is not None:
                raise
            raise click.UsageError(in_lines(error.format_message()), ctx=error.ctx) from None
        except KeyboardInterrupt:
            raise InterruptedExit from None

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as typed, then the text."""
        with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
            for example in self.examples:
                formatter.write(_as_typed(example))
        super().format_help_text(ctx, formatter)


def _as_typed(example: str) -> str:
    """Return the lines in which a shell takes *example*, indented, none over 80 columns."""
    lines = textwrap.wrap(
        example, 78, initial_indent="  ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
    )
    return " \\\n".join(lines) + "\n"


class _Verbs(MutableMapping[str, click.Command]):
    """Verbs by their words; a verb's file is imported when the verb is looked up.

    Importing the code of all verbs takes longer than printing a leaderboard from a file.
    """

    def __init__(self, verbs: Mapping[str, click.Command | str]) -> None:
        self._verbs = dict(verbs)

    def __getitem__(self, name: str) -> click.Command:
        verb = self._verbs[name]
        if isinstance(verb, str):
            found = getattr(import_module(f"tta_pipeline.cli.{verb}"), verb)
            assert isinstance(found, click.Command)
            self._verbs[name] = verb = found
        return verb

    def __setitem__(self, name: str, verb: click.Command) -> None:
        self._verbs[name] = verb

    def __delitem__(self, name: str) -> None:
        del self._verbs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)


class Group(Verb, click.Group):
    """A group of verbs, listed under headings, in the order in which they are given.

    Args:
        sections: Under each heading, the verbs by name: a group, or the name of a file of `tta_pipeline.cli` that
            defines a command of this name.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, click.Command | str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self.commands = _Verbs({name: verb for verbs in sections.values() for name, verb in verbs.items()})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help text."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs under their headings, all in columns of the same width."""
        del ctx
        width = max(map(len, self.commands))
        for heading, verbs in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(f"{name:<{width}}", self.commands[name].get_short_help_str(200)) for name in verbs]
                )


def walk_verbs(group: Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each verb at and under *group* with its words, such as `shards verify`."""
    for name, command in group.commands.items():
        if isinstance(command, Group):
            yield from walk_verbs(command, (*words, name))
        else:
            yield " ".join((*words, name)), command
