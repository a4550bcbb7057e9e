"""Checks of the machine: a writable data root, disk space, locks, devices, and what other packages add."""

import fcntl
import inspect
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from tta_pipeline.domain.locations import SHARDS, Locations, owner_of
from tta_pipeline.errors import PipelineError
from tta_pipeline.extras.doctor.finding import Finding, fault, note, ok
from tta_pipeline.extras.doctor.mounts import file_system_of, nearest_existing
from tta_pipeline.util.locks import open_lock, try_flock
from tta_pipeline.util.short_lists import abbreviate_list

_IMAGENET_C_BYTES = 51_000_000_000
_IMAGENET_C_FILES = 1_200
"""Files for 75 cells: each has a folder, 1 or 2 tars of 1 GB, four small files, and records of three experiments."""
_LEAST_BYTES = 10**9
_LEAST_FILES = 100
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def check_data_root(locations: Locations) -> Iterator[Finding]:
    """Check whether the data root can be written to, and the shard store, if any, can be read."""
    subject, root = "data root", locations.root
    origin = "TTA_DATA_ROOT" if "TTA_DATA_ROOT" in os.environ else "the default, data/ in the working directory"
    there = nearest_existing(root)
    if not there.is_dir():
        yield fault(subject, f"{there} ({origin}) is not a folder", "set TTA_DATA_ROOT to a folder")
    elif not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        owner = there.stat().st_uid
        yield fault(
            subject,
            f"{there} ({origin}) belongs to user {owner} and cannot be written to by user {os.getuid()}",
            "set TTA_DATA_ROOT to your own folder, or get write permission for this one",
        )
    else:
        yield ok(subject, f"{root} ({origin}), {'writable' if there == root else 'to be made by the first run'}")
    if locations.store is not None:
        yield _check_store(locations.store)


def _check_store(store: Path) -> Finding:
    """Check whether the store can be read, and list its benchmarks."""
    subject, found = "store", f"{store} (TTA_SHARDS_ROOT) of user {owner_of(store)}"
    if not os.access(store, os.R_OK | os.X_OK):
        return fault(subject, f"{found} cannot be read by user {os.getuid()}", "ask its owner for permission to read")
    names = sorted(path.parent.name for path in store.glob(f"*/{SHARDS}"))
    if not names:
        return fault(subject, f"{found} has no shards", "set TTA_SHARDS_ROOT to the data root in which they were made")
    return ok(subject, f"{found}, only read: shards of {abbreviate_list(names)}")


def check_disk_space(locations: Locations) -> Iterator[Finding]:
    """Compare the free bytes and inodes with the needs of 75 cells of ImageNet-C."""
    status = os.statvfs(nearest_existing(locations.root))
    free_bytes, free_files = status.f_bavail * status.f_frsize, status.f_favail
    found = f"{free_bytes / 1e9:,.0f} GB free; 75 cells of ImageNet-C take {_IMAGENET_C_BYTES / 1e9:.0f} GB as shards"
    yield _compare_free("disk", found, free_bytes, least=_LEAST_BYTES, usual=_IMAGENET_C_BYTES)
    if status.f_files:
        found = f"{free_files:,} free; 75 cells of ImageNet-C take about {_IMAGENET_C_FILES:,}, unpacked 3,750,000"
        yield _compare_free("inodes", found, free_files, least=_LEAST_FILES, usual=_IMAGENET_C_FILES)
    else:
        yield ok("inodes", "not counted by this file system; your quota may still count them")


def _compare_free(subject: str, found: str, free: int, *, least: int, usual: int) -> Finding:
    if free < least:
        return fault(subject, found, "free some space, or set TTA_DATA_ROOT to another disk")
    if free < usual:
        return note(subject, found, "for ImageNet-C set TTA_DATA_ROOT to another disk, or run fewer cells at once")
    return ok(subject, found)


def check_file_locks(locations: Locations) -> Iterator[Finding]:
    """Check the file system of the data root, and whether a lock there excludes a second lock."""
    subject = "file system"
    there = nearest_existing(locations.root)
    file_system = file_system_of(there)
    kind = f"{file_system.kind} at {file_system.mounted_at}" if file_system else "of unknown kind"
    problem = _lock_problem(there)
    if problem:
        yield fault(
            subject,
            f"{kind}: {problem}",
            "without locks, two runs can overwrite each other's results: mount it with locks (Lustre: -o flock), or "
            "set TTA_DATA_ROOT to another file system",
        )
    elif file_system and file_system.is_network:
        local = ", ".join(file_system.local_lock_options)
        yield note(
            subject,
            f"{kind}: a network file system; locks work"
            + (f" on this machine only, by its mount option {local}" if local else ", on this machine at least"),
            "keep runs that write into one data root on one machine" if local else
            "copy cells that are read often to a local disk: docs/guides/clusters.md",
        )  # fmt: skip
    else:
        yield ok(subject, f"{kind}: local, and locks work")


def _lock_problem(folder: Path) -> str:
    """Return the problem with locks in *folder*, or an empty string."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file, open_lock(Path(file.name)) as again:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "a file could be locked twice" if try_flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB) else ""
    except OSError as error:
        return f"a file cannot be locked ({error.strerror})"


def check_accelerators() -> Iterator[Finding]:
    """Check which devices torch computes on."""
    try:
        import torch

        from tta_pipeline.evaluation.device.devices import device_facts, torch_build
    except (ImportError, OSError) as error:
        yield fault("torch", f"cannot be imported ({error})", "install it again: pip install --force-reinstall torch")
        return
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        devices = device_facts()
    build = f"torch {torch.__version__}, {torch_build()}"
    for device in devices:
        size = f", {device.memory_bytes / 2**30:.0f} GiB" if device.memory_bytes else ""
        yield ok("torch", f"{build}: {device.device} is {device.name}{size}")
    if not devices and _NVIDIA_DRIVER.exists():
        why = f": {warned[0].message}" if warned else ""
        yield note(
            "torch",
            f"{build}: no device, though an NVIDIA driver is loaded{why}",
            "compare the driver in `nvidia-smi` with torch's CUDA, and check CUDA_VISIBLE_DEVICES",
        )
    elif not devices:
        yield ok("torch", f"{build}: no CUDA device, evaluations run on {len(os.sched_getaffinity(0))} CPU cores")


def check_added() -> Iterator[Finding]:
    """Check whether the methods and the kinds of model that other packages add can be imported."""
    from tta_pipeline.benchmarks import model_specs
    from tta_pipeline.methods import catalogue, import_implementation
    from tta_pipeline.models.model_kind import import_kind
    from tta_pipeline.util.added import added, package_of

    def method(name: str) -> str:
        entry = catalogue.find_method(name)
        import_implementation(entry)
        return entry.summary

    def model(name: str) -> str:
        section = model_specs.find_added(name)
        assert section is not None
        import_kind(section)
        return inspect.cleandoc(section.__doc__ or "").partition("\n")[0]

    for word, group, check in (("method", catalogue.GROUP, method), ("model", model_specs.GROUP, model)):
        for name, points in added(group).items():
            try:
                said = check(name)
            except (ValueError, PipelineError) as error:
                packages = " and ".join(map(package_of, points))
                yield fault(f"{word} {name}", str(error), f"correct or uninstall {packages}")
            else:
                yield ok(f"{word} {name}", f"of {package_of(points[0])}: {said}")
