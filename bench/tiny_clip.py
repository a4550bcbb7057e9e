"""A small CLIP, trained on pairs of an image of CIFAR-10 and a text with the name of its class.

Its image tower is open_clip's ResNet with one block per stage. The loss is CLIP's from images to texts, over the ten
classes, each with a random text of `TEXTS`. Training takes ten minutes on one core.
"""

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional

from tta_pipeline.data.labels.shipped_lists import shipped_classes
from tta_pipeline.util.files import written_file

SIZE = 32
ARCHITECTURE = {
    "embed_dim": 128,
    "vision_cfg": {"image_size": SIZE, "layers": [1, 1, 1, 1], "width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}
TEXTS = (
    "a photo of a {}.", "a picture of the {}.", "a bad photo of a {}.", "a photo of a {}, a type of thing.",
    "a small photo of the {}.", "a drawing of a {}.", "a {}.", "{}",
)  # fmt: skip
NUM_EPOCHS = 4
_BATCH = 128
_LARGEST_LR = 2e-3
_WEIGHT_DECAY = 0.05
_PADDING = 4


def train_clip(archive: Path, folder: Path) -> tuple[Path, Path]:
    """Return the files of the architecture and of the weights in *folder*, which are made if they are missing.

    Args:
        archive: Training images of CIFAR-10, `<...>/<class>/<file>`.
        folder: Folder for both files.
    """
    import open_clip

    architecture, weights = folder / "tiny_clip.json", folder / "tiny_clip.pt"
    folder.mkdir(parents=True, exist_ok=True)
    architecture.write_text(json.dumps(ARCHITECTURE))
    if not weights.exists():
        open_clip.add_model_config(architecture)
        torch.manual_seed(0)
        clip = open_clip.create_model(architecture.stem)
        _train(clip, open_clip.get_tokenizer(architecture.stem), *_read_images(archive))
        with written_file(weights) as unfinished:
            torch.save({"state_dict": clip.state_dict()}, unfinished)
    return architecture, weights


def _read_images(archive: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images, uint8 (N, 3, H, W), and labels (N,)."""
    classes = shipped_classes("cifar_10")
    images, labels = [], []
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and (data := tar.extractfile(member)) is not None:
                labels.append(classes.index(Path(member.name).parts[-2]))
                images.append(np.asarray(Image.open(io.BytesIO(data.read())).convert("RGB")))
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous(), torch.tensor(labels)


def _train(clip: Any, tokenizer: Any, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Train *clip* on the pairs."""
    import open_clip

    classes = shipped_classes("cifar_10")
    texts = torch.stack([tokenizer([text.format(name) for name in classes]) for text in TEXTS])
    settings = open_clip.get_model_preprocess_cfg(clip)
    mean, std = (torch.tensor(settings[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    clip.train()
    clip.visual.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(clip.parameters(), lr=_LARGEST_LR, weight_decay=_WEIGHT_DECAY)
    num_steps = NUM_EPOCHS * (len(images) // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LARGEST_LR, total_steps=num_steps)
    for chosen in _batches(len(images)):
        pixels = _shifted(images[chosen]).float().div(255).sub(mean).div(std).to(memory_format=torch.channels_last)
        image_features = clip.encode_image(pixels, normalize=True)
        drawn = texts[torch.randint(len(TEXTS), (len(classes),)), torch.arange(len(classes))]
        text_features = clip.encode_text(drawn, normalize=True)
        logits = clip.logit_scale.exp().clamp(max=100) * image_features @ text_features.T
        loss = functional.cross_entropy(logits, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(clip.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    clip.eval()


def _batches(num_images: int) -> Iterator[torch.Tensor]:
    for _ in range(NUM_EPOCHS):
        order = torch.randperm(num_images)
        yield from order[: num_images // _BATCH * _BATCH].split(_BATCH)


def _shifted(images: torch.Tensor) -> torch.Tensor:
    """Return *images*, each mirrored or not, all moved by up to 4 pixels."""
    padded = functional.pad(images, (_PADDING,) * 4)
    down, right = torch.randint(2 * _PADDING + 1, (2,)).tolist()
    moved = padded[:, :, down : down + SIZE, right : right + SIZE]
    mirrored = torch.rand(len(images)) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), moved.flip(3), moved)
