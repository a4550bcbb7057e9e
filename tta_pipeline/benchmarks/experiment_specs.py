"""The experiments in a benchmark file: each has a model, a method and a protocol."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from tta_pipeline.benchmarks.file_context import FileContext
from tta_pipeline.benchmarks.protocol import ORDERS, Protocol, Subset
from tta_pipeline.methods.catalogue import find_method
from tta_pipeline.methods.entry import PRESETS, Hyperparameters, MethodEntry
from tta_pipeline.util.config_model import MAX_BATCH_SIZE, ConfigModel, IfMissing, Name, Seed
from tta_pipeline.util.nearest_names import name_choices
from tta_pipeline.util.short_lists import short_repr
from tta_pipeline.util.validation_errors import mistakes

_MAX_SEEDS = 1_000


class Experiment(ConfigModel):
    """A model, an adaptation method and a protocol."""

    model: str
    """Name of a model in this file."""
    group: Name | None = None
    """Dagster group of the experiment's asset, `<benchmark>_<group>`, for assets that you materialize together.
    Default: `<benchmark>`, with `_streams` or `_clean` for streams over several cells and for clean images."""
    method: str
    """Name of a method, or `<module>:<name>` of your `MethodEntry`. To combine methods: `{base: tent, loss: come,
    reset: asr}`, where `base` is the name and the rest are hyperparameters."""
    preset: Literal[PRESETS] = "imagenet"  # type: ignore[valid-type]
    """Hyperparameters that the method's authors published. `imagenet_vit` has a learning rate per batch size."""
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    """Values that replace the preset's values, by name."""
    tuned: bool | Name = False
    """Use the hyperparameters that `tta-pipeline tune` chose for this experiment, which `tuning` must name; or the
    name of another experiment with the same method, to use its hyperparameters. They override `hyperparameters`."""
    protocol: Annotated[Protocol, IfMissing("`reset_each_shift`")] = Protocol()
    """How cells become streams; a name is enough, such as `continual`."""
    subset: Subset | None = None
    """Samples of each cell to evaluate. Default: all."""
    severities: tuple[int, ...] | None = None
    """Severities of the benchmark that this experiment evaluates. Default: all."""
    batch_size: int = Field(default=64, ge=1, le=MAX_BATCH_SIZE)
    """Number of samples per batch, 1 to 100,000."""
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    """Precision of the forward pass. tf32 rounds factors to 10 bits on CUDA; fp32 does not. bf16 and fp16 use
    PyTorch's autocast. fp16 is for methods without gradients only, since gradients would vanish."""
    deterministic: bool = False
    """Use only algorithms that produce the same bits every time on the same device. May be slower."""
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off"
    """Mode of `torch.compile`; reduce-overhead and max-autotune use CUDA graphs. A smaller last batch runs
    uncompiled."""
    seed: Seed = 0
    """Seed of the method's random draws, and of the stream's order unless the order is `stored`: 0 to 2^63 - 1."""
    seeds: tuple[Seed, ...] | None = Field(default=None, min_length=1, max_length=_MAX_SEEDS)
    """Several seeds instead of one, each with its own stream order (also if the order is `stored`). `{count: 100}`
    means 0 to 99."""

    @field_validator("seeds", mode="before")
    @classmethod
    def _count_seeds(cls, value: Any) -> Any:
        if value is None or isinstance(value, list | tuple):
            return value
        count = value.get("count") if isinstance(value, dict) and len(value) == 1 else None
        if type(count) is not int or not 1 <= count <= _MAX_SEEDS:
            raise ValueError(
                f"the value is {short_repr(value)}; expected a list of seeds, or {{count: 100}} for 0 to 99, with at "
                f"most {_MAX_SEEDS:,} seeds"
            )
        return tuple(range(count))

    @model_validator(mode="before")
    @classmethod
    def _split_pieces(cls, value: Any) -> Any:
        if not isinstance(value, dict) or not isinstance(value.get("method"), dict):
            return value
        base, pieces = split_method(value["method"])
        given = value.get("hyperparameters", {})
        if not isinstance(given, dict):
            return {**value, "method": base}  # pydantic raises an error for these hyperparameters
        if twice := sorted(pieces.keys() & given):
            raise ValueError(
                f"method and hyperparameters both set {', '.join(twice)}; expected each value in only one of them: "
                "remove it from the other"
            )
        return {**value, "method": base, "hyperparameters": {**pieces, **given}}

    @model_validator(mode="after")
    def _has_a_list(self) -> "Experiment":
        if ORDERS[self.protocol.order].needs_list and (self.subset is None or self.subset.file is None):
            raise ValueError(
                f"order {self.protocol.order} needs a list of samples; expected subset: {{file: FILE}}, with one "
                "sample per line in the order of the stream, since neither images nor shards record when an image was "
                "taken"
            )
        return self

    @model_validator(mode="after")
    def _configured(self) -> "Experiment":
        if self.protocol.sliding_window > 1 and self.batch_size != 1:
            raise ValueError(
                f"batch_size is {self.batch_size}, but the protocol has a sliding_window of "
                f"{self.protocol.sliding_window}; expected batch_size 1, since a window moves by single images"
            )
        if self.seeds is not None and len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds is {list(self.seeds)}; expected each seed only once: remove the duplicates")
        try:
            if self.precision == "fp16" and self.configured_hyperparameters().takes_gradients:
                raise ValueError(
                    f"precision is fp16, but {self.method} computes gradients, which would vanish in fp16; expected "
                    "bf16, tf32 or fp32"
                )
            if self.protocol.predict_after_update and not self.entry.predicts_by_network:
                raise ValueError(
                    f"predict_after_update is set, but {self.method} does not predict with an adapted network alone; "
                    "expected a method that does, such as tent or sar: change the method, or set "
                    "`predicts_by_network=True` in the entry of your own"
                )
            self.entry.require_batch_size(self.method_batch_size)
            self.configured_hyperparameters()
        except ValidationError as error:
            raise ValueError("; ".join(mistakes(error, f"{self.method} hyperparameters"))) from None
        except (TypeError, AttributeError, LookupError) as error:
            # The user's own entry is malformed, or its hyperparameters raise.
            raise ValueError(
                f"the MethodEntry of method {self.method!r} raised {error!r}; expected an entry whose hyperparameters "
                "can be built: correct the code of the entry"
            ) from error
        return self

    @model_validator(mode="after")
    def _adapts_on_a_part(self) -> "Experiment":
        adapt = self.protocol.adapt
        if adapt and (adapt.first or 0) % self.batch_size:
            raise ValueError(
                f"adapt.first is {adapt.first}, but batch_size is {self.batch_size}; expected a multiple of the batch "
                "size, since methods adapt on whole batches: change one of them"
            )
        if adapt and not self.entry.can_freeze:
            raise ValueError(
                f"adapt is set, but {self.method} has no prediction without adapting; expected a method that has, such "
                "as tent, eata or neo: change the method, or set `predicts_by_network=True` in your own entry"
            )
        return self

    def problems(self, name: str, file: FileContext) -> Iterator[str]:
        """Yield a sentence for each problem of this experiment, called *name*, with the other sections of *file*."""
        field = f"experiments.{name}"
        if self.model not in file.models:
            choices = name_choices(self.model, file.models, listed_in="the section models")
            yield f"{field}.model is {self.model!r}; expected one of {choices}"
        unknown = set(self.severities or ()) - set(file.severities)
        if (unknown and not file.is_evaluated_whole) or self.severities == ():
            yield f"{field}.severities is {list(self.severities or ())}; expected any of {list(file.severities)}"
        yield from self.protocol.problems(f"{field}.protocol", file)
        if self.entry.source_data == "required" and not file.images.has_clean:
            other = self.entry.without_source_data
            advice = f", or method {other}, the variant without them" if other else ""
            yield f"{field}.method is {self.method}, which needs clean images; expected images.clean{advice}"
        yield from self._tuned_problems(name, file)

    def _tuned_problems(self, name: str, file: FileContext) -> Iterator[str]:
        field, tuned_as = f"experiments.{name}.tuned", self.tuned_as(name)
        if tuned_as is None:
            return
        if not file.tunings:
            yield (
                f"{field} is {self.tuned!r}, but there is no section tuning; expected an entry for {tuned_as}: add "
                f"`tuning: {{{tuned_as}: {{}}}}`"
            )
        elif tuned_as not in file.tunings:
            known = name_choices(tuned_as, file.tunings, listed_in="the section tuning")
            yield f"{field} is {self.tuned!r}; expected one of {known}"
        elif not file.held_out:
            yield f"{field} is {self.tuned!r}; {file.why_none_held_out}"
        elif (found := file.methods.get(tuned_as, (self.method, self.preset))) != (self.method, self.preset):
            yield (
                f"{field} is {tuned_as}, which has method {found[0]} and preset {found[1]}; expected an experiment "
                f"with method {self.method} and preset {self.preset}: give both the same, since the chosen values fit "
                "no others"
            )

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Seeds of the experiment; each has its own stream."""
        return self.seeds or (self.seed,)

    @property
    def stream_order(self) -> str:
        """Order of the samples in a segment.

        Mixed cells and several seeds imply a shuffled order.
        """
        return self.protocol.order_name(is_drawn=self.seeds is not None)

    @property
    def entry(self) -> MethodEntry:
        """Catalogue entry of the method.

        Raises:
            ValueError: the method does not exist.
        """
        return find_method(self.method)

    @property
    def method_batch_size(self) -> int:
        """Number of samples that the method sees at once: a batch, or a window of single images."""
        return max(self.batch_size, self.protocol.sliding_window)

    @property
    def method_name(self) -> str:
        """Name of the method in tables, with the pieces that differ from its preset, such as tent+come+asr."""
        return self.entry.named(self.method, self.preset, self.configured_hyperparameters())

    def tuned_as(self, own_name: str) -> str | None:
        """Return the experiment whose chosen hyperparameters this experiment, called *own_name*, uses; None if none."""
        return own_name if self.tuned is True else self.tuned or None

    def configured_hyperparameters(self) -> Hyperparameters:
        """Return the method's hyperparameters: those in the file, completed by the preset."""
        return self.entry.configure(self.preset, self.hyperparameters, batch_size=self.method_batch_size)


