"""A continual stream of four shifts of CIFAR-10, and a ResNet-20, from a folder; a ViT with random weights.

The folder has `test.tar.gz` and `train.tar.gz` with members `<split>/<class>/<name>.jpg`, and `resnet.py` with
`resnet20-12fca82f.th` of akamaster/pytorch_resnet_cifar10.
"""

import importlib.util
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from bench.parity.comparison import Batch, Scene
from tta_pipeline.data.corruptions.arrays import Images
from tta_pipeline.data.corruptions.dispatch import corrupt
from tta_pipeline.models.normalized import Normalized

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHIFTS = ("gaussian_noise", "defocus_blur", "fog", "contrast")
SEVERITY = 5
BATCH_SIZE = 200
NUM_SOURCE_IMAGES = 2000
VIT = {"img_size": 32, "patch_size": 4, "embed_dim": 48, "depth": 12, "num_heads": 3, "num_classes": len(CLASSES)}
"""Arguments of timm's ViT; it has the depth of a ViT-B, since authors select the blocks to adapt by number."""
_SEED = 0


def scene(folder: Path, *, images_per_shift: int) -> Scene:
    """Return network and data; each shift has its own *images_per_shift* images."""
    names, images, labels = _images(folder / "test.tar.gz", images_per_shift * len(SHIFTS))
    stream: list[Batch] = []
    for number, shift in enumerate(SHIFTS):
        own = slice(number * images_per_shift, (number + 1) * images_per_shift)
        shifted = corrupt(images[own], shift, SEVERITY, keys=names[own], seed=_SEED, table="cifar_c")
        stream += _batches(shifted, labels[own])
    _, clean, clean_labels = _images(folder / "train.tar.gz", NUM_SOURCE_IMAGES)
    return Scene(
        network=_network(folder),
        num_classes=len(CLASSES),
        stream=stream,
        source_data=list(_batches(clean, clean_labels)),
    )


def _images(archive: Path, count: int) -> tuple[list[str], Images, torch.Tensor]:
    """Return names, pixels (N, H, W, 3) and labels, int64 (N,), of *count* images of *archive*, chosen at random."""
    with tarfile.open(archive) as tar:
        members = {member.name: member for member in tar if member.isfile()}
        chosen = np.random.default_rng(_SEED).permutation(sorted(members))[:count].tolist()
        in_order = sorted(chosen, key=lambda name: members[name].offset)  # so the archive is decompressed only once
        pixels = {name: np.asarray(Image.open(io.BytesIO(_read(tar, members[name])))) for name in in_order}
    labels = torch.tensor([CLASSES.index(name.split("/")[1]) for name in chosen])
    return chosen, np.stack([pixels[name] for name in chosen]), labels


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None
    return file.read()


def _batches(images: Images, labels: torch.Tensor) -> Iterator[Batch]:
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    yield from zip(torch.split(pixels, BATCH_SIZE), torch.split(labels, BATCH_SIZE), strict=True)


def _network(folder: Path) -> nn.Module:
    spec = importlib.util.spec_from_file_location("resnet", folder / "resnet.py")
    assert spec is not None
    assert spec.loader is not None
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    network = code.resnet20()
    weights = torch.load(folder / "resnet20-12fca82f.th", map_location="cpu", weights_only=True)["state_dict"]
    network.load_state_dict({name.removeprefix("module."): value for name, value in weights.items()})
    return Normalized(network, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)).eval()


def in_turns(stream: Sequence[Batch]) -> list[Batch]:
    """Return the batches of *stream* in an order in which each shift comes back after one batch of each other."""
    num_batches = len(stream) // len(SHIFTS)
    return [batch for number in range(num_batches) for batch in stream[number::num_batches]]


class InBfloat16(nn.Module):
    """A network that computes in bfloat16 as an evaluation with `precision: bf16` does: parameters stay float32."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, K) in float32."""
        with torch.autocast("cpu", torch.bfloat16):
            logits: torch.Tensor = self.network(images)
        return logits.float()


def vit(_: nn.Module) -> nn.Module:
    """Return a ViT with fixed random weights, which are large, so that it attends to some patches more than others."""
    from timm.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        network = VisionTransformer(**VIT)
        for layer in network.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.1)
    return network.eval()
