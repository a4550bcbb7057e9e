"""The published archives of ILSVRC2012 (ImageNet), identified by their md5."""

from collections.abc import Mapping

MD5_BY_ARCHIVE: Mapping[str, str] = {
    "ILSVRC2012_img_train.tar": "1d675b47d978889d74fa0da5fadfb00e",
    "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
    "ILSVRC2012_devkit_t12.tar.gz": "fa75699e90414af021442c21a62c3abf",
}
"""The md5 of each archive by its file name, from torchvision: datasets/imagenet.py, ARCHIVE_META."""
