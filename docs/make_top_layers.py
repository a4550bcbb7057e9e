"""List the layers that SAR and others freeze: `python docs/make_top_layers.py` writes docs/reference/frozen-layers.md.

It needs timm, torchvision, open_clip and transformers; the test compares the rows of those that are installed.
"""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision.models import get_model

from tta_pipeline.methods.norm_layers import NORM_LAYERS
from tta_pipeline.methods.top_layers import top_layers

PAGE = Path(__file__).parent / "reference" / "frozen-layers.md"
ARCHITECTURES: Mapping[str, tuple[str, ...]] = {
    "timm": (
        "vit_base_patch16_224", "vit_large_patch16_224", "deit3_base_patch16_224", "deit_tiny_distilled_patch16_224",
        "beit_base_patch16_224", "eva02_base_patch14_224", "cait_s24_224", "hiera_tiny_224",
        "swin_base_patch4_window7_224", "swinv2_tiny_window8_256", "pvt_v2_b2", "maxvit_tiny_tf_224", "levit_128",
        "convnext_small", "convnextv2_tiny", "resnet50", "resnetv2_50", "efficientnet_b0", "mobilenetv3_large_100",
        "regnety_040", "densenet121",
    ),
    "torchvision": (
        "vit_b_16", "vit_l_16", "swin_t", "swin_v2_t", "maxvit_t", "convnext_tiny", "resnet18", "resnet50",
        "efficientnet_b0", "efficientnet_v2_s", "mobilenet_v2", "mobilenet_v3_large", "regnet_y_400mf",
        "densenet121",
    ),
    "open_clip": (
        "ViT-B-32", "ViT-L-14", "ViT-H-14", "coca_ViT-B-32", "ViT-B-16-SigLIP", "EVA02-B-16", "convnext_base", "RN50",
    ),
    "transformers": (
        "ViT", "Dinov2", "Beit", "CLIP", "Siglip", "Swin", "PvtV2", "ConvNext", "ResNet", "RegNet", "EfficientNet",
        "MobileNetV2",
    ),
}  # fmt: skip
"""Networks by library: names of architectures, and for transformers of models, in their default configuration."""
_HEAD = """# Frozen layers

`sar`, `deyo`, `rem`, `sotta` and `zoa` do not adapt the norm layers at the top of a network, and `imse` does not adapt
the linear layers there. `zoa` also leaves out the first block of a ViT or ResNet. Read this page if you need to know
which layers stay frozen in your network, or if a method reports that it cannot find the blocks.

The result shows it too: the column `frozen_layers` lists the first and last frozen layer, or `none of 49`.

| network | frozen |
|---|---|
| transformer with blocks of equal width (ViT, DeiT, BEiT) | the last quarter of the blocks, at least one |
| transformer or ConvNeXt with stages | the last stage, and the reduction before it |
| ResNet | the fourth stage: `layer4`, or `stages.3` in timm's ResNetV2 and in transformers |
| ResNet-20, EfficientNet, MobileNet, RegNet, DenseNet | nothing, as in SAR's own code |

Norm layers behind the frozen blocks are frozen too. A reduction stays adaptable if it belongs to the stage before.
For a ResNet and a ViT-B these are the layers that SAR's own code names.

A transformer whose blocks cannot be found raises an error. Name the layers yourself:
`hyperparameters: {frozen_layers: [encoder.block9, norm]}`, or `[]` to adapt every layer.

## Networks of four libraries

Written by `python docs/make_top_layers.py` and checked by a test.

| library | network | norm layers | frozen | from | to | highest layer that adapts |
|---|---|---|---|---|---|---|
"""


@cache
def network(library: str, architecture: str) -> nn.Module:
    """Return a network without weights, not to be changed; of open_clip, the image tower.

    Raises:
        ImportError: *library* is not installed.
    """
    if architecture.startswith("regnet"):  # torchvision and timm compute its widths with tensors
        return _maker(library, architecture)()
    with torch.device("meta"):
        return _maker(library, architecture)()


def _maker(library: str, architecture: str) -> Any:
    match library:
        case "timm":
            import timm

            return partial(timm.create_model, architecture)
        case "torchvision":
            return partial(get_model, architecture)
        case "open_clip":
            return partial(_tower, architecture)
        case _:
            return partial(_of_transformers, architecture)


def _tower(architecture: str) -> nn.Module:
    import open_clip
    from open_clip.model import _build_vision_tower

    settings: Any = open_clip.get_model_config(architecture)
    tower: nn.Module = _build_vision_tower(settings["embed_dim"], settings["vision_cfg"])
    return tower


def _of_transformers(name: str) -> nn.Module:
    import transformers

    settings = getattr(transformers, f"{name}Config")()
    found: nn.Module = transformers.AutoModelForImageClassification.from_config(settings)
    return found


def rows(library: str) -> Iterator[str]:
    """Yield the row of each network of *library*."""
    for architecture in ARCHITECTURES[library]:
        found = network(library, architecture)
        every = [name for name, layer in found.named_modules() if isinstance(layer, NORM_LAYERS)]
        frozen = top_layers(found, "sar")
        moving = [name for name in every if name not in frozen]
        first, last = (frozen[0], frozen[-1]) if frozen else ("-", "-")
        yield " | ".join(
            ["| " + library, architecture, str(len(every)), str(len(frozen)), first, last, f"{moving[-1]} |"]
        )


def page() -> str:
    """Return the whole page."""
    return _HEAD + "".join(f"{row}\n" for library in ARCHITECTURES for row in rows(library))


if __name__ == "__main__":
    PAGE.write_text(page())
