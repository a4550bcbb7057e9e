"""No file of somebody else's fills the memory: what is read whole has a limit, and what is unpacked has one too."""

import ast
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tta_pipeline
from tta_pipeline.data.labels.class_map import MAX_CLASS_LIST_BYTES, read_pinned_class_map
from tta_pipeline.data.labels.label_files import read_classes
from tta_pipeline.data.sources.listing import SourceImage
from tta_pipeline.errors import ClassMapError, ManifestError, PipelineError, RecordError
from tta_pipeline.evaluation.sample_predictions import SamplePredictions
from tta_pipeline.shards.manifest import MANIFEST_FILE
from tta_pipeline.shards.parquet_files import read_bounded_table
from tta_pipeline.shards.sample_index import SampleIndex
from tta_pipeline.shards.shard_set import SAMPLES_FILE, ShardSet
from tta_pipeline.util.files import read_file, read_if_sha256_matches, read_sealed, seal, write_atomically
from tta_pipeline_tests.conftest import run_python

ROOT = Path(tta_pipeline.__file__).parent
SPARSE_BYTES = 2**31
HASHED_BYTES = 2**28
"""Size of what is hashed in pieces to its end, which takes long: twice what a process may take."""
ALLOWED = {
    ("data/labels/shipped_lists.py", "read_text"): "a list that comes with the project",
    ("results/database/schema.py", "read_text"): "tables that come with the project",
    ("extras/new_project/__init__.py", "read_text"): "files that come with the project",
    ("extras/new_project/template.py", "read_text"): "a file that comes with the project",
    ("defs/component.py", "read_text"): "a file that comes with the project",
    ("defs/history.py", "read_text"): "Dagster's settings, which Dagster reads whole, too",
    ("defs/history.py", "yaml.safe_load"): "Dagster's settings, which Dagster reads whole, too",
    ("results/database/database.py", "read_bytes"): "an empty database that was made the moment before",
    ("extras/doctor/mounts.py", "read_text"): "the kernel's",
    ("evaluation/machine.py", "read_text"): "the kernel's",
    ("extras/loader_bench/process_memory.py", "read_text"): "the kernel's",
    ("defs/resources/run_launcher.py", "read_text"): "the kernel's",
    ("models/weights.py", "load_file"): "mapped, and hashed in pieces before",
    ("models/weights.py", "torch.load"): "hashed in pieces before",
    ("loading/baselines/tar_loader.py", "tarfile.open"): "shards that were verified",
    ("extras/publishing/published_cell.py", "tarfile.open"): "shards that were verified",
    ("data/sources/shard_files.py", "gzip.open"): "unpacked to the disk in pieces",
    ("data/labels/label_files.py", "loadmat"): "bytes that were read with a limit",
    ("extras/doctor/project.py", "yaml.safe_load"): "text that was read with a limit",
    ("util/processes.py", "pickle.load"): "what our own processes say to each other",
    ("loading/baselines/baseline.py", "Image.open"): "a file that was written the moment before",
    ("report/figure_style.py", "Image.open"): "a chart that was drawn the moment before",
    ("data/corruptions/digital.py", "Image.open"): "an image that was encoded the moment before",
    ("data/sources/zip_members.py", "zipfile.ZipFile"): "a file that refuses to read more at once than a limit",
    ("data/sources/kinds/huggingface.py", "ParquetFile"): "read in batches",
    ("data/sources/kinds/huggingface.py", "read_schema"): "the footer alone",
    ("models/text_features.py", "safe_open"): "mapped, and its size is looked at before",
}
"""Calls that read a whole file, by module, and why they may."""
WHOLE = {"read_text", "read_bytes", "readlines", "ParquetFile", "read_schema", "load_file", "safe_open"}
WHOLE_OF_MODULE = {
    "json.load", "pq.read_table", "yaml.safe_load", "np.load", "np.fromfile", "torch.load", "tarfile.open",
    "Image.open", "loadmat", "pickle.load", "tomllib.load", "gzip.open", "zipfile.ZipFile",
}  # fmt: skip
OF_MEMORY = {"io.BytesIO", "BytesIO", "pa.BufferReader"}


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """Return every call in the package with its module."""
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for path in sorted(ROOT.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call)
    ]


