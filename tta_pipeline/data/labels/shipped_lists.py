"""Lists of classes that come with the project, in label order, so that no file of a dataset is needed for its labels.

Labels of ImageNet count the sorted WordNet ids, as in torchvision's and timm's models; ImageNet-R, ImageNet-A and Tiny
ImageNet have 200 of these ids each. Labels of CIFAR count the class names in alphabetical order; CIFAR-100 has the 100
fine classes.

LAION-C and ObjectNet have classes of several ImageNet outputs: `category_mapping.json` of FanfeiLi/LAION-C at 3c6cad5,
and `objectnet_to_imagenet_1k.json` of ObjectNet as kept by mlfoundations/wise-ft at 58b7a4b, both under MIT.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.data.labels.output_map import OutputMap, parse_output_map
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
SHA256_BY_OUTPUT_MAP: Mapping[str, str] = {
    "laion_c": "739c8a9df57360fad9f3f86e798064a53a8494511d57e1100a19c3c5deb73337",
    "objectnet": "2ac8c8bad8ea9f02d249e9a82b7b49a92b3edf8fe4caa5cb6601b865b453fb50",
}
"""The lists whose classes have several outputs, with the hash of their output map."""
_LISTS = Path(__file__).parent / "lists"


def shipped_list_names() -> tuple[str, ...]:
    """Return the names of the lists."""
    return (*SHA256_BY_LIST, *SHA256_BY_OUTPUT_MAP)


@cache
def shipped_classes(name: str) -> tuple[str, ...]:
    """Return the classes of the list *name*, in label order."""
    if name not in shipped_list_names():
        raise ClassMapError(
            f"There is no shipped list of classes named {name!r}; expected one of "
            f"{name_choices(name, shipped_list_names(), listed_in='docs/guides/datasets.md')}: correct the name"
        )
    if outputs := shipped_output_map(name):
        return outputs.classes
    return _read(_LISTS / f"{name}.txt", SHA256_BY_LIST[name])


@cache
def shipped_output_map(name: str) -> OutputMap | None:
    """Return the outputs of each class of the list *name*; None if each class is one output."""
    if name not in SHA256_BY_OUTPUT_MAP:
        return None
    path = _LISTS / f"{name}.json"
    found = parse_output_map(json.loads(_text(path)), where=path)
    assert found is not None, "a shipped file has a rule and outputs"
    _require_as_shipped(found, SHA256_BY_OUTPUT_MAP[name], path)
    return found


def _read(path: Path, sha256: str) -> tuple[str, ...]:
    found = ClassMap(classes=tuple(_text(path).split()))
    _require_as_shipped(found, sha256, path)
    return found.classes


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClassMapError(
            f"{path} cannot be read ({error}); expected one class per line: reinstall tta_pipeline"
        ) from error


def _require_as_shipped(found: ClassMap | OutputMap, sha256: str, path: Path) -> None:
    if found.sha256 != sha256:
        raise ClassMapError(
            f"{path} has {len(found.classes)} classes with the sha256 {found.sha256}; expected {sha256}, as shipped: "
            "reinstall tta_pipeline"
        )
