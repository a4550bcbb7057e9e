"""Loads all benchmark files; faulty files and experiments are reported and left out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiments import Experiment
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.locations import Locations
from tta_pipeline.mistakes import mistakes, shortened
from tta_pipeline.shifts.loading import ENDING as SHIFT_SET_ENDING
from tta_pipeline.yaml_document import read_document

ENDING = ".yaml"
EMBEDDED = Path(__file__).parent
"""Folder of the benchmarks that come with the project."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Why a benchmark file, or one experiment of it, is left out."""

    path: Path
    experiment: str | None = None
    """Name of the experiment that is left out; None: the whole file."""
    sentence: str
    """Message with the path: what was found, what was expected and what to do; a line per mistake."""

    @property
    def benchmark(self) -> str:
        """Name of the file without its suffix; it may be invalid as a benchmark name."""
        return self.path.stem


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """Content of folders of benchmark files."""

    benchmarks: Mapping[str, Benchmark]
    """Benchmarks by name, each with its valid experiments."""
    faults: tuple[Fault, ...]

    def benchmark(self, name: str) -> Benchmark:
        """Return the benchmark *name*.

        Raises:
            BenchmarkFileError: its file is faulty, or there is none.
        """
        if name in self.benchmarks:
            return self.benchmarks[name]
        known = ", ".join(self.benchmarks)
        raise self._left_out(name, None) or BenchmarkFileError(f"found no benchmark {name!r}; expected one of {known}")

    def experiment(self, benchmark_name: str, name: str) -> Experiment:
        """Return the experiment *name* of *benchmark_name*.

        Raises:
            BenchmarkFileError: the experiment or the whole file is faulty, or the experiment does not exist.
        """
        experiments = self.benchmark(benchmark_name).experiments
        if name in experiments:
            return experiments[name]
        known = ", ".join(experiments) or "none, since there are no experiments"
        raise self._left_out(benchmark_name, name) or BenchmarkFileError(
            f"found no experiment {name!r} of {benchmark_name}; expected one of {known}"
        )

    def faults_of(self, benchmark_name: str) -> tuple[Fault, ...]:
        """Return the faults of experiments that are left out of the loaded benchmark *benchmark_name*."""
        return tuple(
            fault for fault in self.faults if fault.benchmark == benchmark_name and fault.experiment is not None
        )

    def _left_out(self, benchmark_name: str, experiment_name: str | None) -> BenchmarkFileError | None:
        for fault in self.faults:
            if (fault.benchmark, fault.experiment) == (benchmark_name, experiment_name):
                return BenchmarkFileError(fault.sentence)
        return None


def load_all(locations: Locations) -> Loaded:
    """Read the benchmark files that come with the project, and those under the data root."""
    return load_benchmarks(EMBEDDED, locations.benchmark_files)


def load_benchmarks(*folders: Path) -> Loaded:
    """Read every benchmark file in *folders*; of two names that differ only in case, the first counts."""
    benchmarks: dict[str, Benchmark] = {}
    faults: list[Fault] = []
    paths: dict[str, Path] = {}
    for path in _files(*folders, faults=faults):
        same = paths.setdefault(path.stem.lower(), path)
        if same != path:
            sentence = f"{path} and {same} have the same name; expected different names: rename one"
            faults.append(Fault(path=path, sentence=sentence))
            continue
        try:
            benchmark, left_out = load_what_is_right(path)
        except BenchmarkFileError as error:
            faults.append(Fault(path=path, sentence=_printable(error)))
        else:
            benchmarks[benchmark.name] = benchmark
            faults += left_out
    return Loaded(benchmarks=benchmarks, faults=tuple(faults))


def load_benchmark(path: Path) -> Benchmark:
    """Read one benchmark file, which must be entirely valid; `load_benchmarks` leaves faulty parts out.

    Raises:
        BenchmarkFileError: the file is not YAML, or a field is missing, unknown or out of range; the message names
            every such field, its value and the choices.
    """
    return validated(path, read_document(path))


def validated(path: Path, content: dict[str, Any]) -> Benchmark:
    """Return the benchmark defined by *content* of the file *path*.

    Raises:
        BenchmarkFileError: see `load_benchmark`.
    """
    if content.get("name", path.stem) != path.stem:
        raise BenchmarkFileError(
            f"{path}: name is {shortened(content['name'])}; expected no name: the file name is used"
        )
    try:
        return Benchmark.model_validate({**content, "name": path.stem}, context={"folder": path.parent})
    except ValidationError as error:
        raise BenchmarkFileError(f"{path}: " + f"\n{path}: ".join(mistakes(error, ""))) from None


def load_what_is_right(path: Path) -> tuple[Benchmark, tuple[Fault, ...]]:
    """Read one benchmark file, and leave out its faulty experiments.

    Raises:
        BenchmarkFileError: anything else in the file is faulty; the message lists all mistakes.
    """
    content = read_document(path)
    try:
        return validated(path, content), ()
    except BenchmarkFileError as error:
        if not isinstance(content.get("experiments"), dict):
            raise
        try:
            validated(path, {**content, "experiments": {}})
        except BenchmarkFileError:
            raise error from None
    return _without_faulty_experiments(path, content)


def _without_faulty_experiments(path: Path, content: dict[str, Any]) -> tuple[Benchmark, tuple[Fault, ...]]:
    right: dict[str, Experiment] = {}
    faults = []
    for name, experiment in content["experiments"].items():
        try:
            found = validated(path, {**content, "experiments": {name: experiment}}).experiments
            for twice in found.keys() & right.keys():
                raise BenchmarkFileError(f"{path}: experiments.{name} makes another {twice}; expected each once")  # noqa: TRY301
            validated(path, {**content, "experiments": right | found})
        except BenchmarkFileError as error:
            faults.append(Fault(path=path, experiment=name, sentence=_printable(error)))
        else:
            right |= found
    return validated(path, {**content, "experiments": right}), tuple(faults)


def _files(*folders: Path, faults: list[Fault]) -> Iterator[Path]:
    """Yield the paths of benchmark files; hidden files, which editors and archives leave, are skipped."""
    for folder in folders:
        try:
            found = sorted(path for path in folder.iterdir() if _is_benchmark_file(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            sentence = f"{folder} cannot be listed ({error.strerror}); expected a folder of benchmark files: correct it"
            faults.append(Fault(path=folder, sentence=sentence))
            continue
        yield from found


def _is_benchmark_file(path: Path) -> bool:
    return path.suffix == ENDING and path.name[0] != "." and not path.name.endswith(SHIFT_SET_ENDING)


def _printable(error: BenchmarkFileError) -> str:
    """Return the message of *error* as printable text; a path can hold bytes that are not text."""
    return str(error).encode("utf-8", "backslashreplace").decode()
