"""Finds the file system of a path, and whether its locks reach other machines."""

import re
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
_NETWORK = frozenset(
    {
        "nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "9p",
        "afs", "orangefs", "pvfs2", "panfs", "wekafs", "virtiofs", "davfs",
    }
)  # fmt: skip
_LOCAL_LOCKS = frozenset({"nolock", "local_lock=all", "local_lock=flock", "localflock", "noflock"})


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSystem:
    """One mounted file system."""

    kind: str
    """The kernel's name for the type of file system, such as ext4 or nfs4."""
    mounted_at: Path
    options: frozenset[str]

    @property
    def is_network(self) -> bool:
        """Whether other machines may write here too; a FUSE file system, such as sshfs, counts as one."""
        return self.kind in _NETWORK or self.kind.startswith("fuse.")

    @property
    def local_lock_options(self) -> tuple[str, ...]:
        """The mount options that keep locks from reaching other machines."""
        return tuple(sorted(self.options & _LOCAL_LOCKS))


def nearest_existing(path: Path) -> Path:
    """Return *path*, or the nearest folder above it that exists."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def file_system_of(path: Path) -> FileSystem | None:
    """Return the file system of *path*, which need not exist yet; None if the kernel has no table of mounts."""
    return find_mount(nearest_existing(path).resolve(), MOUNTS) if MOUNTS.exists() else None


def find_mount(path: Path, mounts: Path) -> FileSystem | None:
    """Return the file system of *path*, a path without links, in the table *mounts*."""
    found = None
    for line in mounts.read_text(errors="surrogateescape").splitlines():
        _, folder, kind, options, *_ = line.split(" ")
        mounted_at = Path(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), folder))
        # Of two mounts at one place, the later one hides the earlier.
        if path.is_relative_to(mounted_at) and (not found or mounted_at.is_relative_to(found.mounted_at)):
            found = FileSystem(kind=kind, mounted_at=mounted_at, options=frozenset(options.split(",")))
    return found
