"""Load all benchmark files; faulty files and experiments are reported and left out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.matrix import expand_matrices
from tta_pipeline.data.datasets.dataset_files import ENDING as DATASET_ENDING
from tta_pipeline.domain.locations import EMBEDDED_BENCHMARKS, Locations
from tta_pipeline.errors import BenchmarkFileError
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.identifiers import is_benchmark_name
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.short_lists import short_repr
from tta_pipeline.util.validation_errors import mistakes
from tta_pipeline.util.yaml_document import read_document

ENDING = ".yaml"
FIRST_FILE = EMBEDDED_BENCHMARKS / "templates" / "first.yaml"
"""The benchmark file of a new project."""
UNEXPECTED_ERROR = "an unexpected error"
"""Words for an error of an unexpected type, from a user's own code or a bug of this project."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The reason why a benchmark file, or one of its experiments, is left out."""

    path: Path
    part: str | None = None
    """Dataset that is left out, or that has the experiment that is left out; None: the file has one dataset, or
    cannot be read at all."""
    experiment: str | None = None
    """Name of the experiment that is left out; None: the whole file or part is."""
    sentence: str
    """Message with the path: what was found, what was expected and what to do; one line for each mistake."""

    @property
    def benchmark(self) -> str:
        """Name of the benchmark, made of file and part; it may be invalid as a benchmark name."""
        return f"{self.path.stem}/{self.part}" if self.part else self.path.stem


def experiment_choices(benchmark: Benchmark, names: object) -> str:
    """Return what was expected instead of *names*, one or several names that *benchmark* has no experiments for."""
    if not benchmark.experiments:
        return "an experiment of the benchmark file, which has no valid ones"
    listed_in = f"`tta-pipeline results list {benchmark.name}`"
    return f"one of {name_choices(names, benchmark.experiments, listed_in=listed_in)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedBenchmarks:
    """The benchmarks and faults found in folders of benchmark files."""

    benchmarks: Mapping[str, Benchmark]
    """Benchmarks by name, each with only its valid experiments."""
    faults: tuple[Fault, ...]
    folders: tuple[Path, ...]
    """The user's folders of benchmark files."""

    def benchmark(self, name: str) -> Benchmark:
        """Return the benchmark *name*.

        Raises:
            BenchmarkFileError: the file of the benchmark is faulty, or there is no such benchmark.
        """
        if found := self.benchmarks.get(name):
            return found
        known = name_choices(name, self.benchmarks, listed_in="`tta-pipeline doctor`")
        where = " or ".join(map(str, self.folders))
        raise self._find_fault(name, None) or BenchmarkFileError(
            f"There is no benchmark {name!r} in {where}; expected one of {known}: correct the name, change to the "
            "folder of your project, or set TTA_DATA_ROOT"
        )

    def parts_of(self, name: str) -> tuple[str, ...]:
        """Return the benchmarks of the file *name*: one for each of its datasets, also for faulty ones, or *name*."""
        every = dict.fromkeys((*self.benchmarks, *(fault.benchmark for fault in self.faults)))
        return tuple(each for each in every if each.startswith(f"{name}/")) or (name,)

    def only(self, names: Sequence[str]) -> "LoadedBenchmarks":
        """Return the benchmarks *names* with their faults.

        Raises:
            BenchmarkFileError: see `benchmark`.
        """
        faults = tuple(fault for fault in self.faults if fault.benchmark in names)
        return replace(self, benchmarks={name: self.benchmark(name) for name in names}, faults=faults)

    def experiment(self, benchmark_name: str, name: str) -> Experiment:
        """Return the experiment *name* of *benchmark_name*.

        Raises:
            BenchmarkFileError: the experiment or the whole file is faulty, or the experiment does not exist.
        """
        experiments = self.benchmark(benchmark_name).experiments
        if name in experiments:
            return experiments[name]
        fault = self._find_fault(benchmark_name, name) or self._find_fault(benchmark_name, None)  # another file's
        raise fault or BenchmarkFileError(
            f"{benchmark_name} has no experiment {name!r}; expected "
            f"{experiment_choices(self.benchmark(benchmark_name), name)}"
        )

    def choose_experiments(self, benchmark_name: str, names: Sequence[str]) -> tuple[str, ...]:
        """Return *names*, each once; without names, all experiments of *benchmark_name*.

        Raises:
            BenchmarkFileError: see `experiment`.
        """
        for name in names:
            self.experiment(benchmark_name, name)
        return tuple(dict.fromkeys(names)) or tuple(self.benchmark(benchmark_name).experiments)

    def faults_of(self, benchmark_name: str) -> tuple[Fault, ...]:
        """Return the faults of experiments that are left out of the loaded benchmark *benchmark_name*."""
        return tuple(
            fault for fault in self.faults if fault.benchmark == benchmark_name and fault.experiment is not None
        )

    def _find_fault(self, benchmark_name: str, experiment_name: str | None) -> BenchmarkFileError | None:
        for fault in self.faults:
            if (fault.benchmark, fault.experiment) == (benchmark_name, experiment_name):
                return BenchmarkFileError(fault.sentence)
        return None


