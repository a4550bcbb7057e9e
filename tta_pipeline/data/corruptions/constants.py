"""Severity constants of the 19 corruptions, one table per image size the authors generated.

The numbers are from Hendrycks & Dietterich's generator scripts (github.com/hendrycks/robustness, folder
ImageNet-C/create_c): `make_imagenet_c.py` at 224 px, `make_tinyimagenet_c.py` at 64 px, `make_cifar_c.py` at 32 px.
`PARAMETERS` names the columns; a severity is a row. The scripts scale a frost photograph in code; here this scale is
the third column of frost. `DIGITS` is this project's own.
"""

from collections.abc import Mapping
from typing import TypeAlias

Row: TypeAlias = tuple[float, ...]
Rows: TypeAlias = tuple[Row, Row, Row, Row, Row]

SEVERITIES = (1, 2, 3, 4, 5)
"""Severities of every table: the number of a row, from 1."""

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "gaussian_noise": ("scale",),
    "shot_noise": ("photons",),
    "impulse_noise": ("amount",),
    "defocus_blur": ("radius", "alias_blur"),
    "glass_blur": ("sigma", "reach", "passes"),
    "motion_blur": ("radius", "sigma"),
    "zoom_blur": ("stop", "step"),
    "snow": ("mean", "scale", "zoom", "threshold", "radius", "sigma", "keep"),
    "frost": ("image_weight", "frost_weight", "texture_scale"),
    "fog": ("thickness", "decay"),
    "brightness": ("shift",),
    "contrast": ("factor",),
    "elastic_transform": ("amplitude", "sigma", "affine"),
    "pixelate": ("factor",),
    "jpeg_compression": ("quality",),
    "speckle_noise": ("scale",),
    "gaussian_blur": ("sigma",),
    "spatter": ("mean", "scale", "sigma", "threshold", "strength", "mud"),
    "saturate": ("factor", "shift"),
}
"""Meaning of each number of a row: keyword arguments of the corruption's function."""

IMAGENET_C: Mapping[str, Rows] = {
    "gaussian_noise": ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    "shot_noise": ((60,), (25,), (12,), (5,), (3,)),
    "impulse_noise": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    "fog": ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    # The published images were made with 244, not 224.
    "elastic_transform": (
        (244 * 2, 244 * 0.7, 244 * 0.1),
        (244 * 2, 244 * 0.08, 244 * 0.2),
        (244 * 0.05, 244 * 0.01, 244 * 0.02),
        (244 * 0.07, 244 * 0.01, 244 * 0.02),
        (244 * 0.12, 244 * 0.01, 244 * 0.02),
    ),
    "pixelate": ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    "jpeg_compression": ((25,), (18,), (15,), (10,), (7,)),
    "speckle_noise": ((0.15,), (0.2,), (0.35,), (0.45,), (0.6,)),
    "gaussian_blur": ((1,), (2,), (3,), (4,), (6,)),
    "spatter": (
        (0.65, 0.3, 4, 0.69, 0.6, 0),
        (0.65, 0.3, 3, 0.68, 0.6, 0),
        (0.65, 0.3, 2, 0.68, 0.5, 0),
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
}

TINY_IMAGENET_C: Mapping[str, Rows] = {
    "gaussian_noise": ((0.04,), (0.08,), (0.12,), (0.15,), (0.18,)),
    "shot_noise": ((250,), (100,), (50,), (30,), (15,)),
    "impulse_noise": ((0.01,), (0.02,), (0.05,), (0.08,), (0.14,)),
    "defocus_blur": ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
    "glass_blur": ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
    "motion_blur": ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
    ),
    "frost": ((1, 0.3, 0.3), (0.9, 0.4, 0.3), (0.8, 0.45, 0.3), (0.75, 0.5, 0.3), (0.7, 0.55, 0.3)),
    "fog": ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    "elastic_transform": (
        (0, 0, 64 * 0.08),
        (64 * 0.05, 64 * 0.3, 64 * 0.06),
        (64 * 0.1, 64 * 0.08, 64 * 0.06),
        (64 * 0.1, 64 * 0.03, 64 * 0.03),
        (64 * 0.16, 64 * 0.03, 64 * 0.02),
    ),
    "pixelate": ((0.9,), (0.8,), (0.7,), (0.6,), (0.5,)),
    "jpeg_compression": ((65,), (58,), (50,), (40,), (25,)),
    "speckle_noise": ((0.15,), (0.2,), (0.25,), (0.3,), (0.35,)),
    "gaussian_blur": ((0.5,), (0.75,), (1,), (1.25,), (1.5,)),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.6, 0),
        (0.65, 0.1, 0.8, 0.7, 0.6, 0),
        (0.65, 0.3, 1, 0.69, 0.6, 0),
        (0.65, 0.1, 0.7, 0.68, 0.6, 1),
        (0.65, 0.1, 0.5, 0.67, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
}

