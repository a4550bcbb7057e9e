"""The archives that the authors of the data sets published, by name and md5."""

from collections.abc import Mapping

MD5_BY_ARCHIVE: Mapping[str, Mapping[str, str]] = {
    # Zenodo record 2235448.
    "imagenet_c": {
        "noise.tar": "e80562d7f6c3f8834afb1ecf27252745",
        "blur.tar": "2d8e81fdd8e07fef67b9334fa635e45c",
        "weather.tar": "33ffea4db4d93fe4a428c40a6ce0c25d",
        "digital.tar": "89157860d7b10d5797849337ca2e5c03",
        "extra.tar": "d492dfba5fc162d8ec2c3cd8ee672984",
    },
    # Zenodo record 8206060, the mirror whose frost subset has 200 classes; record 2536630 has 1,000 there.
    "tiny_imagenet_c": {
        "Tiny-ImageNet-C.tar": "f9c9a9dbdc11469f0b850190f7ad8be1",
        "Tiny-ImageNet-C-extra.tar": "0db0588d243cf403ef93449ec52b70eb",
    },
}

CORRUPTIONS_BY_ARCHIVE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "imagenet_c": {
        "noise.tar": ("gaussian_noise", "shot_noise", "impulse_noise"),
        "blur.tar": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        "weather.tar": ("snow", "frost", "fog", "brightness"),
        "digital.tar": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
        "extra.tar": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
    },
}