def whole_reads() -> Counter[tuple[str, str]]:
    """Return the calls in the package that read a whole file, by module and function."""
    return Counter((module, name) for module, call in calls() if (name := name_of_whole_read(call)))


def name_of_whole_read(call: ast.Call) -> str:
    """Return the name of the function that *call* reads a whole file with; empty if it does not."""
    full = ast.unparse(call.func)
    last = full.rpartition(".")[2]
    is_of_memory = (
        bool(call.args) and isinstance(call.args[0], ast.Call) and ast.unparse(call.args[0].func) in OF_MEMORY
    )
    if is_of_memory:
        return ""
    if last in WHOLE:
        return last
    return full if full in WHOLE_OF_MODULE else ""


def test_no_file_is_read_whole_without_a_limit():
    """Whoever reads one uses `read_file` and its like; what may do otherwise is named here, with the reason."""
    found = whole_reads()

    assert set() == set(found) - set(ALLOWED)
    assert set() == set(ALLOWED) - set(found), "no longer there: take it out of the list"


def test_no_open_file_is_read_to_its_end():
    """`file.read()` has no limit; a method of ours of that name has one of its own."""
    ours = {
        "image.read", "kept.read", "self.read", "stream.read", "first.read",
    }  # fmt: skip
    found = {
        (module, ast.unparse(call.func))
        for module, call in calls()
        if isinstance(call.func, ast.Attribute) and call.func.attr == "read" and not call.args and not call.keywords
    }

    assert {("loading/baselines/tar_loader.py", "file.read")} == {each for each in found if each[1] not in ours}


def sparse(path: Path) -> Path:
    """Make a file of 2 GiB, or of 256 MiB where it is hashed, that takes no room."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(HASHED_BYTES if path.name in HASHED else SPARSE_BYTES)
    return path


CASES = {
    "class_map": "from tta_pipeline.data.labels.class_map import read_pinned_class_map; read_pinned_class_map(path)",
    "classes.json": "from tta_pipeline.data.labels.label_files import read_classes; read_classes(path)",
    "meta.mat": "from tta_pipeline.data.labels.label_files import read_classes; read_classes(path)",
    "truth.txt": "from tta_pipeline.data.labels.label_files import read_ground_truth; read_ground_truth(path)",
    "manifest.json": "from tta_pipeline.shards.shard_set import ShardSet; ShardSet.open(path.parent)",
    "samples.parquet": "from tta_pipeline.shards.shard_set import ShardSet; ShardSet.open(path.parent)",
    "verified.json": "from tta_pipeline.shards.shard_set import ShardSet; ShardSet.open(path.parent).require_intact()",
    "checksums.xxh64": "from tta_pipeline.shards.shard_set import ShardSet; ShardSet.open(path.parent).checksums",
    "remote.json": "from tta_pipeline.data.sources.remote_shards import read_remote_cell; "
    "read_remote_cell(path.parent)",
    "predictions": "from tta_pipeline.evaluation.sample_predictions import SamplePredictions; "
    "SamplePredictions.read(path, sha256='0')",
    "list.txt": "from tta_pipeline.loading.subset import read_listed_names; read_listed_names(path)",
    "own.py": "from tta_pipeline.util.source_code import source_sha256; "
    "sys.path.append(str(path.parent)); source_sha256('own:x')",
    "dagster.yaml": "from tta_pipeline.extras.doctor.project import check_dagster_storage; "
    "os.environ['DAGSTER_HOME'] = str(path.parent); list(check_dagster_storage())",
    "source.json": "from tta_pipeline.models.trained_models import read_source_model_facts; "
    "read_source_model_facts(path.with_suffix('.safetensors'))",
    "features.safetensors": "from tta_pipeline.models.text_features import _read; _read(path)",
    f"{'0' * 64}.state": "from tta_pipeline.evaluation.stream_states import StreamStates; "
    f"StreamStates(folder=path.parent).read_newest(['{'0' * 64}'], print)",
    f"{'0' * 64}-1.checkpoint": "from tta_pipeline.extras.training.checkpoints import Checkpoints; "
    f"Checkpoints(folder=path.parent, fingerprint='{'0' * 64}').newest(print)",
    "image.jpg": "from tta_pipeline.data.sources.listing import SourceImage; "
    "SourceImage('a', 'b', str(path), 2**31, None).read()",
}
HASHED = ("predictions", f"{'0' * 64}.state", f"{'0' * 64}-1.checkpoint")
LIMITED = """
import json, os, resource, sys, traceback
from pathlib import Path
import scipy.io
from tta_pipeline.errors import PipelineError