def split_method(method: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Return the base and the pieces of a *method* that is made of pieces.

    Raises:
        ValueError: *method* has no base.
    """
    if not isinstance(method.get("base"), str):
        raise ValueError(  # noqa: TRY004 - a bad value to pydantic
            f"method is {short_repr(method)}; expected the name of a method, or a combination with a base, such as "
            "{base: tent, loss: come, reset: asr}"
        )
    return str(method["base"]), {piece: value for piece, value in method.items() if piece != "base"}


def expand_protocols(experiments: Any) -> Any:
    """Return the file's *experiments*; an experiment with a list `protocols` becomes one experiment per protocol."""
    if not isinstance(experiments, dict):
        return experiments
    found: dict[Any, Any] = {}
    for name, content in experiments.items():
        if not isinstance(content, dict) or not isinstance(content.get("protocols"), list):
            found[name] = content
            continue
        rest = {field: value for field, value in content.items() if field != "protocols"}
        for protocol in content["protocols"]:
            its_name = Protocol.model_validate(protocol).name
            full_name = name if its_name == Protocol().name else f"{name}_{its_name}"
            if full_name in found:
                raise ValueError(
                    f"two experiments have the name {full_name}; expected distinct names: rename one, or list each "
                    "protocol only once"
                )
            found[full_name] = {**rest, "protocol": protocol}
    return found
