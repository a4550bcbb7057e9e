"""The Dirichlet order compared with the published samplers, on labels alone: `python -m bench.parity.orders --help`.

Both sides use the same random numbers for the shares of a class over the slots, and for the order of the classes in a
slot. They draw differently which image of a class comes first, which does not change the labels.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from bench.parity.clones import check_out, import_from_clone, module, package
from bench.parity.comparisons import COMMITS, MD
from tta_pipeline.domain.ordering import Indices, dirichlet, domain_seed, random_generator

DESCRIPTION = """The Dirichlet order of streams and shards, compared with the samplers that papers used.

  python -m bench.parity.orders --authors CLONES

prints the table of docs/results/parity.md from a folder with clones of the repositories. The exit status is 1 if labels
differ without a reason, and 2 if nothing can be compared.
"""
ROTTA = "BIT-DA/RoTTA"
DOMAINS = ("gaussian_noise|5", "fog|5", "fog|1")
SEED = 3
_NAMES_OF: Mapping[str, tuple[str, ...]] = {
    "webdataset": (),
    "conf": ("complete_data_dir_path", "generalization_dataset_names", "ds_name2pytorch_ds_name"),
    "datasets.imagelist_dataset": ("ImageList", "FGVCAircraft"),
    "datasets.imagenet_subsets": ("create_imagenet_subset",),
    "datasets.corruptions_datasets": ("create_cifarc_dataset", "create_imagenetc_dataset"),
    "datasets.imagenet_d_utils": ("create_symlinks_and_get_imagenet_visda_mapping",),
    "datasets.imagenet_dict": ("map_dict",),
    "augmentations": (),
    "augmentations.transforms_adacontrast": ("get_augmentation_versions", "get_augmentation"),
    "augmentations.transforms_augmix": ("AugMixAugmenter",),
}
_ABSENT = {name: module(name, **dict.fromkeys(of_it)) for name, of_it in _NAMES_OF.items()}
"""Stand-ins for the modules that read data where the common toolkit sorts it."""
_HEAD = """| sampler | code | classes | delta | images | labels that differ | class as before, ours | theirs |  |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


class Draws:
    """Replaces `numpy.random` in a sampler: each domain draws from our order's generator for it."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self._to_come = [random_generator(seed) for seed in seeds]
        self._own = self._to_come[0]

    def begin(self) -> None:
        """Draw for the next domain from now on."""
        self._own = self._to_come.pop(0)

    def dirichlet(self, alpha: Any, size: int | None = None) -> Any:
        """Return the shares of a class, or of *size* classes at once."""
        return self._own.dirichlet(alpha, size)

    def permutation(self, classes: Sequence[int]) -> Any:
        """Return an order of *classes*."""
        return self._own.permutation(classes)

    def shuffle(self, values: Any) -> None:
        """Shuffle classes, a list; images, an array, do not change."""
        if isinstance(values, list):
            values[:] = self._own.permutation(values).tolist()


def of_rotta(clone: Path, labels: Indices, *, delta: float) -> Indices:
    """Return the labels of all domains in turn, each with *labels*, as RoTTA's sampler orders them."""
    parts = {"core": package(clone / "core"), "core.data": package(clone / "core" / "data")}
    parts["core.data.datasets"] = module("core.data.datasets")
    parts["core.data.datasets.base_dataset"] = module("core.data.datasets.base_dataset", DatumBase=object)
    code, draws = import_from_clone(clone, "core.data.ttasampler", parts), _draws()
    images = [
        SimpleNamespace(domain=number, label=label) for number in range(len(DOMAINS)) for label in labels.tolist()
    ]

    def begin_and_draw(alpha: Any, size: int) -> Any:
        draws.begin()
        return draws.dirichlet(alpha, size)

    with patch.object(code, "dirichlet", begin_and_draw), patch.object(np.random, "permutation", draws.permutation):
        found = list(code.LabelDirichletDomainSequence(images, delta, 64))
    return np.array([images[number].label for number in found])