def load_all_benchmarks(locations: Locations) -> LoadedBenchmarks:
    """Read the benchmark files that come with the project, those under the data root, and in the store.

    A file under the data root replaces the store's file of the same name; its experiments read the store's shards.
    """
    own, *stores = locations.benchmark_folders
    return load_benchmarks(EMBEDDED_BENCHMARKS, own, instead_of=stores)


def load_benchmarks(*folders: Path, instead_of: Sequence[Path] = ()) -> LoadedBenchmarks:
    """Read every benchmark file in *folders*; if two names differ only in case, the first file counts.

    Files in *instead_of* are read too, except those with the name of a file in *folders*.
    """
    benchmarks: dict[str, Benchmark] = {}
    faults: list[Fault] = []
    paths: dict[str, Path] = {}
    found_in = list(_find_files(*folders, faults=faults))
    names = {path.name for path in found_in}
    others = (path for path in _find_files(*instead_of, faults=faults) if path.name not in names)
    for path in (*found_in, *others):
        same = paths.setdefault(path.stem.lower(), path)
        if same != path:
            sentence = f"{path} and {same} have the same name; expected different names: rename one"
            faults.append(Fault(path=path, sentence=sentence))
            continue
        try:
            found, left_out = load_valid_parts(path)
        except BenchmarkFileError as error:
            faults.append(Fault(path=path, sentence=_printable(error)))
        else:
            benchmarks |= {benchmark.name: benchmark for benchmark in found}
            faults += left_out
    own = tuple(folder for folder in (*folders, *instead_of) if folder != EMBEDDED_BENCHMARKS)
    return LoadedBenchmarks(benchmarks=benchmarks, faults=tuple(faults), folders=own)


def load_benchmark(path: Path) -> Benchmark:
    """Read a benchmark file of one dataset, which must be entirely valid; `load_benchmarks` leaves faulty parts out.

    Raises:
        BenchmarkFileError: the file is not YAML, or a field is missing, unknown or out of range; the message names
            every such field, its value and the choices. Or the file has several datasets.
    """
    with _named(path):
        found = [part.validate() for part in _split_sets(path, read_document(path))]
        if len(found) > 1:
            raise BenchmarkFileError(
                f"{path} has {len(found)} datasets; expected only one: move the others to their own files"
            )
    return found[0]


def validate_content(path: Path, content: dict[str, Any], *, name: str) -> tuple[Benchmark, ...]:
    """Return the benchmark *name* of *content*, or one for each of its datasets; all of it must be valid.

    Args:
        path: The file that has the content, as errors name it; dataset files are searched in its folder.
        content: Content of a benchmark file.
        name: Name instead of the file's.

    Raises:
        BenchmarkFileError: see `load_benchmark`.
    """
    with _named(path):
        return tuple(replace(part, file=name).validate() for part in _split_sets(path, content))


