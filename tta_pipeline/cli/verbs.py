"""What all verbs share: a help text that begins with examples, and groups that keep their order."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

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
        """Run the verb; after Ctrl-C `ends_on_interrupt` says what there is to say, not click."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise InterruptedExit from None

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples as they are typed, then the text."""
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


class Group(Verb, click.Group):
    """A group of verbs, listed under headings, in the order in which they are given."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, click.Command]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        for verbs in sections.values():
            for name, verb in verbs.items():
                self.add_command(verb, name)

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
                formatter.write_dl([(f"{name:<{width}}", verb.get_short_help_str(200)) for name, verb in verbs.items()])


def walk_verbs(group: Group, words: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield each verb at and under *group* with the words that are typed for it, such as `shards verify`."""
    for name, command in group.commands.items():
        if isinstance(command, Group):
            yield from walk_verbs(command, (*words, name))
        else:
            yield " ".join((*words, name)), command
