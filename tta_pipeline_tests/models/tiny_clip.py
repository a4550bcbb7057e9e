"""A small CLIP of open_clip with random weights."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import nn

from tta_pipeline.benchmarks.model_specs import OpenClipModel

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 16, "head_width": 8, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@contextmanager
def one_tokenizer() -> Iterator[None]:
    """Let open_clip read its vocabulary once: it takes most of the time in which a small CLIP is loaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("open_clip.get_tokenizer", cache(import_module("open_clip").get_tokenizer))
        yield


def make_tiny_clip(folder: Path) -> nn.Module:
    """Return a CLIP whose architecture open_clip knows as `tiny` from now on, by a file in *folder*."""
    open_clip = import_module("open_clip")  # tests skip without it
    path = folder / "tiny.json"
    path.write_text(json.dumps(TINY))
    open_clip.add_model_config(path)
    torch.manual_seed(0)
    clip: nn.Module = open_clip.create_model("tiny").eval()
    return clip


def describe_tiny_clip(clip: nn.Module, folder: Path) -> OpenClipModel:
    """Return *clip* as a benchmark file describes it, with its weights in *folder*."""
    path = folder / "tiny.pt"
    torch.save({"epoch": 3, "state_dict": clip.state_dict()}, path)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return OpenClipModel(kind="open_clip", architecture="tiny", weights=path, sha256=sha256)
