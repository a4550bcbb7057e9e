"""The experiments of a benchmark, as its file says: a model, a method and a protocol each."""

from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from tta_pipeline.adaptation.catalogue import PRESETS, Hyperparameters, MethodEntry, find_method
from tta_pipeline.benchmarks.mistakes import mistakes
from tta_pipeline.benchmarks.naming import Name
from tta_pipeline.benchmarks.protocol import Protocol, Subset
from tta_pipeline.partitions import SEVERITIES
from tta_pipeline.sections import LARGEST_BATCH, Section, Seed

Severity = Literal[SEVERITIES]  # type: ignore[valid-type]


class Experiment(Section):
    """A model, an adaptation method and a protocol."""

    model: str
    shards: str | None = None
    """Name of the transform whose shards are evaluated; None: the shards as they were made."""
    group: Name | None = None
    """Of its asset, `<benchmark>_<group>`, for what is materialized together; None: `<benchmark>`. Streams over several
    cells, which have other partitions, are in `<benchmark>_<group>_streams` and `<benchmark>_streams`."""
    method: str
    """A name of the catalogue, or `<module>:<name>` of a `MethodEntry` of your own."""
    preset: Literal[PRESETS] = "imagenet"  # type: ignore[valid-type]
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    protocol: Protocol = Protocol()
    """How its streams are made of cells; a name alone will do, such as `continual`."""
    subset: Subset | None = None
    """Some samples of each cell; None: all."""
    severities: tuple[Severity, ...] | None = None
    """Of the benchmark's, those that this experiment evaluates; None: all."""
    batch_size: int = Field(default=64, ge=1, le=LARGEST_BATCH)
    """1 to 100,000."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the forward pass; anything but fp32 casts where PyTorch's autocast holds that to be safe."""
    compile: Literal["off", "default", "reduce-overhead", "max-autotune"] = "off"
    """Mode of `torch.compile`; reduce-overhead and max-autotune use CUDA graphs. The last, smaller batch is not
    compiled for."""
    seed: Seed = 0
    """Of the method's random draws, and of the stream's order unless that is the stored one: 0 to 2^63 - 1."""
    seeds: tuple[Seed, ...] | None = Field(default=None, min_length=1, max_length=1_000)
    """Several seeds instead of one, each with a stream of its own order: the stored order is then shuffled by them."""

    @model_validator(mode="after")
    def _configured(self) -> "Experiment":
        if self.protocol.window > 1 and self.batch_size != 1:
            raise ValueError(
                f"found batch_size {self.batch_size} with a window of {self.protocol.window}; expected batch_size 1"
            )
        if self.seeds is not None and len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"found seeds {list(self.seeds)}; expected each once")
        try:
            self.entry.require_batch_size(max(self.batch_size, self.protocol.window))
            self.configured()
        except ValidationError as error:
            raise ValueError("; ".join(mistakes(error, f"{self.method} hyperparameters"))) from None
        except (TypeError, AttributeError, LookupError) as error:
            # An entry of the user's own that is not what it should be, or whose hyperparameters raise.
            raise ValueError(f"method is {self.method!r}, whose entry raised {error!r}; expected another") from error
        return self

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """The seeds, of which each gives a stream of its own."""
        return self.seeds or (self.seed,)

    @property
    def entry(self) -> MethodEntry:
        """What is known of the method.

        Raises:
            ValueError: there is no such method.
        """
        return find_method(self.method)

    def configured(self) -> Hyperparameters:
        """Return the method's hyperparameters, the preset's where the file names none."""
        return self.entry.configure(self.preset, self.hyperparameters)


def one_for_each_protocol(experiments: Any) -> Any:
    """Return *experiments* as they stand in the file, with one for each protocol where several are named."""
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
                raise ValueError(f"found {full_name} twice; expected names of experiments, each once")
            found[full_name] = {**rest, "protocol": protocol}
    return found
