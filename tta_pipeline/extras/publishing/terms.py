"""Licence and citation of a data set, as stated by its publisher or the user."""

from dataclasses import dataclass

from tta_pipeline.data.shifts.shift_set import ShiftSet

_KNOWN = {
    "CC BY 4.0": ("cc-by-4.0", "https://creativecommons.org/licenses/by/4.0/"),
    "CC BY-SA 4.0": ("cc-by-sa-4.0", "https://creativecommons.org/licenses/by-sa/4.0/"),
    "CC BY-NC 4.0": ("cc-by-nc-4.0", "https://creativecommons.org/licenses/by-nc/4.0/"),
    "CC BY-NC-SA 4.0": ("cc-by-nc-sa-4.0", "https://creativecommons.org/licenses/by-nc-sa/4.0/"),
    "CC0 1.0": ("cc0-1.0", "https://creativecommons.org/publicdomain/zero/1.0/"),
}
"""Licences that allow redistribution, with the Hub's name and the URL of the text."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The licence and the citation of the images."""

    licence: str
    """The licence as its publisher or the user states it; empty: none is known."""
    citation: str
    homepage: str
    warning: str
    """What the user must clarify before publishing the folder; empty: the licence allows redistribution."""

    @property
    def is_known(self) -> bool:
        """Whether the licence is one that allows redistribution, as far as this project knows."""
        return self.licence in _KNOWN

    @property
    def hub_name(self) -> str:
        """The Hub's name of the licence; `unknown` if none is stated, `other` if the Hub has no name for it."""
        return _KNOWN[self.licence][0] if self.is_known else "other" if self.licence else "unknown"

    @property
    def address(self) -> str:
        """URL of the licence's text if it is known, else the licence as stated."""
        return _KNOWN[self.licence][1] if self.is_known else self.licence


def terms_of(shift_set: ShiftSet | None, *, is_generated: bool, stated: str | None) -> Terms:
    """Return the terms of images of *shift_set*; a licence *stated* by the user takes precedence over the set's.

    The licence of the published set does not cover generated images.
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
        f"{found}; expected one of {', '.join(_KNOWN)}: ask the owner of the images before you publish them, and state "
        "their licence with --licence"
    )