def limited(path, code):
    most = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") + 2**27
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        exec(code)
    except (PipelineError, ValueError) as error:
        print(error)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

cases = json.loads(sys.argv[1])
for _, code in cases.values():
    exec(code.partition("; ")[0])
for name, (path, code) in cases.items():
    print("case", name, flush=True)
    child = os.fork()
    if not child:
        os.dup2(1, 2)
        status = limited(Path(path), code)
        sys.stdout.flush()
        os._exit(status)
    print("status", os.waitpid(child, 0)[1], flush=True)
"""


def test_a_large_file_takes_no_memory(shard_set: ShardSet, tmp_path: Path):
    """In the place of any file that is read whole; a process that may not take 128 MiB says what it found."""
    cases = {}
    for name, code in CASES.items():
        folder = shutil.copytree(shard_set.folder, tmp_path / name)
        cases[name] = (str(sparse(folder / name)), code)

    done = run_python(LIMITED, json.dumps(cases))

    said = dict(part.split("\n", 1) for part in done.stdout.split("case ")[1:])
    assert set(CASES) == set(said)
    assert {} == {name: words for name, words in said.items() if not words.endswith("status 0\n")}
    named = {name for name, words in said.items() if cases[name][0] in words}
    assert {"verified.json", "checksums.xxh64", "dagster.yaml", "source.json", "features.safetensors"} == set(
        CASES
    ) - named


def test_what_is_too_large_is_named_with_its_size_and_limit(tmp_path: Path):
    """The path, what was found, what was expected, and what to do."""
    path = sparse(tmp_path / "class_map.json")

    with pytest.raises(ClassMapError) as caught:
        read_pinned_class_map(path)

    assert f"{path} cannot be read (it holds 2,147,483,648 bytes, more than {MAX_CLASS_LIST_BYTES:,} bytes" in str(
        caught.value
    )
    assert "restore it" in str(caught.value)


def test_a_file_that_grows_is_read_no_further_than_its_limit(tmp_path: Path):
    """The kernel's files say that they are empty, and a file that is written to has more than it said."""
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_file(Path("/proc/cpuinfo"), limit_bytes=10)

    assert Path("/proc/version").read_bytes() == read_file(Path("/proc/version"), limit_bytes=2**20)


def test_only_proven_bytes_are_read(tmp_path: Path):
    """Another hash, a changed byte and another thing that it is bound to are told from what was written."""
    path = tmp_path / "a"
    write_atomically(path, seal(b"state", "one"))

    assert b"state" == read_sealed(path, "one", limit_bytes=100)
    assert read_sealed(path, "other", limit_bytes=100) is None
    with pytest.raises(OSError, match="more than 68 bytes"):
        read_sealed(path, "one", limit_bytes=68)
    assert path.read_bytes() == read_if_sha256_matches(
        path, hashlib.sha256(path.read_bytes()).hexdigest(), limit_bytes=69
    )
    assert read_if_sha256_matches(path, "0" * 64, limit_bytes=69) is None
    path.write_bytes(b"")
    assert read_sealed(path, "one", limit_bytes=100) is None


