"""What a data set's licence allows, as far as its publisher says."""

from dataclasses import dataclass

from tta_pipeline.data.shifts.shift_set import ShiftSet

_KNOWN = {
    "CC BY 4.0": ("cc-by-4.0", "https://creativecommons.org/licenses/by/4.0/"),
    "CC BY-SA 4.0": ("cc-by-sa-4.0", "https://creativecommons.org/licenses/by-sa/4.0/"),
    "CC BY-NC 4.0": ("cc-by-nc-4.0", "https://creativecommons.org/licenses/by-nc/4.0/"),
    "CC BY-NC-SA 4.0": ("cc-by-nc-sa-4.0", "https://creativecommons.org/licenses/by-nc-sa/4.0/"),
    "CC0 1.0": ("cc0-1.0", "https://creativecommons.org/publicdomain/zero/1.0/"),
}
"""Licences that allow redistribution: the Hub's name and the address of the text."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The licence and the citation of the images."""

    licence: str
    """As its publisher, or the user, states it; empty: none is known."""
    citation: str
    homepage: str
    warning: str
    """What the user must settle before the folder goes to others; empty: the licence allows it."""

    @property
    def is_known(self) -> bool:
        """Whether the licence is one that allows redistribution, as far as this project knows."""
        return self.licence in _KNOWN

    @property
    def hub_name(self) -> str:
        """The Hub's name of the licence; `unknown` if none is stated, `other` if it has no name there."""
        return _KNOWN[self.licence][0] if self.is_known else "other" if self.licence else "unknown"

    @property
    def address(self) -> str:
        """Address of the licence's text, or else the licence as stated."""
        return _KNOWN[self.licence][1] if self.is_known else self.licence


def terms_of(shift_set: ShiftSet | None, *, is_generated: bool, stated: str | None) -> Terms:
    """Return the terms of images of *shift_set*; what the user has *stated* counts before what the set says.

    Generated images are not those of the published set, so its licence says nothing of them.
    """
    citation, homepage = (shift_set.citation, shift_set.homepage) if shift_set else ("", "")
    published = shift_set.licence if shift_set and not is_generated else ""
    licence = published if stated is None else stated
    return Terms(
        licence=licence,
        citation=citation,
        homepage="" if is_generated else homepage,
        warning=_warning(licence, shift_set, is_generated=is_generated),
    )


def _warning(licence: str, shift_set: ShiftSet | None, *, is_generated: bool) -> str:
    if licence in _KNOWN:
        return ""
    if licence:
        found = f"the licence is {licence!r}, which is not known to allow redistribution of the images"
    elif is_generated:
        found = "the images were made here from clean images, whose licence is not known"
    elif shift_set:
        found = f"no licence is stated for the images of {shift_set.title or shift_set.name}"
    else:
        found = "no shift set is named, so the licence of the images is not known"
    return (
        f"{found}; expected one of {', '.join(_KNOWN)}: ask whoever owns the images before you publish them, and state "
        "what they allow with --licence"
    )
