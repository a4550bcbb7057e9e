"""Protocols: how a stream is made of cells, and which samples it has. Papers differ more here than in methods."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field, model_validator

from tta_pipeline.benchmarks.file_context import FileContext
from tta_pipeline.benchmarks.protocols.driver import ProtocolDriver, SettingDriver, SourceModel
from tta_pipeline.benchmarks.protocols.in_turn import Continual, Gradual
from tta_pipeline.benchmarks.protocols.mixed import Dynamic, Mixed
from tta_pipeline.benchmarks.protocols.of_one_cell import Episodic, ResetEachShift
from tta_pipeline.benchmarks.protocols.sample_orders import ByClass, Dirichlet, Listed, Shuffled, Stored
from tta_pipeline.benchmarks.protocols.setting_drivers import (
    Adapt,
    AfterUpdateDriver,
    BudgetDriver,
    PartDriver,
    RealTimeDriver,
    WindowDriver,
)
from tta_pipeline.benchmarks.protocols.slow import Slow
from tta_pipeline.benchmarks.protocols.stream_protocol import Partition, SampleOrder, Samples, StreamProtocol
from tta_pipeline.domain.ordering import Indices
from tta_pipeline.util.config_model import MAX_COUNT, ConfigModel, Seed

if TYPE_CHECKING:
    from tta_pipeline.methods.method import Method

_K = TypeVar("_K", StreamProtocol, SampleOrder)

SHIFTS: Mapping[str, type[StreamProtocol]] = {
    "reset_each_shift": ResetEachShift,
    "episodic": Episodic,
    "continual": Continual,
    "gradual": Gradual,
    "mixed": Mixed,
    "slow": Slow,
    "dynamic": Dynamic,
}
"""The protocols by the value of `shift`."""
ORDERS: Mapping[str, type[SampleOrder]] = {
    "stored": Stored,
    "shuffled": Shuffled,
    "by_class": ByClass,
    "dirichlet": Dirichlet,
    "from_file": Listed,
}
"""The orders of samples by the value of `order`."""
DRIVERS: Mapping[str, type[SettingDriver]] = {
    "predict_after_update": AfterUpdateDriver,
    "stream_speed": RealTimeDriver,
    "adaptation_budget_s": BudgetDriver,
    "sliding_window": WindowDriver,
    "adapt": PartDriver,
}
"""Ways to feed the method other than the protocol's usual way, by the setting that selects them."""
_CORRELATED = "correlated"
_AFTER_UPDATE = "_after_update"
_OPEN = "_open"
"""Ending of the name of a protocol with unknown images."""


def _first_line(kind: type) -> str:
    line = (kind.__doc__ or "").partition("\n")[0]
    return line[:1].lower() + line[1:]


class Unknown(ConfigModel):
    """Images in a stream that belong to none of the benchmark's classes."""

    benchmark: str
    """Benchmark with the unknown images; the shards of the same cell are used. It must have no class of this
    benchmark."""
    share: float = Field(gt=0, lt=1)
    """Share of unknown images in the stream, above 0 and below 1. Each is used at most once; if there are too few,
    take fewer known images with `subset`."""


