"""Where things lie under the data root: the one place that joins paths."""

import os
from dataclasses import dataclass
from pathlib import Path

from tta_pipeline.errors import DataRootError
from tta_pipeline.partitions import Cell

RESULT_KINDS = ("evaluations", "loader_benchmarks", "shard_sets", "trainings")
"""Kinds of result records, each a folder of its own."""
STOP_FILE = "stop"
"""Name of the file in the folder of a training with which the user ends it after the present epoch."""
CLASS_MAPS = "class_maps"
"""Folder of the pinned class maps of a benchmark with several shift sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Locations:
    """The folders and files of a data root.

    Raises:
        DataRootError: its path has a character that logs or the database cannot handle.
    """

    root: Path

    def __post_init__(self) -> None:
        """Refuse a path that would fail, or be misread, much later."""
        text = str(self.root)
        if "?" in text:
            raise DataRootError(
                f"the data root is {text!r}; expected no '?', at which DuckDB stops reading a name: rename it"
            )
        if any(not character.isprintable() for character in text):
            raise DataRootError(
                f"the data root is {text!r}; expected printable characters without line breaks: rename it"
            )

    @classmethod
    def from_environment(cls) -> "Locations":
        """Use `TTA_DATA_ROOT`, by default `data/` in the working directory."""
        return cls(root=Path(os.environ.get("TTA_DATA_ROOT", "data")).absolute())

    @property
    def benchmark_files(self) -> Path:
        """Folder of the user's own benchmark files."""
        return self.root / "benchmarks"

    @property
    def metrics(self) -> Path:
        """The DuckDB database."""
        return self.root / "metrics.duckdb"

    def class_map(self, benchmark_name: str) -> Path:
        """File of the pinned class map."""
        file, _, part = benchmark_name.partition("/")
        return self.root / file / (f"{CLASS_MAPS}/{part}.json" if part else "class_map.json")

    def generated_source(self, benchmark_name: str) -> Path:
        """Root of the images that a benchmark generates, laid out as ImageNet-C is."""
        return self._of(benchmark_name, "source")

    def shards(self, benchmark_name: str, cell: Cell) -> Path:
        """Folder of one cell's shards, writer's record and manifest."""
        return self._of(benchmark_name, "shards") / cell.path

    def transformed(self, benchmark_name: str, transform: str, cell: Cell) -> Path:
        """Folder of the shard set that a transform makes from one cell."""
        return self._of(benchmark_name, f"transformed/{transform}") / cell.path

    def source_model(self, benchmark_name: str, model: str) -> Path:
        """File with the weights of a model that a benchmark trains; a description lies beside it."""
        return self._of(benchmark_name, "source_models") / f"{model}.safetensors"

    def training(self, benchmark_name: str, model: str) -> Path:
        """Folder of a training: its checkpoints, the last and the best weights, and the request to stop."""
        return self._of(benchmark_name, "training") / model

    def results(self, benchmark_name: str) -> Path:
        """Folder of the result records, the truth from which the database is made."""
        return self._of(benchmark_name, "results")

    def states(self, benchmark_name: str) -> Path:
        """Folder of the adaptation states from which interrupted streams resume."""
        return self._of(benchmark_name, "states")

    def predictions(self, benchmark_name: str) -> Path:
        """Folder of the predictions of each sample, if a run is asked to keep them."""
        return self._of(benchmark_name, "predictions")

    def normalisations(self, benchmark_name: str) -> Path:
        """Folder of what the check `normalisation_fits` has measured of models on clean images."""
        return self._of(benchmark_name, "normalisations")

    def report(self, benchmark_name: str) -> Path:
        """Folder of the report."""
        return self._of(benchmark_name, "report")

    def submissions(self, benchmark_name: str) -> Path:
        """Folder of what was submitted to a cluster: pieces, scripts, logs."""
        return self._of(benchmark_name, "submissions")

    def spilled(self, benchmark_name: str) -> Path:
        """Folder of what a source needs for a while, such as the index of an archive."""
        return self.root / benchmark_name

    def _of(self, benchmark_name: str, folder: str) -> Path:
        """Return *folder* of a benchmark; of one of several sets in a file, `<folder>/<shift set>`."""
        file, _, part = benchmark_name.partition("/")
        return self.root / file / folder / part