def load_valid_parts(path: Path) -> tuple[tuple[Benchmark, ...], tuple[Fault, ...]]:
    """Read one benchmark file, with one benchmark per dataset, and leave out faulty datasets and experiments.

    Raises:
        BenchmarkFileError: the file has one dataset, and a part other than its experiments is faulty; the message
            lists all mistakes.
    """
    benchmarks: list[Benchmark] = []
    faults: list[Fault] = []
    with _named(path):
        parts = tuple(_split_sets(path, read_document(path)))
    for part in parts:
        try:
            benchmark, left_out = part.validate_leniently()
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
    """Raise any error as an error of the benchmark file *path*, so that other files are still read."""
    try:
        yield
    except BenchmarkFileError:
        raise
    except (Exception, SystemExit) as error:
        raise BenchmarkFileError(f"{path}: {_describe_unexpected(error)}") from error


def _describe_unexpected(error: BaseException) -> str:
    return (
        f"reading the file raised {UNEXPECTED_ERROR}, {short_repr(error, 200)}; expected a file as described in "
        "docs/reference/benchmark/index.md: correct the field or the Python code that the error names"
    )


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The content of a benchmark file for one dataset."""

    path: Path
    file: str
    """Name of the benchmark, or its part before the dataset."""
    name: str | None
    """Name of the dataset; None if the file has only one."""
    content: dict[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)
    """Matrix of each experiment that a matrix makes."""

    def validate(self, **instead: Any) -> Benchmark:
        """Return the benchmark, with the fields *instead* replacing the file's fields.

        Raises:
            BenchmarkFileError: the content is faulty; the message lists all mistakes.
        """
        name = f"{self.file}/{self.name}" if self.name else self.file
        where = f"{self.path}, set {self.name}" if self.name else f"{self.path}"
        if self.content.get("name", self.file) != self.file:
            raise BenchmarkFileError(
                f"{where}: name is {short_repr(self.content['name'])}, but the name of the file is used; expected no "
                "field name: remove it, or rename the file"
            )
        content = {**self.content, "name": name, **instead}
        try:
            benchmark = Benchmark.model_validate(content, context={"folder": self.path.parent})
            return benchmark.read_from(hash_file(self.path) if self.path.exists() else "")
        except ValidationError as error:
            found = list(mistakes(error, "", content))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's own method can raise anything
            found = [_describe_unexpected(error)]
        # Raised outside the `except` blocks, or the error would keep validation's objects alive.
        raise BenchmarkFileError(f"{where}: " + f"\n{where}: ".join(map(self._name_origin, found)))

    def _name_origin(self, mistake: str) -> str:
        """Return *mistake*, with `experiments` replaced by the field of the file that makes the experiment."""
        return re.sub(
            r"^experiments\.(\w+)", lambda found: f"{self.origins.get(found[1], 'experiments')}.{found[1]}", mistake
        )

    def validate_leniently(self) -> tuple[Benchmark, tuple[Fault, ...]]:
        """Return the benchmark without its faulty experiments, and their faults."""
        try:
            return self.validate(), ()
        except BenchmarkFileError as error:
            if not isinstance(self.content.get("experiments"), dict):
                raise
            try:
                self.validate(experiments={})
            except BenchmarkFileError:
                raise error from None
        return self._drop_faulty_experiments()

    def _drop_faulty_experiments(self) -> tuple[Benchmark, tuple[Fault, ...]]:
        right: dict[str, Experiment] = {}
        faults = []
        for name, experiment in self.content["experiments"].items():
            try:
                found = self.validate(experiments={name: experiment}).experiments
                for twice in found.keys() & right.keys():
                    raise BenchmarkFileError(  # noqa: TRY301
                        f"{self.path}: experiments.{name} makes the experiment {twice}, which already exists; "
                        "expected distinct names: rename one"
                    )
                self.validate(experiments=right | found)
            except BenchmarkFileError as error:
                faults.append(Fault(path=self.path, part=self.name, experiment=name, sentence=_printable(error)))
            else:
                right |= found
        benchmark = self.validate(experiments=right)
        return benchmark.read_from(benchmark.file_sha256, [str(fault.experiment) for fault in faults]), tuple(faults)


def _split_sets(path: Path, content: dict[str, Any]) -> Iterator[_Part]:
    """Yield the content of the file *path* for each of its datasets; fields outside `sets` apply to all of them.

    Raises:
        BenchmarkFileError: `sets` is not a mapping of sections, or a field is in the wrong place.
    """
    expanded, origins = _expand_matrices(path, content)
    content = dict(expanded)
    if "sets" not in content:
        yield _Part(path=path, file=path.stem, name=None, content=content, origins=origins)
        return
    sets, shared = content["sets"], {name: value for name, value in content.items() if name != "sets"}
    if not isinstance(sets, dict) or not sets or not all(isinstance(each, dict) for each in sets.values()):
        raise BenchmarkFileError(
            f"{path}: sets is {short_repr(sets)}; expected one section per dataset, such as imagenet_r: {{images: ...}}"
        )
    for name, section in sets.items():
        if not is_benchmark_name(str(name)):
            raise BenchmarkFileError(
                f"{path}: sets has the section {short_repr(name)}; expected a name of letters, digits and single _, a "
                "letter first, and no reserved word such as results: rename it"
            )
        if odd := sorted(set(section) - _SET_FIELDS):
            choices = name_choices(odd, sorted(_SET_FIELDS), listed_in=Benchmark.listed_in)
            raise BenchmarkFileError(
                f"{path}: sets.{name} has the unknown field {', '.join(odd)}; expected any of {choices}"
            )
        if twice := sorted({"images", "dataset", "custom"} & set(shared)):
            raise BenchmarkFileError(
                f"{path}: found {', '.join(twice)} outside sets; expected this field in each section of sets: move it "
                "there"
            )
        of_a_set = section if "custom" in section else {**section, "dataset": name}
        yield _Part(path=path, file=path.stem, name=name, content={**shared, **of_a_set}, origins=origins)


def _expand_matrices(path: Path, content: dict[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """Return *content* with its matrices expanded to experiments, and the matrix of each of these experiments."""
    try:
        return expand_matrices(content)
    except ValidationError as error:
        found = list(mistakes(error, "matrix"))
    except ValueError as error:
        found = [str(error)]
    raise BenchmarkFileError(f"{path}: " + f"\n{path}: ".join(found))


_SET_FIELDS = frozenset({
    "images", "custom", "subset", "corruptions", "severities", "class_map", "classes", "image_size", "shards",
    "train_shards",
})  # fmt: skip
"""Fields that a section of `sets` can have."""


def _find_files(*folders: Path, faults: list[Fault]) -> Iterator[Path]:
    """Yield the paths of benchmark files; skip hidden files, which editors and archives leave behind."""
    for folder in folders:
        try:
            found = sorted(path for path in folder.iterdir() if _is_benchmark_file(path))
        except FileNotFoundError:
            continue
        except OSError as error:
            sentence = (
                f"{folder} cannot be listed ({error.strerror}); expected a folder of benchmark files: check its type "
                "and permissions"
            )
            faults.append(Fault(path=folder, sentence=sentence))
            continue
        yield from found


def _is_benchmark_file(path: Path) -> bool:
    return path.suffix == ENDING and path.name[0] != "." and not path.name.endswith(DATASET_ENDING)


def _printable(error: BenchmarkFileError) -> str:
    """Return the message of *error* as printable text; a path can contain bytes that are not text."""
    return str(error).encode("utf-8", "backslashreplace").decode()
