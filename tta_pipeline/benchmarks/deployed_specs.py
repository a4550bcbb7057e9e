"""Models as they are deployed, in a benchmark file: files of other runtimes, and servers. Their layers are closed."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from tta_pipeline.benchmarks.channel_statistics import Deviation, Mean
from tta_pipeline.data.remote_files import validate_url
from tta_pipeline.errors import StreamError
from tta_pipeline.methods.entry import Gives
from tta_pipeline.util.config_model import MAX_BATCH_SIZE, ConfigModel


class DeployedModel(ConfigModel):
    """What all models as they are deployed have."""

    called: ClassVar[str]
    """The kind in a sentence."""

    head: Path | None = None
    """safetensors file with `weight`, (classes, features), and `bias` of the last linear layer, for methods that read
    features, such as neo. The model's second output must then be the features, (images, features)."""
    head_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """sha256 of the file `head`."""
    classes: Path | None = None
    """Names of the model's classes, as for a torchvision model."""

    @model_validator(mode="after")
    def _head_and_its_hash(self) -> Self:
        if (self.head is None) != (self.head_sha256 is None):
            raise ValueError("found one of head and head_sha256; expected both or none")
        return self

    @property
    def gives(self) -> Gives:
        """What methods can have of the model."""
        return "logits" if self.head is None else "features"


class _ProgramModel(DeployedModel):
    """A network in a file of its own."""

    path: Path
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """sha256 of the file, as printed by `sha256sum`."""
    scores: Literal["logits", "probabilities"] = "logits"
    """What the first output is, (images, classes)."""
    mean: tuple[Mean, Mean, Mean]
    """Mean of each channel, as a fraction of the brightest value; 0 if the program takes pixels in [0, 1]."""
    std: tuple[Deviation, Deviation, Deviation]
    """Standard deviation of each channel; 1 if the program takes pixels in [0, 1]."""


class OnnxModel(_ProgramModel):
    """An ONNX file, computed by onnxruntime (the extra `onnx`).

    It has one input, float32 (images, 3, height, width), and its weights are in the file: `torch.onnx.export(...,
    external_data=False)`.
    """

    called: ClassVar[str] = "an ONNX program"
    kind: Literal["onnx"]


class ExportedModel(_ProgramModel):
    """A program that `torch.export.save` wrote. Loading it can run code: use files that you trust."""

    called: ClassVar[str] = "an exported program"
    kind: Literal["exported"]


class HttpModel(DeployedModel):
    """A server that answers images with probabilities.

    Requests go only to hosts in the environment variable `TTA_MODEL_HOSTS`, and follow no redirect; tokens come from
    `TTA_MODEL_TOKENS`. See docs/how-to/deployed.md for both forms of a request, and for the answer.
    """

    called: ClassVar[str] = "a server"
    kind: Literal["http"]
    url: str
    """Address that takes the images, without a query or a key."""
    version: str = Field(min_length=1)
    """Version of the model, which each answer must state in `version`."""
    image_size: int = Field(ge=1, le=16_384)
    """Height and width in pixels of the images that the server takes: those of the benchmark."""
    body: Literal["raw", "json"] = "raw"
    """Form of a request: the bytes of the pixels, or JSON with lists of numbers."""
    pixels: Literal["uint8", "float32"] = "uint8"
    """Type of the pixels: 0 to 255, which the server normalises; or numbers from 0 to 1, after mean and std."""
    mean: tuple[Mean, Mean, Mean] = (0.0, 0.0, 0.0)
    """Mean of each channel that is subtracted before float32 pixels are sent."""
    std: tuple[Deviation, Deviation, Deviation] = (1.0, 1.0, 1.0)
    """Standard deviation of each channel by which float32 pixels are divided before they are sent."""
    images_per_request: int = Field(default=16, ge=1, le=MAX_BATCH_SIZE)
    """Most images in a request. A batch of the stream is split into requests."""
    concurrency: int = Field(default=4, ge=1, le=256)
    """Most requests at a time, 1 to 256."""
    timeout_s: float = Field(default=30.0, gt=0, le=3_600)
    """Seconds in which a request must be answered."""
    retries: int = Field(default=3, ge=0, le=100)
    """Number of times that a request is sent again after a failure that can pass, with growing pauses."""

    @field_validator("url")
    @classmethod
    def _is_plain(cls, url: str) -> str:
        try:
            return validate_url(url, expected=("http", "https"))
        except StreamError as error:
            raise ValueError(str(error)) from None

    @model_validator(mode="after")
    def _normalises_floats_only(self) -> Self:
        if self.pixels == "uint8" and (self.mean, self.std) != ((0.0,) * 3, (1.0,) * 3):
            raise ValueError(
                "found mean or std with pixels uint8; expected pixels float32, or a server that normalises"
            )
        return self


AnyDeployed = OnnxModel | ExportedModel | HttpModel
"""A network whose layers cannot be reached."""
