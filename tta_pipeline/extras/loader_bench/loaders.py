"""The readers by name. A reader is imported only when it is used."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import MappingProxyType
from typing import TYPE_CHECKING

from tta_pipeline.errors import LoaderError
from tta_pipeline.util.nearest_names import name_choices

if TYPE_CHECKING:
    from tta_pipeline.extras.loader_bench.baseline import Baseline


@dataclass(frozen=True, kw_only=True)
class Loader:
    """Location of a loader."""

    module: str
    class_name: str
    package: str
    """Distribution that provides the loader."""

    def load(self) -> "type[Baseline]":
        """Import the loader and return its class."""
        found: type[Baseline] = getattr(import_module(self.module), self.class_name)
        return found

    @property
    def version(self) -> str:
        """Version of the loader's package."""
        return version(self.package)


LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "indexed": Loader(module=f"{__package__}.indexed_loader", class_name="IndexedLoader", package="tta_pipeline"),
        "webdataset": Loader(
            module=f"{__package__}.webdataset_loader", class_name="WebDatasetLoader", package="webdataset"
        ),
        "imagefolder": Loader(module=f"{__package__}.folder_loader", class_name="FolderLoader", package="torchvision"),
    }
)


def select_loaders(names: Sequence[str]) -> Mapping[str, Loader]:
    """Return the loaders called *names*; if empty, all of them.

    Raises:
        LoaderError: a name is unknown.
    """
    for name in names:
        if name not in LOADERS:
            choices = name_choices(name, LOADERS, listed_in="`tta-pipeline shards bench --help`")
            raise LoaderError(f"{name!r} is not a loader; expected one of {choices}")
    return {name: LOADERS[name] for name in names or LOADERS}
