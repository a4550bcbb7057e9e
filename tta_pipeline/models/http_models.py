"""Servers that answer images with probabilities.

A request is `POST url` with some images of the stream; the answer is JSON:

    {"version": "2024-11", "probabilities": [[0.1, 0.9], ...], "features": [[...], ...]}

with a row for each image, in their order; `features` only if the model has a head. A raw request has the bytes of the
pixels, (B, 3, H, W) in C order, little-endian, with the headers `X-Image-Shape: 3,32,32` and `X-Dtype: uint8`. A JSON
request has `{"images": [...]}` with nested lists of the same numbers.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tta_pipeline.benchmarks.deployed_specs import HttpModel
from tta_pipeline.data.model_hosts import authorise
from tta_pipeline.data.server_requests import NoAnswerError, Post, post_each, run_and_wait
from tta_pipeline.errors import EvaluationError
from tta_pipeline.models.deployed_network import Answer, DeployedNetwork, probe_images
from tta_pipeline.models.loaded_model import LoadedModel

_CONTENT_TYPES = {"raw": "application/octet-stream", "json": "application/json"}
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 10.0
_MOST_BYTES_PER_NUMBER = 64
"""Most bytes of a number in an answer, with its separators; a float64 has at most 24 digits."""
_UNKNOWN = "0" * 64
_ROUNDED = 2
"""Decimals of the probabilities that identify a server: its arithmetic may vary in later ones."""
_GRID_TOLERANCE = 1e-2
"""Largest distance of a pixel from a whole number up to 255 that rounding of float32 explains."""


class Server:
    """A server that answers batches of images; it counts what it is asked."""

    def __init__(self, name: str, spec: HttpModel, *, num_classes: int) -> None:
        """Take the address, if images may be sent there.

        Raises:
            SettingsError: see `authorise`.
        """
        self._spec, self._named, self._num_classes = spec, f"model {name}, {spec.url},", num_classes
        pauses = (_FIRST_PAUSE_S * 2**number for number in range(spec.retries))
        self._post = Post(
            address=spec.url,
            headers={
                **authorise(spec.url),
                "Content-Type": _CONTENT_TYPES[spec.body],
                "X-Image-Shape": f"3,{spec.image_size},{spec.image_size}",
                "X-Dtype": spec.pixels,
            },
            timeout_s=spec.timeout_s,
            pauses_s=(0.0, *(min(pause, _LONGEST_PAUSE_S) for pause in pauses)),
            num_at_once=spec.concurrency,
            most_bytes=2**16 + spec.images_per_request * (num_classes + 2**16) * _MOST_BYTES_PER_NUMBER,
        )
        self.num_requests = 0
        self.num_retries = 0

    def compute(self, images: torch.Tensor) -> Answer:
        """Return the answers for *images*, float32 (B, 3, H, W), in their order.

        Raises:
            EvaluationError: the server does not answer, or not with a row of probabilities for each image.
        """
        parts = self._pixels(images)
        try:
            posted = run_and_wait(post_each(self._post, [self._encode(part) for part in parts]))
        except NoAnswerError as failure:
            raise EvaluationError(
                f"{self._named} gave no answer for {len(images)} images, at the last of {1 + self._spec.retries} "
                f"attempts {failure}; expected probabilities: start or correct the server, or raise `timeout_s` or "
                "`retries`; no result was recorded"
            ) from None
        self.num_requests += sum(each.num_attempts for each in posted)
        self.num_retries += sum(each.num_attempts - 1 for each in posted)
        answers = [self._read(each.content, len(part)) for each, part in zip(posted, parts, strict=True)]
        scores, features = zip(*answers, strict=True)
        whole = [each for each in features if each is not None]
        return Answer(torch.cat(scores), torch.cat(whole) if whole else None)

    def _pixels(self, images: torch.Tensor) -> list[npt.NDArray[Any]]:
        """Return the pixels of each request, (B, 3, H, W).

        Raises:
            EvaluationError: the images have another size, or a pixel is no whole number up to 255.
        """
        size = self._spec.image_size
        if images.shape[2:] != (size, size):
            raise EvaluationError(
                f"{self._named} takes images of {size}x{size}; found {images.shape[2]}x{images.shape[3]}: correct "
                "`image_size` of the model or of the benchmark"
            )
        host = images.cpu().float()
        if self._spec.pixels == "uint8":
            scaled = host * 255
            host = scaled.round()
            if not (scaled - host).abs().max() <= _GRID_TOLERANCE or not 0 <= host.min() <= host.max() <= 255:
                raise EvaluationError(
                    f"{self._named} takes whole numbers from 0 to 255, and a method or another normalisation makes "
                    "others; expected `pixels: float32`, if the server takes them"
                )
        stored = host.numpy().astype("u1" if self._spec.pixels == "uint8" else "<f4")
        starts = range(0, len(stored), self._spec.images_per_request)
        return [stored[start : start + self._spec.images_per_request] for start in starts]

    def _encode(self, pixels: npt.NDArray[Any]) -> bytes:
        if self._spec.body == "json":
            return json.dumps({"images": pixels.tolist()}, separators=(",", ":")).encode()
        return pixels.tobytes()

    def _read(self, content: bytes, num_images: int) -> Answer:
        """Return the answer in *content* to a request with *num_images* images.

        Raises:
            EvaluationError: it is something else.
        """
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise self._wrong(f"{content[:40]!r}, which is no JSON ({error})") from None
        if not isinstance(found, dict) or "probabilities" not in found:
            raise self._wrong(f"JSON without probabilities: {content[:40]!r}")
        if str(found.get("version")) != self._spec.version:
            raise EvaluationError(
                f"{self._named} answered as version {found.get('version')!r}; expected {self._spec.version!r}: set "
                "`version` in the benchmark file if the server was meant to change"
            )
        scores = self._rows(found["probabilities"], "probabilities", num_images)
        if scores.shape[1] != self._num_classes:
            raise self._wrong(f"probabilities of the shape {tuple(scores.shape)} for {num_images} images")
        features = self._rows(found["features"], "features", num_images) if "features" in found else None
        return Answer(scores, features)

    def _rows(self, rows: object, what: str, num_images: int) -> torch.Tensor:
        try:
            found = np.array(rows, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._wrong(f"{what} that are no rows of numbers ({error})") from None
        if found.ndim != 2 or len(found) != num_images:
            raise self._wrong(f"{what} of the shape {found.shape} for {num_images} images")
        if not np.isfinite(found).all():
            raise self._wrong(f"{what} that are not finite")
        return torch.from_numpy(found).float()

    def _wrong(self, found: str) -> EvaluationError:
        return EvaluationError(
            f"{self._named} answered with {found}; expected JSON with `version` and `probabilities`, a row of "
            f"{self._num_classes} for each image that sums to 1: correct the server; no result was recorded"
        )


class HttpNetwork(DeployedNetwork):
    """A network on a server."""

    def __init__(self, server: Server, **facts: Any) -> None:
        super().__init__(server.compute, are_probabilities=True, **facts)
        self._server = server

    def counters(self) -> Mapping[str, int]:
        """Return the numbers of requests, and of those that were sent again."""
        return {"num_requests": self._server.num_requests, "num_retries": self._server.num_retries}


def load_http_model(name: str, spec: HttpModel, *, num_classes: int, image_size: int | None) -> LoadedModel:
    """Return the model *name* on the server of *spec*, which is asked for fixed images.

    Raises:
        SettingsError: images may not be sent there.
        EvaluationError: the server does not answer, or not as expected; or *image_size* (None: unknown) is another.
    """
    if image_size not in (None, spec.image_size):
        raise EvaluationError(
            f"model {name}, {spec.url}, takes images of {spec.image_size} pixels; the benchmark's have {image_size}: "
            "correct `image_size` of the model, or name a transform in `shards` of the experiment"
        )
    server = Server(name, spec, num_classes=num_classes)

    def make(sha256: str) -> HttpNetwork:
        return HttpNetwork(
            server, spec=spec, named=f"model {name}, {spec.url},", sha256=sha256, num_classes=num_classes
        )

    answers = make(_UNKNOWN).probe(spec.image_size)
    _require_same_rows(server, answers, spec)
    probed = _hash_rounded(answers)
    decisive = {"url": spec.url, "version": spec.version, "pixels": spec.pixels, "head_sha256": spec.head_sha256}
    sha256 = hashlib.sha256(json.dumps([decisive, probed], sort_keys=True).encode()).hexdigest()
    return LoadedModel(
        name=name, make_network=lambda: make(sha256), num_classes=num_classes,
        weights=f"{spec.url} version {spec.version}", weights_sha256=probed, mean=spec.mean, std=spec.std,
        architecture=spec.called.partition(" ")[2], code=decisive, normalises_itself=spec.pixels == "uint8",
    )  # fmt: skip


def _require_same_rows(server: Server, answers: torch.Tensor, spec: HttpModel) -> None:
    """Check that the images of *answers*, probabilities (8, K), have the same ones in another order.

    Raises:
        EvaluationError: they have others.
    """
    again = server.compute(probe_images(spec.image_size).flip(0)).scores.flip(0)
    if (difference := (again - answers).abs().max().item()) > 10**-_ROUNDED:
        raise EvaluationError(
            f"{spec.url} answered the same images in another order with probabilities that differ by up to "
            f"{difference:.2g}; expected the same rows: it must answer each image by itself, in the order of the "
            "request, and without random draws"
        )


def _hash_rounded(answers: torch.Tensor) -> str:
    """Return a hash of probabilities, rounded: another model has another one, other arithmetic has not."""
    rounded = (np.round(answers.double().numpy(), _ROUNDED) + 0.0).tolist()
    return hashlib.sha256(json.dumps(rounded).encode()).hexdigest()
