"""Paths under the data root and in a shared store; no other module joins these paths.

`TTA_DATA_ROOT` contains everything. `TTA_SHARDS_ROOT` names a store: a data root that another user keeps for a group.
Benchmarks whose shards are in the store are read from there, and nothing is ever written there:

    the store       shards, manifests, class maps, generated images, weights of trained models, and benchmark files
                    whose name no file under the own root has
    the own root    results, states, report, metrics.duckdb, checkpoints of trainings, temporary files of
                    sources, own benchmark files; benchmarks that the store lacks, with their shards; models that the
                    store lacks
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import DataRootError
from tta_pipeline.util.identifiers import misread_sentence
from tta_pipeline.util.local_paths import url_problem

CLASS_MAP_FILE = "class_map.json"
"""Name of the file in which a class map is pinned for all shard sets under its folder."""
CLASS_MAPS = "class_maps"
"""Folder of the pinned class maps of a benchmark with several datasets."""
BENCHMARK_FILES = "benchmarks"
SHARDS = "shards"
RESULTS = "results"
SOURCE_MODELS = "source_models"
ADDED = "added"
"""Folder of other users' results: `added/<source>/results/`."""
RESULT_FOLDERS = ("held_out", "loaders", "plans", "trainings", "tunings")
"""Folders of a benchmark's results that belong to no cell or stream; no dataset has such a name."""
EMBEDDED_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
"""Folder of the benchmark files that come with the project."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Locations:
    """The folders and files of a data root and, if there is one, of a store.

    Raises:
        DataRootError: a path has a character that logs or the database cannot handle, or the store is not a folder.
    """

    root: Path
    store: Path | None = None
    """Another user's data root, only read; None: everything is stored under *root*."""
    scratch: Path | None = None
    """Folder for the results and states of an evaluation that is only compared; None: they go under *root*."""

    def __post_init__(self) -> None:
        """Refuse a path that would fail or be misread much later."""
        for root in self.roots:
            _require_plain(str(root))
        if self.store is not None and not self.store.is_dir():
            raise DataRootError(
                f"TTA_SHARDS_ROOT is {self.store}, which is not a readable folder; expected the data root with the "
                "shared shards: set it to that folder, or unset it to use your own shards"
            )
        if self.store is not None and self.store.is_relative_to(self.root):
            raise DataRootError(
                f"TTA_SHARDS_ROOT is {self.store}, which is inside your own data root {self.root}; expected a folder "
                "outside it: set TTA_DATA_ROOT to another folder, or unset TTA_SHARDS_ROOT"
            )

    @classmethod
    def from_roots(cls, root: str, store: str) -> "Locations":
        """Return the locations at *root* and, unless empty, *store*; with an empty *root*, use the environment."""
        if not root:
            return cls.from_environment()
        for name, text in (("TTA_DATA_ROOT", root), ("TTA_SHARDS_ROOT", store)):
            if problem := url_problem(text):
                raise DataRootError(f"{name}: {problem}")
        own, others = Path(root).absolute(), Path(store).absolute() if store else None
        return cls(root=own, store=None if others == own else others)

    @classmethod
    def from_environment(cls) -> "Locations":
        """Use `TTA_DATA_ROOT`, by default `data/` in the working directory, and `TTA_SHARDS_ROOT`, by default none."""
        return cls.from_roots(os.environ.get("TTA_DATA_ROOT") or "data", os.environ.get("TTA_SHARDS_ROOT", ""))

    @property
    def roots(self) -> tuple[Path, ...]:
        """The data root and, if there is one, the store."""
        return (self.root,) if self.store is None else (self.root, self.store)

    @property
    def benchmark_files(self) -> Path:
        """Folder of the user's own benchmark files."""
        return self.root / BENCHMARK_FILES

    @property
    def benchmark_folders(self) -> tuple[Path, ...]:
        """Folders of benchmark files; if two folders have a file of the same name, the earlier folder counts."""
        return tuple(root / BENCHMARK_FILES for root in self.roots)

    def benchmark_file(self, name: str) -> Path | None:
        """Return the file of the benchmark *name*; None if there is none."""
        folders = (*self.benchmark_folders, EMBEDDED_BENCHMARKS)
        found = (folder / f"{name.partition('/')[0]}.yaml" for folder in folders)
        return next((path for path in found if path.is_file()), None)

    def has_data(self, benchmark_name: str) -> bool:
        """Return whether there are images, shards, results or anything else of a benchmark."""
        return any(
            (root / name).is_dir() for root in self.roots for name in (benchmark_name, f"{RESULTS}/{benchmark_name}")
        )

    def require_own(self, path: Path) -> None:
        """Refuse to write *path* if it is in the store."""
        if self.store is not None and path.is_relative_to(self.store) and not path.is_relative_to(self.root):
            raise DataRootError(
                f"{path} cannot be written, since it is in the store {self.store} (TTA_SHARDS_ROOT) of user "
                f"{owner_of(self.store)}, which is only read; expected a path under your data root {self.root}: ask "
                "that user to make it, or unset TTA_SHARDS_ROOT to use your own shards"
            )

    @property
    def metrics(self) -> Path:
        """The DuckDB database."""
        return self.root / "metrics.duckdb"

    @property
    def text_features(self) -> Path:
        """Folder of the text features of CLIP models; benchmarks share it."""
        return (self.scratch or self.root) / "text_features"

    def class_map(self, benchmark_name: str) -> Path:
        """File of the pinned class map."""
        file, _, part = benchmark_name.partition("/")
        return self._shards_root(file) / file / (f"{CLASS_MAPS}/{part}.json" if part else CLASS_MAP_FILE)

    def generated_source(self, benchmark_name: str) -> Path:
        """Root of the images that a benchmark generates, with the layout of ImageNet-C."""
        return self._shared(benchmark_name, "source")

    def shards(self, benchmark_name: str, cell: Cell) -> Path:
        """Folder of one cell's shards, writer's record and manifest."""
        return self._shared(benchmark_name, SHARDS) / cell.path

    def source_model(self, benchmark_name: str, model: str) -> Path:
        """Weights file of a model that a benchmark trains, in the store if there; facts are stored next to it."""
        name = f"{model}.safetensors"
        shared = self._shared(benchmark_name, SOURCE_MODELS) / name
        return shared if shared.exists() else self._of(benchmark_name, SOURCE_MODELS) / name

    def training(self, benchmark_name: str, model: str) -> Path:
        """Folder of a training: its checkpoints, the last and the best weights."""
        return self._of(benchmark_name, "training") / model

    @property
    def results_root(self) -> Path:
        """Folder of all results; the database is made from them, and they may be copied to other machines."""
        return (self.scratch or self.root) / RESULTS

    def results(self, benchmark_name: str) -> Path:
        """Folder of a benchmark's results, with the predictions that were kept."""
        return self.results_root / benchmark_name

    def states(self, benchmark_name: str) -> Path:
        """Folder of the adaptation states from which interrupted streams resume."""
        return self._outcome(benchmark_name, "states")

    def report(self, benchmark_name: str) -> Path:
        """Folder of the report."""
        return self._of(benchmark_name, "report")

    def intervals(self, benchmark: str, dataset: str) -> Path:
        """File that keeps the intervals of the leaderboard of *dataset*, in the benchmark file *benchmark*."""
        return self.root / benchmark / "intervals" / f"{dataset}.json"

    def tuning(self, benchmark_name: str) -> Path:
        """Folder of the plots of tunings; the records of tunings are results."""
        return self._of(benchmark_name, "tuning")

    def slurm(self, benchmark_name: str) -> Path:
        """Folder of the scripts and logs of Slurm's jobs."""
        return self._of(benchmark_name, "slurm")

    def spill_root(self, benchmark_name: str) -> Path:
        """Folder of a source's temporary files, such as the index of an archive."""
        return self.root / benchmark_name

    def _shared(self, benchmark_name: str, folder: str) -> Path:
        """Return *folder* of a benchmark in the store, or under the data root if the benchmark is not in the store."""
        return _folder(self._shards_root(benchmark_name.partition("/")[0]), benchmark_name, folder)

    def _outcome(self, benchmark_name: str, folder: str) -> Path:
        return _folder(self.scratch or self.root, benchmark_name, folder)

    def _of(self, benchmark_name: str, folder: str) -> Path:
        return _folder(self.root, benchmark_name, folder)

    def _shards_root(self, file: str) -> Path:
        """Return the root with the shards of the benchmarks in the benchmark file *file*."""
        if self.store is None or not (self.store / file / SHARDS).is_dir():
            return self.root
        if (self.root / file / SHARDS).is_dir():
            raise DataRootError(
                f"There are shards of {file} both in {self.root / file / SHARDS} and in the store {self.store} "
                "(TTA_SHARDS_ROOT); expected shards in only one of the two, so that it is clear which were evaluated: "
                "remove or rename yours, or unset TTA_SHARDS_ROOT"
            )
        return self.store


def owner_of(path: Path) -> str:
    """Return the name of the user who owns *path*, or the user's number if there is no name."""
    user = path.stat().st_uid
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _folder(root: Path, benchmark_name: str, folder: str) -> Path:
    """Return *folder* of a benchmark under *root*; for one of several datasets in a file, `<folder>/<dataset>`."""
    file, _, part = benchmark_name.partition("/")
    return root / file / folder / part


def _require_plain(text: str) -> None:
    if "?" in text:
        raise DataRootError(
            f"The data root {text!r} contains '?', at which DuckDB stops reading a name; expected a path without '?': "
            "rename the folder"
        )
    if not text.isascii() and (sentence := misread_sentence(text)):
        raise DataRootError(f"The data root has {sentence}")
    if any(not character.isprintable() for character in text):
        raise DataRootError(
            f"The data root {text!r} contains characters that cannot be printed; expected printable characters "
            "without line breaks: rename the folder"
        )