def bomb(num_rows: int, column: pa.Array) -> bytes:
    """Return a Parquet file of a few bytes for many rows."""
    sink = pa.BufferOutputStream()
    table = pa.table({"a": pa.DictionaryArray.from_arrays(pa.array(np.zeros(num_rows, np.int32)), column)})
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def test_rows_that_take_no_bytes_are_not_unpacked():
    """Ten kilobytes stand for two million rows of 100 KB each."""
    data = bomb(2_000_000, pa.array(["x" * 100_000]))

    assert len(data) < 2**17
    with pytest.raises(ValueError, match="it says that it holds 2,000,000 rows"):
        read_bounded_table(data, num_rows=None, row_bytes=64)
    with pytest.raises(ValueError, match="it has 2,000,000 rows; expected 20"):
        read_bounded_table(data, num_rows=20, row_bytes=64)


def test_bytes_that_compress_to_nothing_are_not_unpacked():
    """The footer says how many bytes a row takes."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": ["x" * 2**23]}), sink, compression="zstd", use_dictionary=False)

    with pytest.raises(ValueError, match="expected at most"):
        read_bounded_table(bytes(sink.getvalue()), num_rows=1, row_bytes=64)


def test_an_index_that_unpacks_to_more_than_its_manifest_says_is_named(shard_set: ShardSet):
    """The manifest is of whoever made the index; the number of samples is compared before anything is unpacked."""
    data = bomb(2_000_000, pa.array(["x" * 100_000]))
    (shard_set.folder / SAMPLES_FILE).write_bytes(data)
    content = json.loads((shard_set.folder / MANIFEST_FILE).read_bytes())
    content["samples_sha256"] = hashlib.sha256(data).hexdigest()
    (shard_set.folder / MANIFEST_FILE).write_text(json.dumps(content))

    with pytest.raises(ManifestError, match=r"samples.parquet is damaged \(it has 2,000,000 rows; expected 20\)"):
        ShardSet.open(shard_set.folder)


def test_an_index_with_an_image_of_a_terabyte_is_named(shard_set: ShardSet):
    """Whoever read it would ask for that much memory."""
    table = shard_set.index.table
    sizes = pa.array([2**40, *shard_set.index.sizes[1:].tolist()], pa.int64())
    index = SampleIndex(table=table.set_column(table.schema.get_field_index("size_bytes"), "size_bytes", sizes))
    (shard_set.folder / SAMPLES_FILE).write_bytes(index.serialise())
    content = json.loads((shard_set.folder / MANIFEST_FILE).read_bytes())
    content["samples_sha256"] = hashlib.sha256(index.serialise()).hexdigest()
    (shard_set.folder / MANIFEST_FILE).write_text(json.dumps(content))

    with pytest.raises(ManifestError, match="images of at most 1,073,741,824 bytes"):
        ShardSet.open(shard_set.folder)


def test_predictions_that_unpack_to_more_than_memory_are_named(tmp_path: Path):
    """Their hash is in a record, which may be of somebody else."""
    path = tmp_path / "kept"
    path.write_bytes(bomb(2_000_000, pa.array(["x" * 100_000])))

    with pytest.raises(RecordError, match="kept is damaged"):
        SamplePredictions.read(path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
@pytest.mark.parametrize(
    "read",
    [
        read_classes,
        lambda path: SamplePredictions.read(path, sha256="0"),
        lambda path: SourceImage("a", "b", str(path), 3, None).read(),
    ],
)
def test_what_is_no_file_keeps_nobody_waiting(
    tmp_path: Path, read: Callable[[Path], object], make: Callable[[Path], None]
):
    """Neither a pipe nor a folder."""
    make(tmp_path / "x.json")

    with pytest.raises(PipelineError, match=r"x\.json"):
        read(tmp_path / "x.json")
