"""Cells of a benchmark: corruption and severity, their canonical order, and the parsing of keys nobody has checked."""

from dataclasses import dataclass

from tta_pipeline.errors import PartitionKeyError

COMMON_CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The 15 corruptions of ImageNet-C in the order every paper streams them (Hendrycks & Dietterich 2019, section 4)."""

EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four held-out corruptions of ImageNet-C, meant for tuning (Hendrycks & Dietterich 2019, appendix B)."""

CORRUPTIONS = COMMON_CORRUPTIONS + EXTRA_CORRUPTIONS
SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True, kw_only=True, order=True, slots=True)
class Cell:
    """One (corruption, severity) of a benchmark; clean data is severity 0."""

    corruption: str
    severity: int

    @property
    def key(self) -> str:
        """The Dagster partition key, `<corruption>|<severity>`."""
        return f"{self.corruption}|{self.severity}"

    @property
    def path(self) -> str:
        """The folder of this cell relative to a root, `<corruption>/<severity>`."""
        return f"{self.corruption}/{self.severity}"


CLEAN = Cell(corruption="clean", severity=0)
"""The uncorrupted test images."""

TRAIN = Cell(corruption="train", severity=0)
"""The images a source model is trained on, where a benchmark trains its own."""


def cells(corruptions: tuple[str, ...], severities: tuple[int, ...]) -> tuple[Cell, ...]:
    """Return every cell, corruption by corruption in the order given."""
    return tuple(
        Cell(corruption=corruption, severity=severity) for corruption in corruptions for severity in severities
    )


def parse_cell(key: str, allowed: tuple[Cell, ...]) -> Cell:
    """Return the cell that *key* names.

    Dagster hands run tags to our code unchecked, so a key is compared with the benchmark's own cells before it comes
    near a path.

    Raises:
        PartitionKeyError: *key* is none of *allowed*.
    """
    by_key = {cell.key: cell for cell in allowed}
    if key not in by_key:
        corruptions = dict.fromkeys(cell.corruption for cell in allowed)
        severities = dict.fromkeys(str(cell.severity) for cell in allowed)
        raise PartitionKeyError(
            f"partition key {key!r} is not a cell of this benchmark; expected '<corruption>|<severity>' with "
            f"corruption one of {', '.join(corruptions)} and severity one of {', '.join(severities)}"
        )
    return by_key[key]
