"""Loads all benchmark files; faulty files and experiments are reported and left out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiments import Experiment
from tta_pipeline.benchmarks.matrix import with_matrices
from tta_pipeline.data.shifts.loading import ENDING as SHIFT_SET_ENDING
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.util.files import advice
from tta_pipeline.util.locations import RESULT_KINDS, Locations
from tta_pipeline.util.mistakes import mistakes, shortened
from tta_pipeline.util.naming import is_benchmark_name
from tta_pipeline.util.yaml_document import read_document

ENDING = ".yaml"
EMBEDDED = Path(__file__).parent
"""Folder of the benchmarks that come with the project."""
NOBODY_EXPECTED = "an error that nobody expected"
"""What is said of an error that is none of ours: of a user's own code, or a mistake of this project."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Why a benchmark file, or one experiment of it, is left out."""

    path: Path
    part: str | None = None
    """Shift set that is left out, or whose experiment is; None: the file has one set, or none of it can be read."""
    experiment: str | None = None
    """Name of the experiment that is left out; None: the whole file or part."""
    sentence: str
    """Message with the path: what was found, what was expected and what to do; a line per mistake."""

    @property
    def benchmark(self) -> str:
        """Name of the file without its suffix, and of the part; it may be invalid as a benchmark name."""
        return f"{self.path.stem}/{self.part}" if self.part else self.path.stem


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
    """Read the benchmark files that come with the project, those under the data root, and those of the store.

    A file under the data root counts instead of the store's file of the same name, whose shards its experiments read.
    A benchmark that has results of another form of its file is left out: they would count twice.
    """
    own, *stores = locations.benchmark_folders
    loaded = load_benchmarks(EMBEDDED, own, instead_of=stores)
    sentences = {name: _why_counted_twice(each, locations) for name, each in loaded.benchmarks.items()}
    faults = tuple(
        Fault(
            path=locations.benchmark_files / f"{loaded.benchmarks[name].file}{ENDING}",
            part=name.partition("/")[2] or None,
            sentence=sentence,
        )
        for name, sentence in sentences.items()
        if sentence
    )
    return Loaded(
        benchmarks={name: each for name, each in loaded.benchmarks.items() if not sentences[name]},
        faults=(*loaded.faults, *faults),
    )


def _why_counted_twice(benchmark: Benchmark, locations: Locations) -> str:
    """Return why cells of *benchmark* would count twice, or nobody can tell; empty if all is well."""
    name, results = benchmark.name, locations.results(benchmark.name)
    try:
        folder = other_results(benchmark, locations)
    except OSError as error:
        return (
            f"{name}: {error.filename} cannot be looked at ({error.strerror}); expected a folder of results: "
            f"{advice(error)}"
        )
    if folder is None:
        return ""
    return (
        f"{name}: found {folder}, from when its file had {'one shift set' if '/' in name else 'several'}; "
        f"expected results in {results} only, or cells would count twice: move what is there, or rename the benchmark "
        "file"
    )


def other_results(benchmark: Benchmark, locations: Locations) -> Path | None:
    """Return a folder of results from when the file of *benchmark* had one shift set, or several, and now has not."""
    results = locations.results(benchmark.file)
    before = results if benchmark.is_one_of_several else results / benchmark.shift_set.name
    return next((before / kind for kind in RESULT_KINDS if (before / kind).is_dir()), None)


def load_benchmarks(*folders: Path, instead_of: Sequence[Path] = ()) -> Loaded:
    """Read every benchmark file in *folders*; of two names that differ only in case, the first counts.

    Those in *instead_of* are read too, but for files of the same names as in *folders*.
    """
    benchmarks: dict[str, Benchmark] = {}
    faults: list[Fault] = []
    paths: dict[str, Path] = {}
    found_in = list(_files(*folders, faults=faults))
    names = {path.name for path in found_in}
    others = (path for path in _files(*instead_of, faults=faults) if path.name not in names)
    for path in (*found_in, *others):
        same = paths.setdefault(path.stem.lower(), path)
        if same != path:
            sentence = f"{path} and {same} have the same name; expected different names: rename one"
            faults.append(Fault(path=path, sentence=sentence))
            continue
        try:
            found, left_out = load_what_is_right(path)
        except BenchmarkFileError as error:
            faults.append(Fault(path=path, sentence=_printable(error)))
        else:
            benchmarks |= {benchmark.name: benchmark for benchmark in found}
            faults += left_out
    return Loaded(benchmarks=benchmarks, faults=tuple(faults))


def load_benchmark(path: Path, part: str | None = None) -> Benchmark:
    """Read one benchmark file, which must be entirely valid; `load_benchmarks` leaves faulty parts out.

    Args:
        path: The file.
        part: Name of the shift set, if the file has several.

    Raises:
        BenchmarkFileError: the file is not YAML, or a field is missing, unknown or out of range; the message names
            every such field, its value and the choices.
    """
    with _named(path):
        parts = {each.name: each for each in _parts(path, read_document(path))}
    if part not in parts:
        known = ", ".join(str(name) for name in parts if name) or "none, since it has one shift set"
        raise BenchmarkFileError(f"{path}: found no set {part!r}; expected one of {known}")
    return parts[part].validated()


