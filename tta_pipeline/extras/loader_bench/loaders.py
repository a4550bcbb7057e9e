"""The loaders by name, and whether this machine has them. A loader is imported only when it is used."""

from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import TYPE_CHECKING

from tta_pipeline.errors import LoaderError
from tta_pipeline.util.nearest_names import name_choices

if TYPE_CHECKING:
    from tta_pipeline.loading.baselines.baseline import Baseline

_BASELINES = "tta_pipeline.loading.baselines"


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Location and requirements of a loader."""

    module: str
    class_name: str
    packages: Sequence[str]
    """Distributions, any one of which provides the loader."""
    library: str = ""
    """System library that the loader also needs."""

    def load(self) -> "type[Baseline]":
        """Import the loader and return its class."""
        found: type[Baseline] = getattr(import_module(self.module), self.class_name)
        return found

    @property
    def needs(self) -> str:
        """The installation that the loader needs, as a sentence's end."""
        return f"pip install {self.packages[0]}" + (f", and the system's lib{self.library}" if self.library else "")

    @property
    def version(self) -> str | None:
        """Version of the loader's package; None if the package or the system library is missing."""
        if self.library and find_library(self.library) is None:
            return None
        return next(filter(None, map(_version, self.packages)), None)


LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "indexed": Loader(
            module="tta_pipeline.extras.loader_bench.indexed_loader",
            class_name="IndexedLoader",
            packages=("tta_pipeline",),
        ),
        "webdataset": Loader(
            module=f"{_BASELINES}.webdataset_loader", class_name="WebDatasetLoader", packages=("webdataset",)
        ),
        "tar": Loader(module=f"{_BASELINES}.tar_loader", class_name="TarLoader", packages=("torch",)),
        "imagefolder": Loader(
            module=f"{_BASELINES}.folder_loader", class_name="FolderLoader", packages=("torchvision",)
        ),
        "dali": Loader(
            module=f"{_BASELINES}.dali_loader",
            class_name="DaliLoader",
            packages=("nvidia-dali-cuda130", "nvidia-dali-cuda120"),
        ),
        "spdl": Loader(
            module=f"{_BASELINES}.spdl_loader", class_name="SpdlLoader", packages=("spdl",), library="avutil"
        ),
        "litdata": Loader(module=f"{_BASELINES}.litdata_loader", class_name="LitdataLoader", packages=("litdata",)),
        "streaming": Loader(
            module=f"{_BASELINES}.mosaicml_loader", class_name="MosaicmlLoader", packages=("mosaicml-streaming",)
        ),
    }
)


def select_loaders(names: Sequence[str] = ()) -> tuple[str, ...]:
    """Return *names* without repetitions; if empty, the names of all installed loaders.

    Raises:
        LoaderError: a name is unknown, or the loader is not installed.
    """
    installed = tuple(name for name, loader in LOADERS.items() if loader.version)
    for name in names:
        if name not in installed:
            found = f"is not installed ({LOADERS[name].needs})" if name in LOADERS else "is not a loader"
            choices = name_choices(name, installed, listed_in="`tta-pipeline shards bench --help`")
            raise LoaderError(f"{name!r} {found}; expected one of {choices}")
    return tuple(dict.fromkeys(names)) or installed


def describe_error(error: Exception) -> str:
    """Return the error that a loader raised, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
