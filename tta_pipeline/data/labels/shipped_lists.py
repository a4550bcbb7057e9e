"""Lists of classes that come with the project, in label order, so that no file of a dataset is needed for its labels.

Labels of ImageNet count the sorted WordNet ids, as in torchvision's and timm's models; ImageNet-R, ImageNet-A and Tiny
ImageNet have 200 of these ids each. Labels of CIFAR count the class names in alphabetical order; CIFAR-100 has the 100
fine classes.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.errors import ClassMapError
from tta_pipeline.util.nearest_names import name_choices

SHA256_BY_LIST: Mapping[str, str] = {
    "cifar_10": "fcdc2e1a755ed3463be7e0a84987dac8d36a8636d40302c9b309ab53f8679071",
    "cifar_100": "407f97f9f231f1a980f2c9a1126dd31617d34115d3458d0b5b5955a578140369",
    "imagenet": "624954f06d059ddd477ab500dc059cf2628ac01e441d8a648d1dc6fbfe504c5a",
    "imagenet_a": "5253ad9ff8fe19cc291d5e8f2a00e33f03fc2e717a2ed5226910925838a6fc9f",
    "imagenet_r": "3670a5ca7b6bf941f4ab855c2ebe26d3b1362e6de4f14d1265b74bc1d40db4ef",
    "tiny_imagenet": "fc4944cf9a7ee2a6d4d6804005b2ffa90100e3dba5090d8f56b9d8c4b660540a",
}
"""The lists by name, with the hash of their class map."""
_LISTS = Path(__file__).parent / "lists"


def shipped_list_names() -> tuple[str, ...]:
    """Return the names of the lists."""
    return tuple(SHA256_BY_LIST)


@cache
def shipped_classes(name: str) -> tuple[str, ...]:
    """Return the classes of the list *name*, in label order."""
    if name not in SHA256_BY_LIST:
        raise ClassMapError(
            f"There is no shipped list of classes named {name!r}; expected one of "
            f"{name_choices(name, SHA256_BY_LIST, listed_in='docs/guides/datasets.md')}: correct the name"
        )
    return _read(_LISTS / f"{name}.txt", SHA256_BY_LIST[name])


def _read(path: Path, sha256: str) -> tuple[str, ...]:
    try:
        found = ClassMap(classes=tuple(path.read_text("utf-8").split()))
    except (OSError, UnicodeDecodeError) as error:
        raise ClassMapError(
            f"{path} cannot be read ({error}); expected one class per line: reinstall tta_pipeline"
        ) from error
    if found.sha256 != sha256:
        raise ClassMapError(
            f"{path} has {len(found.classes)} classes with the sha256 {found.sha256}; expected {sha256}, as shipped: "
            "reinstall tta_pipeline"
        )
    return found.classes
