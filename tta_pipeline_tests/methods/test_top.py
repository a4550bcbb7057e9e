"""What SAR, DeYO and REM leave as it is: the top of any network, by whatever names its library has for it."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

from tta_pipeline.errors import AdaptationError
from tta_pipeline.methods import build
from tta_pipeline.methods.norm_layers import NORM_LAYERS
from tta_pipeline.methods.top_layers import top_layers

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
import make_top_layers

TOP = [
    ("timm", "vit_base_patch16_224", "blocks.9.norm1", "blocks.8.norm2", 7),
    ("timm", "vit_large_patch16_224", "blocks.18.norm1", "blocks.17.norm2", 13),
    ("timm", "deit_tiny_distilled_patch16_224", "blocks.9.norm1", "blocks.8.norm2", 7),
    ("timm", "beit_base_patch16_224", "blocks.9.norm1", "blocks.8.norm2", 7),
    ("timm", "swin_base_patch4_window7_224", "layers.3.downsample.norm", "layers.2.blocks.17.norm2", 6),
    ("timm", "convnext_small", "stages.3.downsample.0", "stages.2.blocks.26.norm", 5),
    ("timm", "resnetv2_50", "stages.3.blocks.0.norm1", "stages.2.blocks.5.norm3", 10),
    ("torchvision", "resnet18", "layer4.0.bn1", "layer3.1.bn2", 5),
    ("torchvision", "vit_b_16", "encoder.layers.encoder_layer_9.ln_1", "encoder.layers.encoder_layer_8.ln_2", 7),
    ("torchvision", "vit_l_16", "encoder.layers.encoder_layer_18.ln_1", "encoder.layers.encoder_layer_17.ln_2", 13),
    ("torchvision", "swin_t", "features.6.norm", "features.5.5.norm2", 6),
    ("torchvision", "convnext_tiny", "features.6.0", "features.5.8.block.2", 5),
    ("torchvision", "efficientnet_b0", "", "features.8.1", 0),
    ("open_clip", "ViT-B-32", "transformer.resblocks.9.ln_1", "transformer.resblocks.8.ln_2", 7),
    ("open_clip", "ViT-L-14", "transformer.resblocks.18.ln_1", "transformer.resblocks.17.ln_2", 13),
    ("open_clip", "coca_ViT-B-32", "transformer.resblocks.9.ln_1", "transformer.resblocks.8.ln_2", 9),
    ("open_clip", "ViT-B-16-SigLIP", "trunk.blocks.9.norm1", "trunk.blocks.8.norm2", 8),
    ("open_clip", "RN50", "layer4.0.bn1", "layer3.5.bn3", 10),
]  # fmt: skip


class Unnumbered(nn.Module):
    """A transformer of two blocks, which have no numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(3, 8, 4, 4)
        self.lower, self.upper = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, 10) for *images* (B, 3, H, W)."""
        tokens = self.embedding(images).flatten(2).transpose(1, 2)
        logits: torch.Tensor = self.head(self.upper(self.lower(tokens)).mean(1))
        return logits


def adapted(network: nn.Module, method: str = "sar", **settings: Any) -> list[str]:
    """Return the names of the norm layers that *method* adapts, in order."""
    build(method, network, num_classes=10, preset="cifar", **settings)
    return [name for name in norms(network) if moves(network.get_submodule(name))]


def moves(layer: nn.Module) -> bool:
    """Return whether the weight of *layer* has gradients."""
    return bool(layer.get_parameter("weight").requires_grad)


def norms(network: nn.Module) -> list[str]:
    """Return the names of all norm layers, in order."""
    return [name for name, layer in network.named_modules() if isinstance(layer, NORM_LAYERS)]


@pytest.mark.parametrize(("library", "architecture", "lowest_frozen", "highest_adapted", "num_frozen"), TOP)
def test_the_top_is_a_quarter_of_the_blocks_or_the_last_stage(
    library: str, architecture: str, lowest_frozen: str, highest_adapted: str, num_frozen: int
):
    """With all norm layers after them: as SAR's authors freeze a ViT-B and a ResNet, in whatever library it is.

    In a wrapper, too.
    """
    pytest.importorskip(library)
    network = make_top_layers.network(library, architecture)
    every = norms(network)
    num_adapted = len(every) - num_frozen

    assert top_layers(network, "sar") == tuple(every[num_adapted:])
    wrapped = top_layers(nn.ModuleDict({"network": network}), "sar")
    assert wrapped == tuple(f"network.{name}" for name in every[num_adapted:])
    assert (highest_adapted, lowest_frozen) == (every[num_adapted - 1], every[num_adapted] if num_frozen else "")


@pytest.mark.parametrize("method", ["sar", "deyo", "tent"])
def test_the_top_of_a_tower_of_open_clip_stays(method: str):
    """The last of four blocks and the norm layer after them, where a method leaves the top as it is."""
    transformer = pytest.importorskip("open_clip.transformer")
    tower = transformer.VisionTransformer(32, 16, 16, layers=4, heads=2, mlp_ratio=2, output_dim=10)
    top = ["transformer.resblocks.3.ln_1", "transformer.resblocks.3.ln_2", "ln_post"]
    every = norms(tower)

    assert (every if method == "tent" else [name for name in every if name not in top]) == adapted(tower, method)
    assert set(top) < set(every)


def test_a_resnet_of_three_stages_has_no_top():
    """The authors know the top by its name, layer4; a ResNet-20 has no such stage, and the method says so."""
    network = ResNet(BasicBlock, [3, 3, 3, 3])
    del network.layer4
    method = build("sar", network, num_classes=10, preset="cifar")

    assert () == method.frozen_layers
    assert all(moves(network.get_submodule(name)) for name in norms(network))


def test_a_transformer_whose_blocks_are_not_found_is_refused():
    """The message has its norm layers, and what to write instead."""
    expected = r"\bUnnumbered\b.*\blower\.norm1, lower\.norm2, upper\.norm1, upper\.norm2\b.*\bsar\b.*`frozen_layers`"
    with pytest.raises(AdaptationError, match=expected):
        build("sar", Unnumbered(), num_classes=10, preset="cifar")


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["upper"], ["lower.norm1", "lower.norm2"]),
        (["network.upper.norm2", "lower.norm1"], ["lower.norm2", "upper.norm1"]),
        ([], ["lower.norm1", "lower.norm2", "upper.norm1", "upper.norm2"]),
    ],
)
@pytest.mark.parametrize("method", ["sar", "deyo"])
def test_a_benchmark_file_can_name_what_stays(method: str, named: list[str], expected: list[str]):
    """In place of the top that is found: layers, what holds them, or nothing."""
    assert expected == adapted(Unnumbered(), method, frozen_layers=named)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (["upper.norm3"], r"\bfrozen_layers\b.*\bupper\.norm3\b.*\bsar\b.*\blower\.norm1, lower\.norm2\b"),
        (["low"], r"\bfrozen_layers\b.*\blow\b.*\blower\.norm1, lower\.norm2\b"),
        (["lower", "upper"], r"\bUnnumbered\b.*\b4\b.*\bsar\b.*\bfrozen_layers\b"),
    ],
)
def test_names_that_leave_nothing_or_do_not_exist_are_refused(named: list[str], expected: str):
    """With the names that there are."""
    with pytest.raises(AdaptationError, match=expected):
        build("sar", Unnumbered(), num_classes=10, preset="cifar", frozen_layers=named)


def test_layers_are_named_only_where_norm_layers_adapt():
    """With other parameters the name would do nothing."""
    with pytest.raises(AdaptationError, match=r"\bsar\b.*\bfrozen_layers\b.*\bparams\b.*\blast\b.*\bnorm\b"):
        build("sar", Unnumbered(), num_classes=10, preset="cifar", params="last", frozen_layers=["upper"])


@pytest.mark.parametrize("library", make_top_layers.ARCHITECTURES)
def test_the_table_of_what_stays_is_that_of_the_code(library: str):
    """Each row of docs/reference/frozen-layers.md; `python docs/make_top_layers.py` writes them."""
    pytest.importorskip(library)
    written = make_top_layers.PAGE.read_text().splitlines()

    assert list(make_top_layers.rows(library)) == [line for line in written if line.startswith(f"| {library} |")]
