"""Definition of a training run and its epochs: their fields, each with its type, limits, column and comment.

This module determines the tables `training_runs` and `training_epochs`, as `evaluation_record` does for `evaluations`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from tta_pipeline.errors import RecordError
from tta_pipeline.results.record_fields import FORBID_UNKNOWN_FIELDS, Column, RecordedFacts, SeparatePart


def _count(comment: str, **more: Any) -> Column:
    return Column(comment, at_least=0, **more)


def _seconds(comment: str) -> Column:
    return Column(comment, at_least=0)


def _share(comment: str) -> Column:
    return Column(comment, at_least=0, at_most=1)


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEpoch:
    """One pass over the training images, and the validation after it. Times are from the first rank."""

    epoch: Annotated[int, Column("Number of the epoch, from 1", sql="INTEGER", above=0)]
    num_samples: Annotated[int, Column("Training images of the epoch, over all ranks, each once", above=0)]
    train_loss: Annotated[
        float | None, Column("Mean loss of the batches, while the weights changed; NULL if one is infinite or NaN")
    ]
    train_error: Annotated[
        float | None,
        _share("Top-1 error in [0, 1] on the augmented images, while the weights changed; NULL where labels are mixed"),
    ]
    validation_loss: Annotated[
        float | None,
        Column("Mean cross-entropy on the validation images; NULL without them, and if it is infinite or NaN"),
    ]
    validation_error: Annotated[
        float | None, _share("Top-1 error in [0, 1] on the validation images; NULL without them")
    ]
    lr: Annotated[float, _count("Learning rate at the end of the epoch")]
    wall_s: Annotated[
        float, Column("Training the epoch, fetching and computing, without validation and checkpoints", above=0)
    ]
    images_per_s: Annotated[float, Column("num_samples / wall_s", above=0)]
    data_wait_s: Annotated[float, _seconds("Sum over the batches of the time until the input delivered each")]
    validation_s: Annotated[float, _seconds("Validation after the epoch; 0 without it")]
    peak_memory_mib: Annotated[
        float | None,
        Column("Peak memory so far, in 2^20 bytes: allocated on the CUDA device, or resident on a CPU", at_least=0),
    ]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun(RecordedFacts):
    """The training of a source model from its first epoch to the weights that were kept, resumed or not."""

    # Model and data.
    benchmark: Annotated[str, Column("Name of the benchmark and of its file")]
    dataset: Annotated[str, Column("Name of the dataset")]
    model: Annotated[str, Column("Name of the model in the benchmark file")]
    architecture: Annotated[str, Column("Library and architecture of the network")]
    num_parameters: Annotated[int, Column("Parameters of the network", above=0)]
    fine_tuned: Annotated[bool, Column("Whether training began with pretrained weights instead of random ones")]
    fingerprint: Annotated[str, Column("sha256 of everything that determines the weights")]
    weights_sha256: Annotated[str, Column("sha256 of the weights that were kept")]
    manifest_sha256: Annotated[str, Column("Identity of the shard set of the training images; see shard_sets")]
    num_samples: Annotated[int, Column("Training images of an epoch", above=0)]
    settings: Annotated[str, Column("The model's whole section of the benchmark file", sql="JSON")]

    # Recipe, as far as tables show it; `settings` has all of it.
    num_epochs: Annotated[int, Column("Epochs in the settings", sql="INTEGER", above=0)]
    batch_size: Annotated[int, Column("Training images of a batch, over all ranks", sql="INTEGER", above=0)]
    optimizer: Annotated[str, Column("Optimiser")]
    lr: Annotated[float, _count("Highest learning rate")]
    augmentation: Annotated[str, Column("Augmentation of the training images")]
    loader: Annotated[str, Column("Loader of the training images: indexed, imagefolder or webdataset")]

    # Machine.
    device: Annotated[str, Column("Device of the computation: cpu, or the name of the CUDA device")]
    cpu_model: Annotated[str, Column("Model of the processor")]
    num_cores: Annotated[int, Column("Cores that the process may use", sql="INTEGER", above=0)]
    compute_threads: Annotated[int, Column("Threads of torch on the CPU, in each process", sql="INTEGER", above=0)]
    num_ranks: Annotated[int, Column("Processes that trained together", sql="INTEGER", above=0)]
    torch_version: Annotated[str, Column("Version of torch during training; versions are from the record's writer")]

    # Result.
    num_epochs_done: Annotated[int, Column("Epochs that were trained", sql="INTEGER", above=0)]
    selected: Annotated[
        str, Column("Weights that were kept: of the last epoch, or of the best", choices=("last", "best"))
    ]
    validated_on: Annotated[
        str | None,
        Column(
            "Validation images: the clean test images, or training images held out; NULL without validation",
            choices=("clean", "held_out"),
        ),
    ]
    train_error: Annotated[float | None, _share("train_error of the selected epoch")]
    validation_error: Annotated[float | None, _share("validation_error of the selected epoch")]
    best_epoch: Annotated[
        int | None, Column("Epoch with the lowest validation error, the first of equals", sql="INTEGER", above=0)
    ]
    best_validation_error: Annotated[float | None, _share("Lowest validation error of an epoch")]

    # Time.
    wall_s: Annotated[
        float, Column("The whole run with validation and checkpoints, over all processes that resumed it", above=0)
    ]
    images_per_s: Annotated[float, Column("Training images of all epochs / wall_s of all epochs", above=0)]
    time_to_first_batch_s: Annotated[float, _seconds("From the start of the first epoch until its first batch arrives")]
    data_wait_s: Annotated[float, _seconds("Sum over the epochs of data_wait_s")]
    num_resumed: Annotated[int, _count("Number of times that training was resumed from a checkpoint", sql="INTEGER")]
    num_inodes: Annotated[int, Column("Files that the loader reads: shards, or loose images", above=0)]

    epochs: Annotated[tuple[TrainingEpoch, ...], SeparatePart()]

    @classmethod
    def from_epochs(cls, epochs: Sequence[TrainingEpoch], *, selected: str, **others: Any) -> Self:
        """Return the run of *epochs*, with the fields that follow from them.

        Args:
            epochs: All epochs from the first.
            selected: Epoch whose weights were kept: `last` or `best`.
            others: All fields that do not follow from the epochs.

        Raises:
            RecordError: there is no epoch, or the best is selected without validation.
        """
        validated = [each for each in epochs if each.validation_error is not None]
        best = min(validated, key=lambda each: each.validation_error or 0.0, default=None)
        kept = best if selected == "best" else epochs[-1] if epochs else None
        if kept is None:
            raise RecordError(
                f"The field selected is {selected!r} for {len(epochs)} epochs without validation; expected at least "
                "one epoch, and 'last' without validation"
            )
        return cls(
            epochs=tuple(epochs),
            selected=selected,
            num_epochs_done=len(epochs),
            train_error=kept.train_error,
            validation_error=kept.validation_error,
            best_epoch=best.epoch if best else None,
            best_validation_error=best.validation_error if best else None,
            images_per_s=sum(each.num_samples for each in epochs) / sum(each.wall_s for each in epochs),
            data_wait_s=sum(each.data_wait_s for each in epochs),
            **others,
        )