class Protocol(ConfigModel):
    """The protocol of an experiment.

    In a benchmark file, its name is enough: one of the values of `shift`; `correlated`, which is `continual` with order
    `by_class`; or a value of `shift` followed by `_correlated`, such as `mixed_correlated`. `_after_update` may follow.
    """

    shift: Literal[tuple(SHIFTS)] = Field(  # type: ignore[valid-type]
        default="reset_each_shift",
        description="Order of the cells, and resets of the method. "
        + " ".join(f"{name}: {_first_line(kind)}" for name, kind in SHIFTS.items()),
    )
    order: Literal[tuple(ORDERS)] = "stored"  # type: ignore[valid-type]
    """Order of samples in a cell, or in a whole mixed stream; by_class and dirichlet are correlated. from_file: in the
    order of the lines of the subset's list, such as by the time of the photographs."""
    classes_per_batch: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """With by_class: number of classes at a time, in random groups. Default: one class after another, in label
    order."""
    delta: float | None = Field(default=None, ge=1e-6, le=1e6)
    """Concentration of the Dirichlet order, 1e-6 to 1e6: the smaller, the fewer classes at a time."""
    corruption_order: Literal["canonical", "seeded"] = "canonical"
    """Order of corruptions in continual and gradual streams: as in papers, or permuted with the seed."""
    clean: Literal["never", "at_end", "after_each"] = "never"
    """When a continual stream returns to clean images, which measures forgetting (EATA, section 4)."""
    recurring: int = Field(default=1, ge=1, le=1000)
    """Number of passes over a continual or gradual stream without a reset, 1 to 1,000 (recurring TTA: Hoang et al.
    2024, "Persistent test-time adaptation", with 20 visits). An order other than stored is drawn again for each
    visit, as in the authors' code."""
    visits: int = Field(default=3, ge=1, le=1000)
    """Largest number of parts of each corruption in a dynamic stream, 1 to 1,000: 3 in the authors' code (Zhang et al.
    2025, "DPCore: dynamic prompt coreset for continual test-time adaptation")."""
    unknown: Unknown | None = None
    """Unknown images at random positions among the known ones, such as `{benchmark: letters_c, share: 0.2}` (open-set
    TTA: Lee et al. 2023, "Towards open-set test-time adaptation utilizing the wisdom of crowds in entropy
    minimization"; Gao et al. 2024, "Unified entropy optimization for open-set test-time adaptation"). Default:
    none."""
    sliding_window: int = Field(default=1, ge=1, le=100_000)
    """At batch size 1: number of newest images that the method sees at a time, at most 100,000. Only the prediction
    for the last one counts."""
    stream_speed: float | None = Field(default=None, gt=0, le=1)
    """Speed of a stream that does not wait (Alfarra et al. 2024, section 3): at 1, batches arrive as fast as the source
    model predicts them. Batches that arrive while the method is busy are predicted without adaptation."""
    adaptation_budget_s: float | None = Field(default=None, gt=0, le=MAX_COUNT)
    """Seconds that a method may take in a stream in addition to the time of the source model; after that, the method is
    frozen (the amortised utility of Sreeram et al. 2026, "Tempora")."""
    adapt: Adapt | None = None
    """Part of the stream on which the method adapts, such as `{first: 512}`, `{every: 10}` or `{share: 0.01}`.
    Default: the whole stream."""

    predict_after_update: bool = False
    """Predict each batch again after the update, at the cost of another forward pass. TTABC (walawalagoose/TTABC)
    does so for SAR and DeYO; papers predict before the update."""

    @model_validator(mode="before")
    @classmethod
    def _expand_name(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        name = value.removesuffix(_AFTER_UPDATE)
        after = {"predict_after_update": True} if name != value else {}
        if name == _CORRELATED:
            return {"shift": "continual", "order": "by_class", **after}
        shift = name.removesuffix(f"_{_CORRELATED}")
        return {"shift": shift, **({"order": "by_class"} if shift != name else {}), **after}

    @model_validator(mode="after")
    def _consistent(self) -> "Protocol":
        if (self.order == "dirichlet") != (self.delta is not None):
            raise ValueError(
                f"order is {self.order} and delta is {self.delta}; expected a delta, such as 0.1, if and only if "
                "order is dirichlet"
            )
        self._require_own_settings("order", ORDERS)
        if self.order != "stored" and self.stream.only_usual_because:
            raise ValueError(
                f"order is {self.order}, but with shift {self.shift}, {self.stream.only_usual_because}; expected "
                "order stored"
            )
        self._require_own_settings("shift", SHIFTS)
        return self

    def _require_own_settings(self, field: str, kinds: Mapping[str, type[StreamProtocol] | type[SampleOrder]]) -> None:
        """Refuse settings that belong to other *kinds* than the one that *field* names."""
        takers: dict[str, list[str]] = {}
        for name, kind in kinds.items():
            for each in fields(kind):
                takers.setdefault(each.name, []).append(name)
        found = getattr(self, field)
        for setting, names in takers.items():
            if found not in names and self._is_given(setting):
                expected = f"{field} {' or '.join(names)}"
                raise ValueError(
                    f"{setting} is {getattr(self, setting)}, but {field} is {found}; expected {expected}: change "
                    f"{field}, or remove {setting}"
                )

    @model_validator(mode="after")
    def _feeds_in_one_way(self) -> "Protocol":
        asked = [name for name in DRIVERS if self._is_given(name)]
        usual = type(self).model_fields
        ways = [f"{name} {getattr(self, name)}" if usual[name].default else name for name in asked]
        excluding = [name for name in asked if not DRIVERS[name].lets_others_drive]
        if excluding and SHIFTS[self.shift].drive is not StreamProtocol.drive:
            ways.append(f"shift {self.shift}")
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} cannot be combined; expected only one of them")
        if self.unknown is not None and not self.stream.takes_unknown:
            raise ValueError(
                f"unknown is set, but shift is {self.shift}; expected a shift in which unknown images can be anywhere "
                "among the known images of their cell, such as continual"
            )
        return self

    def problems(self, field: str, file: FileContext) -> Iterator[str]:
        """Yield a sentence for each problem of this protocol, in *field*, with the other sections of *file*."""
        if self.clean != "never" and not file.images.has_clean:
            yield (
                f"{field}.clean is {self.clean}, but there are no clean images; expected images.clean: add it, or set "
                "clean to never"
            )
        if self.unknown is not None and self.unknown.benchmark == file.benchmark:
            yield (
                f"{field}.unknown.benchmark is {file.benchmark}, which is this benchmark; expected the name of "
                "another benchmark"
            )

    def _is_given(self, setting: str) -> bool:
        return bool(getattr(self, setting) != type(self).model_fields[setting].default)

    @property
    def stream(self) -> StreamProtocol:
        """The protocol with its settings."""
        return self._with_settings(SHIFTS[self.shift])

    def _with_settings(self, kind: type[_K]) -> _K:
        return kind(**{setting.name: getattr(self, setting.name) for setting in fields(kind)})

    def order_name(self, *, is_drawn: bool) -> str:
        """Return the name of the order of a segment's samples; *is_drawn*: a stored order is shuffled by seed."""
        named: str = self.order
        found = self.stream.usual_order if named == "stored" else named
        return "shuffled" if is_drawn and found == "stored" else found

    def order_samples(self, samples: Samples, *, name: str, seed: int) -> Indices:
        """Return the position of each of a segment's *samples* once, in the order *name* of `order_name`."""
        return self.stream.order(samples, self._with_settings(ORDERS.get(name, Stored)), seed=seed)

    def drive(self, method: "Method", source: SourceModel) -> ProtocolDriver:
        """Return the driver that feeds batches to *method*."""
        usual = self.stream.drive(method)
        for name, driver in DRIVERS.items():
            if self._is_given(name):
                return driver(usual, getattr(self, name), source)
        return usual

    @property
    def name(self) -> str:
        """Name of the protocol in tables; a file can use it too, unless it has `recurring`, `unknown` or `adapt`."""
        recurring = "recurring_" if self.recurring > 1 else ""
        ending = _AFTER_UPDATE * self.predict_after_update + _OPEN * (self.unknown is not None)
        shift: str = self.shift
        if ORDERS[self.order].is_correlated:
            shift = _CORRELATED if shift == "continual" else f"{shift}_{_CORRELATED}"
        part = f"_{self.adapt.name}" if self.adapt else ""
        return recurring + shift + ending + part

    @property
    def partitioned_by(self) -> Partition:
        """The part of the benchmark that one stream covers: a cell, a severity, or everything."""
        return SHIFTS[self.shift].partitioned_by


