"""The section of a benchmark file for the network, which is read without torch."""

from typing import Literal

from pydantic import Field

from tta_pipeline.benchmarks.model_specs import NetworkSection


class ConvMixerSection(NetworkSection):
    """A small ConvMixer, to be trained on the benchmark's own images."""

    implementation = "tta_plugin.conv_mixer:ConvMixer"
    has_weights = False
    kind: Literal["conv_mixer"]
    width: int = Field(default=32, ge=1, le=4_096)
    """Number of channels."""
    depth: int = Field(default=2, ge=1, le=64)
    """Number of blocks."""