def of_toolkit(clone: Path, labels: Indices, *, delta: float) -> Indices:
    """Return the same by NOTE's sampler, as in mariodoebler/test-time-adaptation."""
    code, draws, found = import_from_clone(clone / "classification", "datasets.data_loading", _ABSENT), _draws(), []
    samples = [("", label) for label in labels.tolist()]
    with patch.object(np.random, "dirichlet", draws.dirichlet), patch.object(np.random, "shuffle", draws.shuffle):
        for _ in DOMAINS:
            draws.begin()
            found += [label for _, label in code.sort_by_dirichlet(delta, samples)]
    return np.array(found)


def of_ours(labels: Indices, *, delta: float) -> Indices:
    """Return the same in our order."""
    names = [str(number) for number in range(len(labels))]
    orders = [dirichlet(names, labels, seed=domain_seed(SEED, domain), delta=delta) for domain in DOMAINS]
    return np.concatenate([labels[order] for order in orders])


@dataclass(frozen=True, kw_only=True)
class OrderRow:
    """A published sampler with the labels that it orders."""

    title: str
    repository: str
    theirs: Callable[..., Indices]
    num_classes: int
    images_per_class: int
    delta: float
    reason: str = ""
    """Why labels differ; empty if they must not."""

    def differing(self, clone: Path) -> tuple[str, bool]:
        """Return the row of the table, and whether the labels are as expected."""
        labels = np.repeat(np.arange(self.num_classes), self.images_per_class)
        ours, theirs = of_ours(labels, delta=self.delta), self.theirs(clone, labels, delta=self.delta)
        number = int((ours != theirs).sum())
        found = "differs, explained" if self.reason else "**differs**"
        cells = (
            self.title, f"`{self.repository}`", f"{self.num_classes:,}", f"{self.delta:g}", f"{len(ours):,}", number,
            f"{_share_of_neighbours(ours):.3f}", f"{_share_of_neighbours(theirs):.3f}", found if number else "equal",
        )  # fmt: skip
        return f"| {' | '.join(map(str, cells))} |", bool(self.reason) or not number


ROWS = (
    OrderRow(title="RoTTA", repository=ROTTA, theirs=of_rotta, num_classes=10, images_per_class=1_000, delta=0.1),
    OrderRow(
        title="RoTTA, 1,000 classes", repository=ROTTA, theirs=of_rotta, num_classes=1_000, images_per_class=50,
        delta=0.01,
    ),
    OrderRow(
        title="NOTE", repository=MD, theirs=of_toolkit, num_classes=10, images_per_class=1_000, delta=0.1,
        reason="a full slot gets no more images of the next class, everything is drawn again until each slot has ten "
        "images, and there are as many slots as classes even beyond 100. Without: NOTE, even shares, with no full or "
        "small slot.",
    ),
    OrderRow(
        title="NOTE, even shares", repository=MD, theirs=of_toolkit, num_classes=10, images_per_class=1_000, delta=1e6,
    ),
)  # fmt: skip


def table(folders: Mapping[str, Path]) -> tuple[str, bool]:
    """Return the table of the rows whose clones are in *folders*, by repository, and whether all is as expected."""
    found = [row.differing(folders[row.repository]) for row in ROWS if row.repository in folders]
    reasons = [f"- {row.title}: {row.reason}" for row in ROWS if row.reason and row.repository in folders]
    return "\n".join([_HEAD, *(line for line, _ in found), "", *reasons]), all(good for _, good in found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.parity.orders", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--authors", type=Path, required=True, metavar="FOLDER", help="folder of clones")
    authors = parser.parse_args(arguments).authors
    places = {row.repository: authors / row.repository.partition("/")[2] for row in ROWS}
    missing = [repository for repository, folder in places.items() if not folder.is_dir()]
    for repository in missing:
        sys.stderr.write(f"no clone of {repository}: {check_out(repository, COMMITS[repository])}\n")
    if missing:
        return 2
    text, is_expected = table(places)
    sys.stdout.write(f"{text}\n")
    return 0 if is_expected else 1


def _share_of_neighbours(labels: Indices) -> float:
    """Return the share of the images whose predecessor has the same label."""
    return float(np.mean(labels[1:] == labels[:-1]))


def _draws() -> Draws:
    return Draws([domain_seed(SEED, domain) for domain in DOMAINS])


if __name__ == "__main__":
    sys.exit(main())
