"""The parts of an evaluation: their fields, each with its type, limits, column and comment."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import sub
from typing import Annotated, Any

from tta_pipeline.results.record_fields import FORBID_UNKNOWN_FIELDS, Column, InlinePart, SeparatePart, columns_of

PUBLISHED, PRESET, TUNED, OWN, BY_HAND = "published", "preset", "tuned (held-out)", "own", "set by hand"
"""Origins of hyperparameters."""
WITHOUT_FILE = "own"
"""Protocol of an evaluation without a benchmark file: the data that the method has already seen are unknown."""


def _count(comment: str, **more: Any) -> Column:
    return Column(comment, at_least=0, **more)


def _seconds(comment: str, **more: Any) -> Column:
    return Column(comment, at_least=0, **more)


def _share(comment: str, **more: Any) -> Column:
    return Column(comment, at_least=0, at_most=1, **more)


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationBins:
    """Sums over 15 equal-width bins of top-1 confidence in [0, 1], lowest bin first."""

    counts: Annotated[
        tuple[int, ...],
        Column("Samples in each confidence bin; sums over cells give the exact calibration of their union", at_least=0),
    ]
    confidence_sums: Annotated[tuple[float, ...], Column("Sum of the confidences in each bin", at_least=0)]
    correct_counts: Annotated[tuple[int, ...], Column("Correct predictions in each bin", at_least=0)]

    @property
    def ece(self) -> float:
        """Expected calibration error in [0, 1]: the mean over samples of |accuracy - confidence| of their bin.

        Guo et al. 2017, "On calibration of modern neural networks", equation 3, with 15 bins, as in torchmetrics.
        """
        # Every record is compared with it when it is read; `map` over operators takes half the time of loops in Python.
        gaps: Iterable[float] = map(abs, map(sub, self.correct_counts, self.confidence_sums))
        return sum(gaps) / sum(self.counts)


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class ClassCounts:
    """Samples and correct predictions of each class, in the order of the class map; sums over cells are exact."""

    num_samples: Annotated[tuple[int, ...], Column("Samples of each class", sql="INTEGER[]", at_least=0)]
    num_correct: Annotated[tuple[int, ...], Column("Correct predictions of each class", sql="INTEGER[]", at_least=0)]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Batches:
    """Time and correct predictions of each batch of a pass, in columns; empty except in the pass's first cell."""

    num_samples: Annotated[tuple[int, ...], Column("Samples of the batch", sql="INTEGER[]", at_least=1)]
    data_wait_s: Annotated[tuple[float, ...], Column("Seconds until the stream delivered the batch", at_least=0)]
    host_to_device_s: Annotated[
        tuple[float, ...],
        Column("Copy of the batch; on CUDA it overlaps computation on the previous batch; 0 on a CPU", at_least=0),
    ]
    compute_s: Annotated[tuple[float, ...], Column("Forward pass and adaptation", at_least=0)]
    num_correct: Annotated[
        tuple[int, ...], Column("Correct predictions of the batch", sql="INTEGER[]", at_least=0)
    ]  # fmt: skip
    num_unadapted: Annotated[
        tuple[int, ...] | None,
        Column(
            "Samples of the batch predicted without adaptation; NULL if there are none", sql="INTEGER[]", at_least=0
        ),
    ]
    num_resets: Annotated[
        tuple[int, ...] | None,
        Column("Resets of the method at the batch; NULL if there are none", sql="INTEGER[]", at_least=0),
    ]
    num_unknown: Annotated[
        tuple[int, ...] | None,
        Column("Unknown samples of the batch; NULL if there are none", sql="INTEGER[]", at_least=0),
    ]
    mean_entropy: Annotated[
        tuple[float, ...] | None,
        Column("Mean entropy of the predictions, in nats; NULL if a logit is not finite", at_least=0),
    ]
    mean_confidence: Annotated[
        tuple[float, ...] | None,
        Column("Mean maximum softmax; NULL if a logit is not finite", at_least=0, at_most=1.001),
    ]
    predicted_class_entropy: Annotated[
        tuple[float, ...],
        Column("Entropy of the shares of the predicted classes, in nats", at_least=0),
    ]
    source_agreement: Annotated[
        tuple[float, ...] | None,
        Column(
            "Share of predictions that the source model shares; NULL unless the method computes both",
            at_least=0,
            at_most=1,
        ),
    ]