CIFAR_C: Mapping[str, Rows] = {
    "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
    "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
    "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
    "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "glass_blur": ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    "zoom_blur": ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
    "snow": (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ),
    "frost": ((1, 0.2, 0.2), (1, 0.3, 0.2), (0.9, 0.4, 0.2), (0.85, 0.4, 0.2), (0.75, 0.45, 0.2)),
    "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
    "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    "elastic_transform": (
        (0, 0, 32 * 0.08),
        (32 * 0.05, 32 * 0.2, 32 * 0.07),
        (32 * 0.08, 32 * 0.06, 32 * 0.06),
        (32 * 0.1, 32 * 0.04, 32 * 0.05),
        (32 * 0.1, 32 * 0.03, 32 * 0.03),
    ),
    "pixelate": ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,)),
    "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
    "speckle_noise": ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,)),
    "gaussian_blur": ((0.4,), (0.6,), (0.7,), (0.8,), (1,)),
    "spatter": (
        (0.62, 0.1, 0.7, 0.7, 0.5, 0),
        (0.65, 0.1, 0.8, 0.7, 0.5, 0),
        (0.65, 0.3, 1, 0.69, 0.5, 0),
        (0.65, 0.1, 0.7, 0.69, 0.6, 1),
        (0.65, 0.1, 0.5, 0.68, 0.6, 1),
    ),
    "saturate": ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
}

DIGITS: Mapping[str, Rows] = {
    "gaussian_noise": ((0.17,), (0.2,), (0.225,), (0.25,), (0.28,)),
    "shot_noise": ((12,), (8,), (5.5,), (4,), (2.5,)),
    "impulse_noise": ((0.06,), (0.085,), (0.105,), (0.13,), (0.16,)),
    "defocus_blur": ((4.15, 0.1), (4.5, 0.1), (5.1, 0.1), (6.1, 0.1), (7.5, 0.1)),
    "glass_blur": ((0.9, 2, 2), (0.7, 2, 2), (1.1, 2, 3), (0.7, 2, 3), (0.5, 2, 3)),
    "motion_blur": ((15, 4.6), (15, 6), (15, 7), (15, 9), (20, 15)),
    "zoom_blur": ((1.66, 0.02), (1.84, 0.02), (2.04, 0.02), (2.36, 0.02), (3.2, 0.02)),
    "snow": (
        (0.12, 0.3, 3, 0.5, 8, 4, 0.8),
        (0.18, 0.3, 3, 0.5, 8, 4, 0.8),
        (0.225, 0.3, 3, 0.5, 8, 4, 0.8),
        (0.265, 0.3, 3, 0.5, 8, 4, 0.8),
        (0.31, 0.3, 3, 0.5, 8, 4, 0.8),
    ),
    "frost": ((1, 0.27, 1), (1, 0.32, 1), (1, 0.38, 1), (0.9, 0.45, 1), (0.8, 0.6, 1)),
    "fog": ((0.43, 2), (0.5, 2), (0.63, 2), (0.8, 2), (1.2, 2)),
    "brightness": ((0.2,), (0.22,), (0.242,), (0.265,), (0.3,)),
    "contrast": ((0.6,), (0.55,), (0.5,), (0.45,), (0.37,)),
    "elastic_transform": (
        (32 * 0.7, 32 * 0.1, 32 * 0.05),
        (32 * 0.9, 32 * 0.1, 32 * 0.05),
        (32 * 1.2, 32 * 0.1, 32 * 0.05),
        (32 * 1.5, 32 * 0.1, 32 * 0.05),
        (32 * 2, 32 * 0.1, 32 * 0.05),
    ),
    "pixelate": ((0.38,), (0.32,), (0.29,), (0.22,), (0.19,)),
    "jpeg_compression": ((9,), (7,), (5,), (3,), (1,)),
    "speckle_noise": ((0.36,), (0.45,), (0.56,), (0.75,), (1.1,)),
    "gaussian_blur": ((2.35,), (2.6,), (2.95,), (3.6,), (4.6,)),
    "spatter": (
        (0.65, 0.3, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.65, 1.5, 1),
        (0.67, 0.4, 1, 0.63, 1.5, 1),
        (0.67, 0.4, 1, 0.61, 1.5, 1),
        (0.69, 0.4, 1, 0.6, 1.5, 1),
    ),
    "saturate": ((1, 0.33), (1, 0.37), (1, 0.42), (1, 0.48), (1, 0.57)),
}
"""Constants for the embedded digits, of no publication. They were chosen from the errors of the embedded source model
alone, without a look at any method: near 6, 15, 28, 45 and 65 %. JPEG is the exception: digits survive even quality 1.
`python -m bench.digit_severities` measures the errors again."""

CONSTANTS: Mapping[str, Mapping[str, Rows]] = {
    "imagenet_c": IMAGENET_C,
    "tiny_imagenet_c": TINY_IMAGENET_C,
    "cifar_c": CIFAR_C,
    "digits": DIGITS,
}
"""Table name -> corruption -> the rows of severities 1 to 5."""