def load_what_is_right(path: Path) -> tuple[tuple[Benchmark, ...], tuple[Fault, ...]]:
    """Read one benchmark file: a benchmark, or one for each of its sets; leave out faulty sets and experiments.

    Raises:
        BenchmarkFileError: the file has one set, and something beside its experiments is faulty; the message lists all
            mistakes.
    """
    benchmarks: list[Benchmark] = []
    faults: list[Fault] = []
    with _named(path):
        parts = tuple(_parts(path, read_document(path)))
    for part in parts:
        try:
            benchmark, left_out = part.what_is_right()
        except BenchmarkFileError as error:
            if part.name is None:
                raise
            faults.append(Fault(path=path, part=part.name, sentence=_printable(error)))
        else:
            benchmarks.append(benchmark)
            faults += left_out
    return tuple(benchmarks), tuple(faults)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Raise any error as that of the benchmark file *path*, so that it takes no other file with it."""
    try:
        yield
    except BenchmarkFileError:
        raise
    except (Exception, SystemExit) as error:
        raise BenchmarkFileError(f"{path}: {_unexpected(error)}") from error


def _unexpected(error: BaseException) -> str:
    return (
        f"found {NOBODY_EXPECTED}, {shortened(error, 200)}; expected what docs/reference/benchmark_files.md describes: "
        "correct it"
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The content of a benchmark file for one shift set."""

    path: Path
    name: str | None
    """Name of the set; None if the file has one set only."""
    content: dict[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)
    """Matrix of each experiment that a matrix makes."""

    def validated(self, **instead: Any) -> Benchmark:
        """Return the benchmark, with the fields *instead* of those in the file."""
        stem = self.path.stem
        name = f"{stem}/{self.name}" if self.name else stem
        where = f"{self.path}, set {self.name}" if self.name else f"{self.path}"
        if self.content.get("name", stem) != stem:
            raise BenchmarkFileError(
                f"{where}: name is {shortened(self.content['name'])}; expected no name: the file name is used"
            )
        try:
            return Benchmark.model_validate(
                {**self.content, "name": name, **instead}, context={"folder": self.path.parent}
            )
        except ValidationError as error:
            found = list(mistakes(error, ""))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's own method can raise anything
            found = [_unexpected(error)]
        # Raised here and not there, or the error would keep what validation had made alive.
        raise BenchmarkFileError(f"{where}: " + f"\n{where}: ".join(map(self._located, found)))

    def _located(self, mistake: str) -> str:
        """Return the sentence *mistake* about an experiment with the field of the file that makes it."""
        return re.sub(
            r"^experiments\.(\w+)", lambda found: f"{self.origins.get(found[1], 'experiments')}.{found[1]}", mistake
        )

    def what_is_right(self) -> tuple[Benchmark, tuple[Fault, ...]]:
        """Return the benchmark without its faulty experiments, and their faults."""
        try:
            return self.validated(), ()
        except BenchmarkFileError as error:
            if not isinstance(self.content.get("experiments"), dict):
                raise
            try:
                self.validated(experiments={})
            except BenchmarkFileError:
                raise error from None
        return self._without_faulty_experiments()

    def _without_faulty_experiments(self) -> tuple[Benchmark, tuple[Fault, ...]]:
        right: dict[str, Experiment] = {}
        faults = []
        for name, experiment in self.content["experiments"].items():
            try:
                found = self.validated(experiments={name: experiment}).experiments
                for twice in found.keys() & right.keys():
                    raise BenchmarkFileError(  # noqa: TRY301
                        f"{self.path}: experiments.{name} makes another {twice}; expected each once"
                    )
                self.validated(experiments=right | found)
            except BenchmarkFileError as error:
                faults.append(Fault(path=self.path, part=self.name, experiment=name, sentence=_printable(error)))
            else:
                right |= found
        return self.validated(experiments=right), tuple(faults)


def _parts(path: Path, content: dict[str, Any]) -> Iterator[_Part]:
    """Yield what *content* of the file *path* says of each of its sets; what is beside `sets` holds for all of them.

    Raises:
        BenchmarkFileError: `sets` is no mapping of sections, or a field is in the wrong place.
    """
    expanded, origins = _expanded(path, content)
    content = dict(expanded)
    if "sets" not in content:
        yield _Part(path=path, name=None, content=content, origins=origins)
        return
    sets, shared = content["sets"], {name: value for name, value in content.items() if name != "sets"}
    if not isinstance(sets, dict) or not sets or not all(isinstance(each, dict) for each in sets.values()):
        raise BenchmarkFileError(
            f"{path}: sets is {shortened(sets)}; expected a section for each shift set, as imagenet_r: {{source: ...}}"
        )
    for name, section in sets.items():
        if not is_benchmark_name(str(name)):
            raise BenchmarkFileError(f"{path}: sets has {shortened(name)}; expected letters, digits and single _")
        if odd := sorted(set(section) - _OF_A_SET):
            raise BenchmarkFileError(
                f"{path}: sets.{name} has {', '.join(odd)}; expected some of {', '.join(sorted(_OF_A_SET))}"
            )
        if twice := sorted({"source", "shift_set", "own"} & set(shared)):
            raise BenchmarkFileError(f"{path}: found {', '.join(twice)} beside sets; expected it in each of the sets")
        of_a_set = section if "own" in section else {**section, "shift_set": name}
        yield _Part(path=path, name=name, content={**shared, **of_a_set}, origins=origins)


def _expanded(path: Path, content: dict[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return *content* with its matrices made to experiments, and the matrix of each."""
    try:
        return with_matrices(content)
    except ValidationError as error:
        found = list(mistakes(error, "matrix"))
    except ValueError as error:
        found = [str(error)]
    raise BenchmarkFileError(f"{path}: " + f"\n{path}: ".join(found))


_OF_A_SET = frozenset({
    "source", "own", "corruptions", "severities", "class_map", "classes", "image_size", "shards", "train_shards",
})  # fmt: skip
"""Fields that a section of `sets` can have."""


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