LABEL_FREE = ("mean_entropy", "mean_confidence", "predicted_class_entropy", "source_agreement")
"""Scores that need no labels; each is a field of a cell and of its batches."""
NO_BATCHES = Batches(
    num_samples=(), data_wait_s=(), host_to_device_s=(), compute_s=(), num_correct=(), num_unadapted=None,
    num_resets=None, num_unknown=None, mean_entropy=None, mean_confidence=None, predicted_class_entropy=(),
    source_agreement=None,
)  # fmt: skip
"""Value of `batches` in every cell of a stream except the first."""


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSamples:
    """The first samples of the cell in the stream, for a picture."""

    positions: Annotated[tuple[int, ...], Column("Position of each in the cell's sample index", at_least=0)]
    predictions: Annotated[tuple[int, ...], Column("Predicted label of each", at_least=0)]
    confidences: Annotated[tuple[float, ...], Column("Top-1 confidence of each", at_least=0, at_most=1.001)]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftFacts:
    """A dataset's facts about one of its corruptions or splits."""

    shift_position: Annotated[
        int | None,
        Column(
            "Position of the shift in its set, from 1; 0 for clean images; NULL without a benchmark file",
            sql="INTEGER",
            at_least=0,
        ),
    ]
    shift_family: Annotated[str | None, Column("Family of the shift, such as noise; NULL if it has none")]
    shift_group: Annotated[
        str | None, Column("Group of datasets over which means are taken, such as natural; NULL if the set has none")
    ]
    counts_in_mean: Annotated[
        bool | None, Column("Whether the shift counts in its set's mean; NULL without a benchmark file")
    ]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class CellLabels:
    """Labels of an evaluation from files, which change no prediction; they are updated from its plan."""

    experiment: Annotated[str, Column("Model, method and protocol together, by their name in the benchmark file")]
    model: Annotated[str, Column("Name of the model in the benchmark file")]
    dataset: Annotated[str, Column("Name of the dataset")]
    hyperparameters_origin: Annotated[
        str,
        Column(
            "published: exactly the values that were published for this method, kind of network and dataset; preset: "
            "values published for another kind of network or dataset; tuned (held-out): a preset with some values "
            "chosen by tuning on shifts that are not reported; own: your own method; set by hand: "
            "anything else",
            choices=(PUBLISHED, PRESET, TUNED, OWN, BY_HAND),
        ),
    ]
    tuning: Annotated[
        str | None,
        Column(
            "Chosen values that were used, with cells and grid of the tuning, its experiment, and the sha256 of its "
            "record; NULL without tuning",
            sql="JSON",
        ),
    ]
    shift: Annotated[ShiftFacts, InlinePart("")]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class CellInStream:
    """The cell, and its segment in the stream with the order of the samples."""

    benchmark: Annotated[str, Column("Name of the benchmark and of its file")]
    stream: Annotated[str, Column("Partition key of the stream: a cell such as fog|5, a severity, or all")]
    position: Annotated[
        int,
        Column(
            "Position of the segment in the stream, from 0; a gradual stream visits most cells twice",
            sql="INTEGER", at_least=0, shown_of_segment=True,
        ),
    ]  # fmt: skip
    visit: Annotated[
        int | None,
        Column(
            "Number of the visit of a recurring stream, from 1; NULL in other streams",
            sql="INTEGER", above=0, shown_of_segment=True,
        ),
    ]  # fmt: skip
    corruption: Annotated[str, Column("Shift: a corruption, a split, or clean", shown_of_segment=True)]
    severity: Annotated[
        int,
        Column(
            "Severity, from 1; 0 for clean images and sets without severities",
            sql="INTEGER", at_least=0, shown_of_segment=True,
        ),
    ]  # fmt: skip
    seed: Annotated[
        int,
        Column(
            "Seed of method and stream; rows that differ only in it are runs of one experiment", shown_of_segment=True
        ),
    ]
    subset: Annotated[
        str,
        Column(
            "Which samples of the cell; all by default. Rows of different subsets are not comparable"
        ),
    ]  # fmt: skip
    generated: Annotated[
        bool,
        Column(
            "Whether this project made the corrupted images; if so, errors are not comparable with published tables"
        ),
    ]
    manifest_sha256: Annotated[str, Column("Identity of the shard set that was read; see shard_sets")]
    stream_order: Annotated[
        str,
        Column(
            "Order of the samples in a segment, or in each cell of a dynamic stream, such as shuffled, as the "
            "protocol names it"
        ),
    ]
    order_hash: Annotated[str, Column("sha256 of the samples' keys in stream order", shown=True)]

    @property
    def key(self) -> str:
        """Key of the cell, such as `fog|5`."""
        return f"{self.corruption}|{self.severity}"


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """The model, the method and all settings: what decides the predictions."""

    architecture: Annotated[str, Column("Library and architecture of the model")]
    weights: Annotated[str, Column("Weights of the model")]
    weights_sha256: Annotated[str, Column("sha256 of the weights")]
    method: Annotated[str, Column("Adaptation method; source adapts nothing")]
    protocol: Annotated[str, Column("Order of the samples and resets of the method")]
    config: Annotated[str, Column("The experiment with all hyperparameters", sql="JSON")]
    frozen_layers: Annotated[
        str | None,
        Column(
            "Top norm layers that the method froze: how many, the first and the last, or none if the network has no "
            "top; NULL for methods that never freeze any"
        ),
    ]
    num_adapted_parameters: Annotated[
        int | None, _count("Parameters of the network that gradient steps change; NULL for methods that take none")
    ]
    fingerprint: Annotated[
        str,
        Column("sha256 of everything that determines the predictions"),
    ]  # fmt: skip
    fingerprint_parts: Annotated[str, Column("Parts of the fingerprint, by name", sql="JSON")]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Errors of the predictions; docs/reference/metrics.md defines them and all other scores."""

    num_samples: Annotated[
        int, Column("Known samples evaluated, each once", above=0, shown=True, shown_of_segment=True)
    ]
    num_correct: Annotated[int, _count("Samples whose predicted class is the label", shown=True)]
    error: Annotated[
        float, _share("Top-1 error in [0, 1]: 1 - num_correct / num_samples", shown=True, shown_of_segment=True)
    ]
    top5_error: Annotated[float, _share("Top-5 error in [0, 1]: samples with five classes or more above the label")]
    nll: Annotated[
        float | None,
        Column(
            "Mean negative log-likelihood of the labels, in nats; NULL if one is infinite or NaN",
            at_least=0,
        ),
    ]  # fmt: skip
    brier: Annotated[
        float | None,
        Column(
            "Mean squared distance of the probabilities from the one-hot label, in [0, 2]; NULL if one is NaN",
            at_least=0, at_most=2.00001,
        ),
    ]  # fmt: skip
    diverged: Annotated[
        bool,
        Column(
            "Whether the model is broken: a logit was not finite, or after adaptation it predicted one class for "
            "nearly everything",
            shown=True, shown_of_segment=True,
        ),
    ]  # fmt: skip
    class_counts: Annotated[ClassCounts, SeparatePart()]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """How far confidences are from accuracies."""

    ece: Annotated[
        float, _share("Expected calibration error in [0, 1], 15 equal-width bins of top-1 confidence, L1", shown=True)
    ]
    adaptive_ece: Annotated[
        float,
        _share("Calibration error in [0, 1], 15 bins of equally many samples by confidence, L1"),
    ]
    class_wise_ece: Annotated[
        float,
        _share("Calibration error in [0, 1] of each class's probability, 15 bins, mean of classes"),
    ]
    aurc: Annotated[
        float,
        _share("Mean over n of the error of the n most confident samples, the area under risk-coverage"),
    ]
    bins: Annotated[CalibrationBins, InlinePart("bin_")]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class LabelFreeScores:
    """Scores of the predictions that need no labels."""

    mean_entropy: Annotated[
        float | None,
        Column(
            "Mean entropy of the predictions, in nats, without labels; NULL if a logit is not finite",
            at_least=0,
        ),
    ]
    mean_confidence: Annotated[
        float | None,
        Column(
            "Mean maximum softmax, without labels; NULL if a logit is not finite",
            at_least=0, at_most=1.001,
        ),
    ]  # fmt: skip
    predicted_class_entropy: Annotated[
        float,
        Column("Entropy of the shares of the predicted classes, in nats, without labels", at_least=0),
    ]
    source_agreement: Annotated[
        float | None,
        _share(
            "Share of predictions that the source model shares, without labels; NULL unless the method computes both"
        ),
    ]
    neighbourhood_density: Annotated[
        float | None,
        Column(
            "Soft neighbourhood density of the predictions, in nats, without labels; NULL if not enabled", at_least=0
        ),
    ]
    view_agreement: Annotated[
        float | None,
        _share("Share of predictions that a shifted view of the image shares, without labels; NULL if not enabled"),
    ]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownScores:
    """How well unknown images are separated from the cell's images."""

    num_unknown: Annotated[
        int,
        _count(
            "Unknown images in the stream with the cell, which enter no error",
            above=0, shown=True,
        ),
    ]  # fmt: skip
    auroc: Annotated[
        float,
        _share("Probability that a known image has a higher score than an unknown one", shown=True),
    ]
    fpr95: Annotated[
        float,
        _share("Share of unknown images above the threshold that keeps 95 % of the cell's known ones"),
    ]
    aupr: Annotated[float, _share("Average precision of known images against unknown ones")]
    known_threshold: Annotated[
        float | None,
        Column("Score that 95 % of the known clean images reach with the source model; NULL without clean images"),
    ]
    unknown_rejected: Annotated[
        float | None, _share("Share of unknown images below known_threshold; NULL if known_threshold is NULL")
    ]
    h_score: Annotated[
        float | None,
        _share(
            "Harmonic mean of unknown_rejected and the share of known images that are correct and not below "
            "known_threshold; NULL if known_threshold is NULL",
            shown=True,
        ),
    ]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """The predictions themselves."""

    predictions_sha256: Annotated[
        str, Column("sha256 of the predicted labels in stream order, int64 little-endian", shown=True)
    ]
    samples_sha256: Annotated[
        str | None, Column("sha256 of the Parquet file with the predictions of each sample; NULL if it was not kept")
    ]
    first_samples: Annotated[FirstSamples, SeparatePart()]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """Work of the pass, counted in samples, steps and events, and its peak memory."""

    num_forwards: Annotated[
        int, _count("Samples in forward passes through the model, including views and second passes", shown=True)
    ]
    num_backwards: Annotated[int, _count("Samples in backward passes", shown=True)]
    num_adapted_samples: Annotated[int, _count("Samples that entered a loss, which papers call backwards")]
    num_unadapted: Annotated[int, _count("Samples predicted without adaptation, for lack of time or because of adapt")]
    num_updates: Annotated[int, _count("Steps of the optimiser")]
    num_resets: Annotated[int, _count("Resets of the method to the source model, by itself", shown_of_segment=True)]
    num_nonfinite_batches: Annotated[int, _count("Batches with a non-finite logit")]
    peak_cuda_gib: Annotated[
        float | None,
        _seconds("Peak device memory allocated during the pass, in 2^30 bytes; NULL on a CPU", shown=True),
    ]
    peak_rss_gib: Annotated[float, _seconds("Peak resident memory of the process so far, in 2^30 bytes", shown=True)]


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class MachineUse:
    """The machine, and how the pass used it: on this speed depends, besides model, method and data."""

    device: Annotated[
        str, Column("Device of the computation: cpu, or the name of the CUDA device", shown=True, alike=True)
    ]
    cpu_model: Annotated[str, Column("Model of the processor", alike=True)]
    num_cores: Annotated[int, Column("Cores that the process may use", sql="INTEGER", above=0, alike=True)]
    decode_threads: Annotated[int, Column("Threads that read and decode", sql="INTEGER", at_least=0, alike=True)]
    compute_threads: Annotated[int, Column("Threads of torch on the CPU", sql="INTEGER", above=0, alike=True)]
    streams_per_device: Annotated[
        int | None, Column("Runs that could share the accelerator; NULL if this run had it alone", sql="INTEGER",
                           above=1, alike=True)
    ]  # fmt: skip
    batch_size: Annotated[
        int, Column("Samples in a batch; the last may have fewer", sql="INTEGER", above=0, alike=True)
    ]
    precision: Annotated[
        str,
        Column(
            "Precision of the forward pass: fp32, tf32 in products on CUDA, or what autocast casts to",
            choices=("fp32", "tf32", "bf16", "fp16"),
            alike=True,
        ),
    ]
    compile: Annotated[
        str,
        Column(
            "Mode of torch.compile, or off",
            choices=("off", "default", "reduce-overhead", "max-autotune"), alike=True,
        ),
    ]  # fmt: skip
    from_features: Annotated[
        bool,
        Column(
            "Whether kept features replaced the images and the network before its classifier", shown=True, alike=True
        ),
    ]
    other_load: Annotated[
        float | None,
        Column("Cores that other processes kept busy during the pass, on average; NULL if not known", at_least=0),
    ]

    @property
    def conditions(self) -> str:
        """Conditions that affect speed besides model, method and data, as text.

        Speeds are comparable only under equal conditions.
        """
        values = ((name, getattr(self, name)) for name in SPEED_CONDITIONS)
        return ", ".join(f"{name} {value}" for name, value in values if value is not None)