class Subset(ConfigModel):
    """Selection of samples of each cell; tables never mix subsets."""

    first: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """The first samples in the stored order."""
    random: int | None = Field(default=None, ge=1, le=MAX_COUNT)
    """Number of samples drawn at random; independent of how images are sharded."""
    imbalance_factor: float | None = Field(default=None, ge=1, le=1e6)
    """Imbalance factor of a long tail, 1 to 1,000,000: classes drawn one after another with the seed keep a share of
    their samples that falls exponentially from 1 to 1 / factor (Cui et al. 2019, "Class-balanced loss based on
    effective number of samples", section 5.1)."""
    seed: Seed = 0
    """Seed of the random samples, and of the classes in the tail, 0 to 2^63 - 1."""
    file: Path | None = None
    """File with one sample per line, `<class>/<file name>` as in the source, such as RobustBench's list of 5,000."""

    @model_validator(mode="after")
    def _one_of_four(self) -> "Subset":
        self.require_one("subset", of=("first", "random", "imbalance_factor", "file"))
        return self

    @property
    def name(self) -> str:
        """Name of the subset in tables."""
        if self.file:
            return f"listed in {self.file.name}"
        if self.imbalance_factor:
            return f"long tail {self.imbalance_factor:g}, seed {self.seed}"
        return f"first {self.first}" if self.first else f"random {self.random}, seed {self.seed}"
