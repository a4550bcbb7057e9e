"""Decide which evaluations share the features of a frozen model, and what these features depend on."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from typing import Any

import torch

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver
from tta_pipeline.evaluation.device.arithmetic import arithmetic_flags
from tta_pipeline.evaluation.feature_cache import FeatureCacheEntry, capturing, find_head, reading_features
from tta_pipeline.evaluation.fingerprint import NETWORK_CODE, Fingerprint, fingerprint
from tta_pipeline.evaluation.machine import machine_facts
from tta_pipeline.evaluation.open_stream import OpenStream
from tta_pipeline.loading.decoded_cache import DecodedCache
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.methods.features import ViewsRead
from tta_pipeline.methods.method import Method
from tta_pipeline.models.loaded_model import LoadedModel
from tta_pipeline.util.source_code import source_sha256


@dataclass(frozen=True, kw_only=True)
class FeatureSharing:
    """The features that an experiment can share with others."""

    kept_in: DecodedCache
    experiment: Experiment
    model: LoadedModel
    image_size: int
    device: torch.device

    def find(self, driver: ProtocolDriver, opened: OpenStream, segment: tuple[str, int]) -> FeatureCacheEntry | None:
        """Return the cache for the features of *opened*; None if the method reads more than features.

        A user's own method has none: its base class does not show what it does to the network. Call this with the
        arithmetic of the evaluation.
        """
        experiment = self.experiment
        is_plain = experiment.method in METHODS and experiment.compile == "off"
        if not is_plain or not driver.gives_whole_batches or find_head(driver.method) is None:
            return None
        views = driver.method.views_read
        return FeatureCacheEntry(
            self.kept_in,
            fingerprint=self._fingerprint(opened, segment, seed=driver.method.seed, views=views),
            manifest_sha256=opened.manifests[0].sha256,
            num_samples=len(opened.order),
            num_views=None if views is None else views.num_views,
        )

    @cached_property
    def _network_code_sha256(self) -> str:
        """Hash of the code around the network, computed once, so that later edits do not change it."""
        return source_sha256(NETWORK_CODE)

    @cached_property
    def _sha256_of_code(self) -> Callable[[str], str]:
        """Hash of the code of views, computed once."""
        return cache(source_sha256)

    def _fingerprint(
        self, opened: OpenStream, segment: tuple[str, int], *, seed: int, views: ViewsRead | None
    ) -> Fingerprint:
        of_views = {} if views is None else {**asdict(views), "code": self._sha256_of_code(views.code)}
        return fingerprint(
            code=self._network_code_sha256,
            views=of_views,
            model=self.model.identity,
            device=self.device.type,
            arithmetic=arithmetic_flags(),
            image_size=self.image_size,
            manifests=(*opened.manifests, *opened.unknown_manifests),
            machine=dict[str, Any](machine_facts(self.device)),
            stream=[*segment, seed],  # for a network with randomness
            batch_size=self.experiment.batch_size,
            precision=self.experiment.precision,
            order=hashlib.sha256(opened.order.indices.astype("<i8").tobytes()).hexdigest(),
        )


@contextmanager
def sharing_features(method: Method, kept: FeatureCacheEntry | None, features: torch.Tensor | None) -> Iterator[None]:
    """Let *method* read *features* if given; otherwise write the features that it computes to *kept*, if any."""
    head = find_head(method) if kept else None
    if kept is None or head is None:
        yield
        return
    if features is not None:
        with reading_features(method, head):
            yield
        return
    with capturing(method, head, limit_bytes=kept.cells.limit_bytes) as capture:
        yield
    found = capture.features()
    if found is not None:
        kept.write(found)