SPEED_CONDITIONS = tuple(field.name for field in columns_of(MachineUse) if field.column.alike)
"""Fields that must all be equal for speeds to be comparable."""


@FORBID_UNKNOWN_FIELDS
@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Where the time of the pass went."""

    num_batches: Annotated[int, Column("Batches of the pass", sql="INTEGER", above=0)]
    metadata_scan_s: Annotated[float, _seconds("Reading the manifest and checking that the shards match it")]
    pipeline_setup_s: Annotated[float, _seconds("Constructing the stream")]
    time_to_first_batch_s: Annotated[
        float, _seconds("From the start of the pass until the first batch arrives", shown=True)
    ]
    first_batch_compute_s: Annotated[
        float, _seconds("Computation of the first batch, cold caches included", shown=True)
    ]
    wall_s: Annotated[float, Column("The whole pass, fetching and computing", above=0, shown=True)]
    images_per_s: Annotated[
        float, Column("Images, known and unknown, / wall_s", above=0, shown=True, shown_of_segment=True)
    ]
    data_wait_s: Annotated[
        float, _seconds("Sum over the batches of the time until the stream delivered each", shown=True)
    ]
    device_idle_s: Annotated[
        float, _seconds("Sum over the batches of the time that the device was idle before each batch")
    ]
    host_to_device_s: Annotated[float, _seconds("Copies to the device, which on CUDA overlap computation; 0 on a CPU")]
    compute_s: Annotated[float, _seconds("Sum over the batches of forward pass and adaptation", shown=True)]
    batches: Annotated[Batches, SeparatePart()]
