"""The methods by name, with their hyperparameters: everything that a benchmark file needs, without torch.

To add a method, write a file beside this one and an entry in `METHODS`. A method outside the package is a
`MethodEntry` in the user's own module, named by its import path.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tta_pipeline.util.config_model import MAX_COUNT, ConfigModel
from tta_pipeline.util.source_code import load_reference


class Hyperparameters(ConfigModel):
    """Hyperparameters of a method; a method without any uses this class itself."""

    takes_gradients: ClassVar[bool] = False
    """Whether the method takes gradients, which would vanish in fp16."""


class GradientHyperparameters(Hyperparameters):
    """Hyperparameters of every method with a gradient step on the network."""

    takes_gradients: ClassVar[bool] = True

    lr: float = Field(gt=0, allow_inf_nan=False)
    """Learning rate."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Momentum of SGD, first beta of Adam."""
    nesterov: bool = False
    """Whether the momentum of SGD is Nesterov's."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight decay of the adapted parameters, towards zero."""
    steps: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Number of updates for each batch."""
    episodic: bool = False
    """Whether the method is reset before every batch."""

    @model_validator(mode="after")
    def _has_momentum(self) -> "GradientHyperparameters":
        if self.nesterov and (self.optimizer != "sgd" or self.momentum == 0):
            raise ValueError(
                f"nesterov is true, optimizer {self.optimizer}, momentum {self.momentum:g}; "
                "expected optimizer sgd and a momentum above 0"
            )
        return self


class TopHyperparameters(GradientHyperparameters):
    """Hyperparameters of every method that does not adapt the norm layers at the top of a network."""

    frozen_layers: tuple[str, ...] | None = None
    """Names of the norm layers that do not adapt, or of modules that hold them, such as `encoder.blocks.9`; by default
    the top is found. With an empty list all adapt. Required for a transformer whose blocks are not found."""


class BnAlphaHyperparameters(Hyperparameters):
    """Hyperparameters of BN-alpha."""

    alpha: float = Field(default=0.1, ge=0, le=1)
    """Weight of the batch statistics; n / (N + n) for batches of n and a prior strength N."""


class BnEmaHyperparameters(Hyperparameters):
    """Hyperparameters of BN-EMA."""

    momentum: float = Field(default=0.1, gt=0, le=1)
    """Weight of a batch in the running statistics."""


class RplHyperparameters(GradientHyperparameters):
    """Hyperparameters of RPL."""

    q: float = Field(default=0.8, gt=0, le=1)
    """Exponent of the generalised cross entropy: near 0, the cross entropy; at 1, 1 minus the probability."""


class EntropyHyperparameters(GradientHyperparameters):
    """Hyperparameters of every method that minimises entropy: its loss, its parameters and its resets."""

    loss: Literal["entropy", "come", "gce"] = "entropy"
    """Loss: the entropy of the prediction, COME's entropy of the opinion, or RPL's generalised cross entropy of the
    predicted label with q = 0.8."""
    params: Literal["norm", "last", "all", "lora", "adapters"] = "norm"
    """Parameters that adapt: weight and bias of the norm layers, the last linear layer, all parameters, or parameters
    added to a transformer: low-rank updates of its linear layers, or an adapter after each feed-forward network."""
    lora_rank: int = Field(default=8, ge=1, le=MAX_COUNT)
    """Rank of the updates with `params` lora."""
    adapter_size: int = Field(default=64, ge=1, le=MAX_COUNT)
    """Size of the bottleneck of each adapter with `params` adapters."""
    reset: Literal["never", "periodic", "asr"] = "never"
    """When the method resets itself: never, every `reset_every` steps, or partly, by ASR's rule."""
    reset_every: int = Field(default=1000, ge=1, le=MAX_COUNT)
    """Number of steps after which the rule `periodic` resets."""
    asr_alpha: float = Field(default=0.5, gt=0, le=1)
    """Share of the classes: ASR's average starts at the concentration of predictions spread evenly over this share."""
    asr_mu_0: float = Field(default=0.15, ge=0, le=1)
    """Weight of a batch in ASR's average of concentration, if the source model predicts all the same labels."""
    asr_r_0: float = Field(default=0.5, ge=0, le=1)
    """Smallest share of the adapted parameters that ASR resets."""
    asr_lambda_r: float = Field(default=20.0, ge=0, allow_inf_nan=False)
    """Additional share of the parameters that ASR resets for each nat of concentration above the average."""
    asr_lambda_0: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    """Weight of ASR's penalty on distance from the remembered parameters, if the source model predicts no label of a
    batch the same."""


class EtaHyperparameters(EntropyHyperparameters):
    """Hyperparameters of ETA."""

    e_margin: float = Field(default=0.4, gt=0, allow_inf_nan=False)
    """Entropy below which a sample is reliable, as a fraction of ln K."""
    d_margin: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Cosine with earlier predictions at or above which a sample is redundant; 0.4 for CIFAR-10, 0.1 for CIFAR-100."""


class EataHyperparameters(EtaHyperparameters):
    """Hyperparameters of EATA."""

    fisher_alpha: float = Field(default=2000.0, ge=0, allow_inf_nan=False)
    """Weight of the penalty on forgetting."""
    fisher_size: int = Field(default=2000, ge=1, le=MAX_COUNT)
    """Number of clean samples that the Fisher information is computed from."""


class RdumbHyperparameters(EtaHyperparameters):
    """Hyperparameters of RDumb."""

    reset: Literal["never", "periodic", "asr"] = "periodic"
    """When the method resets itself: never, every `reset_every` steps, or partly, by ASR's rule."""


class SarHyperparameters(EntropyHyperparameters, TopHyperparameters):
    """Hyperparameters of SAR."""

    e_margin: float = Field(default=0.4, gt=0, allow_inf_nan=False)
    """Entropy below which a sample is reliable, as a fraction of ln K."""
    rho: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Distance of the ascent step, after which the second gradient is computed."""
    reset_margin: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """Moving average of the entropy, in nats, below which the model is reset."""

    @model_validator(mode="after")
    def _freezes_norm_layers(self) -> "SarHyperparameters":
        if self.frozen_layers is not None and self.params != "norm":
            raise ValueError(
                f"frozen_layers is set, params is {self.params}; expected params norm, since only norm layers freeze"
            )
        return self


class DeyoHyperparameters(TopHyperparameters):
    """Hyperparameters of DeYO."""

    deyo_margin: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """Entropy below which the model may adapt on a sample, as a fraction of ln K."""
    e_margin: float = Field(default=0.4, gt=0, allow_inf_nan=False)
    """Entropy at which a sample's weight is 1, as a fraction of ln K."""
    plpd_threshold: float = Field(default=0.2, ge=-1, le=1)
    """Drop in the label's probability, when patches are shuffled, above which the label depends on the shape."""
    patch_len: int = Field(default=4, ge=2, le=MAX_COUNT)
    """Number of patches in a row and in a column."""


class ZeroSiamHyperparameters(GradientHyperparameters):
    """Hyperparameters of ZeroSiam."""

    predictor_lr_factor: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Learning rate of the predictor, as a multiple of `lr`."""


class SpaHyperparameters(GradientHyperparameters):
    """Hyperparameters of SPA."""

    predictor_lr_factor: float = Field(default=5.0, gt=0, allow_inf_nan=False)
    """Learning rate of the predictor, as a multiple of `lr`."""
    mask_region: float = Field(default=0.2, gt=0, le=1)
    """Side of the region of low frequencies, as a fraction of the spectrum's side (alpha in the paper)."""
    mask_ratio: float = Field(default=0.2, ge=0, le=1)
    """Share of the amplitudes in this region that are masked (m in the paper)."""
    noise_ratio: float = Field(default=0.4, ge=0, le=1)
    """Mean share of the noise in the other view (gamma in the paper)."""


class RemHyperparameters(TopHyperparameters):
    """Hyperparameters of REM."""

    num_predictions: int = Field(default=3, ge=2, le=MAX_COUNT)
    """Number of predictions of each image, including the prediction with all patches (n in the paper)."""
    mask_ratio: float = Field(default=0.1, gt=0, lt=1)
    """Share of the patches that each prediction masks in addition to the previous one (m in the paper)."""
    lambda_rank: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the entropy ranking loss."""
    margin: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Margin by which the entropy should grow when more patches are masked, as a fraction of ln K."""

    @model_validator(mode="after")
    def _leaves_patches(self) -> "RemHyperparameters":
        if (self.num_predictions - 1) * self.mask_ratio >= 1:
            raise ValueError(
                f"num_predictions is {self.num_predictions}, mask_ratio {self.mask_ratio:g}; "
                "expected (num_predictions - 1) * mask_ratio below 1, so that some patches are left"
            )
        return self


class FoaHyperparameters(Hyperparameters):
    """Hyperparameters of FOA."""

    num_prompts: int = Field(default=3, ge=1, le=MAX_COUNT)
    """Number of prompt tokens."""
    population_size: int = Field(default=28, ge=4, le=MAX_COUNT)
    """Number of candidates that predict each batch, including the best of the previous batch (K in the paper)."""
    step_size: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Standard deviation of the first candidates, in the units of a token."""
    fitness_lambda: float = Field(default=0.4, ge=0, allow_inf_nan=False)
    """Weight of the discrepancy of activations for a batch of 64, and in proportion for other sizes; entropies are
    summed."""
    source_size: int = Field(default=50_000, ge=1, le=MAX_COUNT)
    """Number of source images for the statistics of activations, or all if there are fewer. The default is as many as
    the authors' program takes, the validation set of ImageNet."""
    shift_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Fraction of the way to the source's mean by which features are shifted (gamma in the paper)."""
    shift_momentum: float = Field(default=0.1, gt=0, le=1)
    """Weight of a batch in the moving average of the features (alpha in the paper)."""


class LameHyperparameters(Hyperparameters):
    """Hyperparameters of LAME."""

    affinity: Literal["rbf", "knn"] = "rbf"
    """Affinity of two samples: a Gaussian of their distance, or 1 for the nearest neighbours and 0 for others."""
    knn: int = Field(default=5, ge=2, le=MAX_COUNT)
    """Number of neighbours; for "rbf", the width is the mean distance to the neighbour of this number. A sample is its
    own first neighbour."""
    force_symmetry: bool = False
    """Whether the affinity is made symmetric."""
    max_steps: int = Field(default=100, ge=1, le=MAX_COUNT)
    """Largest number of steps of the assignment."""


class T3aHyperparameters(Hyperparameters):
    """Hyperparameters of T3A."""

    filter_k: int = Field(default=100, ge=1, le=MAX_COUNT)
    """Number of features of lowest entropy that are kept for each class (M in the paper)."""


class TtaugHyperparameters(Hyperparameters):
    """Hyperparameters of test-time augmentation."""

    num_augmentations: int = Field(default=32, ge=1, le=MAX_COUNT)
    """Number of random views of each image."""
    crop: Literal["resized", "padded"] = "resized"
    """First step of a view: at least 8% of the area resized to full size, or a shift by up to 4 pixels."""
    prior_strength: float = Field(default=16, ge=0, allow_inf_nan=False)
    """Weight of the source statistics in batch norm; those of one image and its views weigh 1."""


class MemoHyperparameters(GradientHyperparameters, TtaugHyperparameters):
    """Hyperparameters of MEMO."""

    episodic: bool = True
    """Whether the method is reset before every image."""


class ViewHyperparameters(GradientHyperparameters):
    """Hyperparameters of every method that learns from random views of a batch."""

    draws: Literal["image", "batch"] = "image"
    """Whether each image of a view has its own random draws, or the whole batch has one, as in the authors' code."""


class CottaHyperparameters(ViewHyperparameters):
    """Hyperparameters of CoTTA."""

    teacher_momentum: float = Field(default=0.999, ge=0, le=1)
    """Weight of the teacher before a step."""
    restore_probability: float = Field(default=0.01, ge=0, le=1)
    """Probability that a weight is restored to the source model's value after a step."""
    anchor_threshold: float = Field(default=0.92, ge=0, le=1)
    """Mean confidence of the source model below which the teacher uses views; 0.72 for CIFAR-100."""
    num_augmentations: int = Field(default=32, ge=1, le=MAX_COUNT)
    """Number of random views of each batch."""
    symmetric: bool = False
    """Whether the cross entropy is symmetric."""


class RottaHyperparameters(ViewHyperparameters):
    """Hyperparameters of RoTTA."""

    steps: Literal[1] = 1
    """Number of updates for every `update_frequency` images."""
    memory_size: int = Field(default=64, ge=1, le=MAX_COUNT)
    """Number of images in the memory bank."""
    update_frequency: int = Field(default=64, ge=1, le=MAX_COUNT)
    """Number of images of the stream from one update to the next."""
    nu: float = Field(default=0.001, ge=0, le=1)
    """Weight of the student in the teacher's moving average."""
    alpha: float = Field(default=0.05, ge=0, le=1)
    """Weight of the bank's statistics in those of batch norm."""
    lambda_t: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of age in the choice of images to remove from the bank."""
    lambda_u: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of uncertainty in the choice of images to remove from the bank."""


class PettaHyperparameters(RottaHyperparameters):
    """Hyperparameters of PeTTA."""

    nu: float = Field(default=0.001, ge=0, le=1)
    """Weight of the student in the teacher's moving average at a divergence of 0 (alpha_0 in the paper)."""
    lambda_0: float = Field(default=10.0, ge=0, allow_inf_nan=False)
    """Weight of the regulariser towards the source's parameters at a divergence of 1."""
    anchor_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the cross entropy with the source model's predictions."""
    symmetric: bool = False
    """Whether the cross entropy with the teacher is symmetric, and computed for the images as well as for their views.
    """


class CertaintyHyperparameters(ViewHyperparameters):
    """Hyperparameters of ROID and CMF."""

    momentum_probs: float = Field(default=0.9, ge=0, le=1)
    """Momentum of the moving average of the batches' mean probabilities."""
    temperature: float = Field(default=1 / 3, gt=0, allow_inf_nan=False)
    """Temperature of the samples' weights."""
    prior_correction: Literal["probabilities", "logits"] = "probabilities"
    """What the class prior multiplies: probabilities, as in Bayes' rule, or logits, as in the authors' code."""


class RoidHyperparameters(CertaintyHyperparameters):
    """Hyperparameters of ROID."""

    momentum_src: float = Field(default=0.99, ge=0, le=1)
    """Weight of the adapted model in its average with the source model."""


class CmfHyperparameters(CertaintyHyperparameters):
    """Hyperparameters of CMF."""

    alpha: float = Field(default=0.99, ge=0, le=1)
    """Weight of the hidden model in its average with the source model."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Weight of the adapted model in its average with the hidden model."""
    q: float = Field(default=0.005, gt=0, allow_inf_nan=False)
    """Variance that the hidden model gains per step for 38400 adapted parameters; proportional for other numbers."""


class AdaContrastHyperparameters(GradientHyperparameters):
    """Hyperparameters of AdaContrast."""

    queue_size: int = Field(default=16384, ge=1, le=MAX_COUNT)
    """Number of stored keys, and of stored features for neighbours."""
    num_neighbors: int = Field(default=10, ge=1, le=MAX_COUNT)
    """Number of neighbours that vote on a pseudo label."""
    min_seen: int = Field(default=1024, ge=1, le=MAX_COUNT)
    """Number of images seen before neighbours vote."""
    temperature: float = Field(default=0.07, gt=0, allow_inf_nan=False)
    """Temperature of the contrastive loss."""
    teacher_momentum: float = Field(default=0.999, ge=0, le=1)
    """Weight of the key model before a step."""


class TdaHyperparameters(Hyperparameters):
    """Hyperparameters of TDA."""

    positive_size: int = Field(default=3, ge=1, le=MAX_COUNT)
    """Number of images of each class in the positive cache."""
    positive_alpha: float = Field(default=2.0, ge=0, allow_inf_nan=False)
    """Weight of the positive cache's votes, in logits."""
    positive_beta: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    """How fast a vote for a class falls with the distance of the image: exp(-beta (1 - cosine))."""
    negative_size: int = Field(default=2, ge=1, le=MAX_COUNT)
    """Number of images of each class in the negative cache."""
    negative_alpha: float = Field(default=0.117, ge=0, allow_inf_nan=False)
    """Weight of the negative cache's votes, in logits."""
    negative_beta: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """How fast a vote against a class falls with the distance of the image."""
    entropy_lower: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """Entropy above which an image enters the negative cache, in nats divided by log2 K."""
    entropy_upper: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Entropy below which an image enters the negative cache, in nats divided by log2 K."""
    mask_lower: float = Field(default=0.03, ge=0, le=1)
    """Probability above which an image of the negative cache votes against a class."""
    mask_upper: float = Field(default=1.0, ge=0, le=1)
    """Probability below which an image of the negative cache votes against a class."""


class BcaHyperparameters(Hyperparameters):
    """Hyperparameters of BCA."""

    embedding_threshold: float = Field(default=0.05, ge=0, le=1)
    """Probability of the nearest class embedding above which the image enters its mean."""
    embedding_count: float = Field(default=20_000.0, gt=0, allow_inf_nan=False)
    """Number of images that the text counts for in the mean of a class embedding."""
    prior_threshold: float = Field(default=0.65, ge=0, le=1)
    """Probability of the nearest class embedding above which the prediction enters the embedding's prior."""
    prior_count: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Number of predictions that the one-hot prior counts for in the mean."""


class ZeroHyperparameters(Hyperparameters):
    """Hyperparameters of ZERO."""

    num_views: int = Field(default=64, ge=2, le=MAX_COUNT)
    """Number of views of each image, including the image itself."""
    kept_share: float = Field(default=0.3, gt=0, le=1)
    """Share of the views, those of lowest entropy, that vote (gamma in the paper)."""


class TptHyperparameters(Hyperparameters):
    """Hyperparameters of TPT."""

    takes_gradients: ClassVar[bool] = True

    lr: float = Field(default=5e-3, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW on the context."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Weight decay of the context."""
    steps: int = Field(default=1, ge=1, le=MAX_COUNT)
    """Number of updates for each image."""
    num_views: int = Field(default=64, ge=2, le=MAX_COUNT)
    """Number of views of each image, including the image itself."""
    kept_share: float = Field(default=0.1, gt=0, le=1)
    """Share of the views, those of lowest entropy, that enter the loss."""


class RmtHyperparameters(ViewHyperparameters):
    """Hyperparameters of RMT."""

    teacher_momentum: float = Field(default=0.999, ge=0, le=1)
    """Weight of the teacher before a step."""
    temperature: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    """Temperature of the contrastive loss."""
    projection_dim: int = Field(default=128, ge=1, le=MAX_COUNT)
    """Size of the features in the contrastive loss."""
    lambda_ce_src: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the cross entropy of source images."""
    lambda_ce_trg: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the cross entropy with the teacher."""
    lambda_cont: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the contrastive loss."""
    num_samples_warm_up: int = Field(default=50_000, ge=0, le=MAX_COUNT)
    """Number of source samples that train student and teacher before the stream."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodEntry:
    """One method: its code, and its authors' settings for each family of benchmarks."""

    implementation: str
    """`<module>:<class>`, imported only when an evaluation starts."""
    summary: str
    """Summary in one sentence, for the user."""
    presets: Mapping[str, Hyperparameters]
    """Settings of the authors by benchmark family."""
    source_data: Literal["unused", "optional", "required"] = "unused"
    """Whether the method reads clean batches while it is built."""
    needs: Literal["any", "vit", "clip"] = "any"
    """Kind of model that the method needs: a ViT, a CLIP, or any with the layers that the method adapts or reads."""
    min_batch_size: int = 1
    """Smallest accepted batch size of a stream; the last batch may be smaller."""
    lr_of_batch_size: Mapping[str, Callable[[int], float]] = field(default_factory=dict)
    """Learning rate as a function of the batch size, for the presets whose authors let it depend on the batch size."""

    def configure(
        self, preset: str, changes: Mapping[str, object], *, batch_size: int | None = None
    ) -> Hyperparameters:
        """Return the preset's hyperparameters for *batch_size* (None: unknown), with *changes* applied and validated.

        Raises:
            pydantic.ValidationError: a change names an unknown hyperparameter, or its value is out of range.
            ValueError: the method lacks the preset.
        """
        if preset not in self.presets:
            raise ValueError(f"preset is {preset!r}; the method expects one of {', '.join(self.presets)}")
        defaults = self.presets[preset]
        values = defaults.model_dump()
        if batch_size is not None and preset in self.lr_of_batch_size:
            values["lr"] = self.lr_of_batch_size[preset](batch_size)
        return type(defaults).model_validate({**values, **changes})

    def is_published(self, settings: Hyperparameters, *, batch_size: int | None, but_for: Collection[str] = ()) -> bool:
        """Return whether *settings* equal a preset for *batch_size*, ignoring the hyperparameters in *but_for*."""
        found = settings.model_dump(exclude=set(but_for))
        presets = (self.configure(preset, {}, batch_size=batch_size) for preset in self.presets)
        return any(found == preset.model_dump(exclude=set(but_for)) for preset in presets)

    def named(self, method: str, preset: str, settings: Hyperparameters) -> str:
        """Return the name of *method* plus each piece in which *settings* differ from the preset, such as tent+come."""
        usual = self.presets[preset]
        pieces = [(getattr(settings, piece, None), getattr(usual, piece, None)) for piece in PIECES]
        return "+".join([method, *(str(found) for found, expected in pieces if found != expected)])

    def require_batch_size(self, batch_size: int | None) -> None:
        """Refuse a stream with batches that are too small; None is an unknown size.

        Raises:
            ValueError: *batch_size* is below `min_batch_size`.
        """
        if batch_size is not None and batch_size < self.min_batch_size:
            raise ValueError(f"batch_size is {batch_size}; expected at least {self.min_batch_size}: use another method")


PRESETS = ("imagenet", "cifar", "imagenet_vit")
"""Names of presets; only methods that fit a ViT-B, and whose authors publish settings for it, have `imagenet_vit`."""
PIECES = ("loss", "params", "reset")
"""Hyperparameters that turn a method into another one; they are part of its name, also in tables."""
_RESNET = ("imagenet", "cifar")
_NO_HYPERPARAMETERS = dict.fromkeys(_RESNET, Hyperparameters())
_NO_HYPERPARAMETERS_IN_ANY_PRESET = dict.fromkeys(PRESETS, Hyperparameters())


def _vit_lr(batch_size: int) -> float:
    """Return the learning rate of SAR's and DeYO's authors for a ViT-B: 1e-3 for batches of 64, and in proportion.

    They use it for Tent, EATA and their own methods.
    """
    return 1e-3 * batch_size / 64


def _vit_lr_doubled_for_single_images(batch_size: int) -> float:
    """Return the same learning rate, doubled for single images, as these authors do for SAR and DeYO."""
    return _vit_lr(batch_size) * (2 if batch_size == 1 else 1)


def _vit_lr_times_five(batch_size: int) -> float:
    """Return the learning rate of ZeroSiam's authors for a ViT-B: five times the rate of the other methods."""
    return 5 * _vit_lr(batch_size)


METHODS: Mapping[str, MethodEntry] = {
    "source": MethodEntry(
        implementation="tta_pipeline.methods.source:Source",
        summary="The source model as it is, without adaptation.",
        presets=_NO_HYPERPARAMETERS_IN_ANY_PRESET,
    ),
    "norm": MethodEntry(
        implementation="tta_pipeline.methods.norm:Norm",
        summary="Batch norm with the statistics of the current batch (BN-1).",
        presets=_NO_HYPERPARAMETERS,
        min_batch_size=2,
    ),
    "bn_alpha": MethodEntry(
        implementation="tta_pipeline.methods.bn_alpha:BnAlpha",
        summary="Batch norm with a mixture of source and batch statistics.",
        presets=dict.fromkeys(_RESNET, BnAlphaHyperparameters()),
    ),
    "bn_ema": MethodEntry(
        implementation="tta_pipeline.methods.bn_ema:BnEma",
        summary="Batch norm whose running statistics keep updating.",
        presets=dict.fromkeys(_RESNET, BnEmaHyperparameters()),
        min_batch_size=2,
    ),
    "tent": MethodEntry(
        implementation="tta_pipeline.methods.tent:Tent",
        summary="Entropy minimisation over the affine parameters of the norm layers.",
        presets={
            "imagenet": EntropyHyperparameters(lr=2.5e-4),
            "cifar": EntropyHyperparameters(lr=1e-3, optimizer="adam"),
            "imagenet_vit": EntropyHyperparameters(lr=1e-3),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr},
    ),
    "come": MethodEntry(
        implementation="tta_pipeline.methods.tent:Tent",
        summary="Tent with the entropy of an opinion, which includes uncertainty.",
        presets={
            "imagenet": EntropyHyperparameters(lr=2.5e-4, loss="come"),
            "cifar": EntropyHyperparameters(lr=1e-3, optimizer="adam", loss="come"),
            "imagenet_vit": EntropyHyperparameters(lr=1e-3, loss="come"),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr},
    ),
    "rpl": MethodEntry(
        implementation="tta_pipeline.methods.rpl:Rpl",
        summary="Tent with the generalised cross entropy of the predicted label.",
        presets={
            "imagenet": RplHyperparameters(lr=5e-4),
            "cifar": RplHyperparameters(lr=1e-3, optimizer="adam"),
        },
    ),
    "eta": MethodEntry(
        implementation="tta_pipeline.methods.eta:Eta",
        summary="Weighted entropy minimisation on samples that are reliable and not redundant.",
        presets={
            "imagenet": EtaHyperparameters(lr=2.5e-4),
            "cifar": EtaHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4),
            "imagenet_vit": EtaHyperparameters(lr=1e-3),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr},
    ),
    "eata": MethodEntry(
        implementation="tta_pipeline.methods.eata:Eata",
        summary="ETA with a Fisher penalty on forgetting; without source data it is ETA.",
        presets={
            "imagenet": EataHyperparameters(lr=2.5e-4),
            "cifar": EataHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4, fisher_alpha=1.0),
            "imagenet_vit": EataHyperparameters(lr=1e-3),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr},
        source_data="optional",
    ),
    "rdumb": MethodEntry(
        implementation="tta_pipeline.methods.rdumb:Rdumb",
        summary="ETA that resets itself every thousand steps.",
        presets={
            "imagenet": RdumbHyperparameters(lr=2.5e-4),
            "cifar": RdumbHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4),
        },
    ),
    "asr": MethodEntry(
        implementation="tta_pipeline.methods.eta:Eta",
        summary="ETA that resets layers near the output when predictions concentrate on few classes.",
        presets={
            "imagenet": EtaHyperparameters(lr=2.5e-4, reset="asr"),
            "cifar": EtaHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4, reset="asr"),
        },
    ),
    "sar": MethodEntry(
        implementation="tta_pipeline.methods.sar:Sar",
        summary="Sharpness-aware entropy minimisation on reliable samples, with recovery from collapse.",
        presets={
            "imagenet": SarHyperparameters(lr=2.5e-4),
            "cifar": SarHyperparameters(lr=1e-3),
            "imagenet_vit": SarHyperparameters(lr=1e-3),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr_doubled_for_single_images},
    ),
    "deyo": MethodEntry(
        implementation="tta_pipeline.methods.deyo:Deyo",
        summary="Weighted entropy minimisation on samples whose label depends on their shape.",
        presets={
            "imagenet": DeyoHyperparameters(lr=2.5e-4, plpd_threshold=0.3),
            "cifar": DeyoHyperparameters(lr=1e-3, optimizer="adam"),
            "imagenet_vit": DeyoHyperparameters(lr=1e-3),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr_doubled_for_single_images},
    ),
    "zerosiam": MethodEntry(
        implementation="tta_pipeline.methods.zerosiam:ZeroSiam",
        summary="Entropy minimisation through a learned predictor, which absorbs shortcuts; predictions do not use it.",
        presets={
            "imagenet": ZeroSiamHyperparameters(lr=2.5e-3),
            "cifar": ZeroSiamHyperparameters(lr=2.5e-3),
            "imagenet_vit": ZeroSiamHyperparameters(lr=5e-3, predictor_lr_factor=1.0),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr_times_five},
    ),
    "spa": MethodEntry(
        implementation="tta_pipeline.methods.spa:Spa",
        summary="The prediction for an image is the target for views without low frequencies, and with noise.",
        presets={
            **dict.fromkeys(
                _RESNET, SpaHyperparameters(lr=2.5e-3, predictor_lr_factor=10.0, mask_ratio=0.1, noise_ratio=0.1)
            ),
            "imagenet_vit": SpaHyperparameters(lr=1e-2),
        },
    ),
    "rem": MethodEntry(
        implementation="tta_pipeline.methods.rem:Rem",
        summary="Predictions of a ViT without its most attended patches agree with the full ones, and are no surer.",
        presets=dict.fromkeys(PRESETS, RemHyperparameters(lr=1e-3, optimizer="adam")),
        needs="vit",
    ),
    "foa": MethodEntry(
        implementation="tta_pipeline.methods.foa:Foa",
        summary="Prompts of a ViT found by forward passes alone, and features shifted back to the source's mean.",
        presets=dict.fromkeys(PRESETS, FoaHyperparameters()),
        source_data="required",
        needs="vit",
    ),
    "lame": MethodEntry(
        implementation="tta_pipeline.methods.lame:Lame",
        summary="Predictions of a batch corrected by the affinity of its features; the model stays unchanged.",
        presets=dict.fromkeys(PRESETS, LameHyperparameters()),
        min_batch_size=2,
    ),
    "t3a": MethodEntry(
        implementation="tta_pipeline.methods.t3a:T3a",
        summary="The classifier's weights replaced by means of the stream's features.",
        presets={
            "imagenet": T3aHyperparameters(filter_k=20),
            "cifar": T3aHyperparameters(),
            "imagenet_vit": T3aHyperparameters(filter_k=20),
        },
    ),
    "neo": MethodEntry(
        implementation="tta_pipeline.methods.neo:Neo",
        summary="The classifier applied to features minus the mean of the stream's features.",
        presets=_NO_HYPERPARAMETERS_IN_ANY_PRESET,
    ),
    "ttaug": MethodEntry(
        implementation="tta_pipeline.methods.ttaug:Ttaug",
        summary="The mean prediction over random views of each image, without adaptation.",
        presets={"imagenet": TtaugHyperparameters(num_augmentations=64), "cifar": TtaugHyperparameters(crop="padded")},
    ),
    "memo": MethodEntry(
        implementation="tta_pipeline.methods.memo:Memo",
        summary="Entropy minimisation of the mean prediction over random views, for each image separately.",
        presets={
            "imagenet": MemoHyperparameters(lr=2.5e-4, momentum=0, num_augmentations=64),
            "cifar": MemoHyperparameters(lr=0.005, momentum=0, crop="padded"),
        },
    ),
    "cotta": MethodEntry(
        implementation="tta_pipeline.methods.cotta:Cotta",
        summary="A mean teacher that uses many views, and weights that are randomly restored to the source.",
        presets={
            "imagenet": CottaHyperparameters(
                lr=0.01, nesterov=True, restore_probability=0.001, anchor_threshold=0.1, symmetric=True
            ),
            "cifar": CottaHyperparameters(lr=1e-3, optimizer="adam"),
        },
    ),
    "rotta": MethodEntry(
        implementation="tta_pipeline.methods.rotta:Rotta",
        summary="A mean teacher over a class-balanced memory bank, with running batch norm statistics.",
        presets=dict.fromkeys(_RESNET, RottaHyperparameters(lr=1e-3, optimizer="adam")),
    ),
    "petta": MethodEntry(
        implementation="tta_pipeline.methods.petta:Petta",
        summary="RoTTA that adapts less, and holds back more, the further its features diverge from the source's.",
        presets={
            "imagenet": PettaHyperparameters(lr=1e-3, optimizer="adam"),
            "cifar": PettaHyperparameters(lr=1e-3, optimizer="adam", symmetric=True),
        },
        source_data="required",
    ),
    "roid": MethodEntry(
        implementation="tta_pipeline.methods.roid:Roid",
        summary="Certainty and diversity weights, weight ensembling with the source model, and prior correction.",
        presets={
            "imagenet": RoidHyperparameters(lr=2.5e-4, nesterov=True),
            "cifar": RoidHyperparameters(lr=1e-3, optimizer="adam"),
        },
        min_batch_size=2,
    ),
    "cmf": MethodEntry(
        implementation="tta_pipeline.methods.cmf:Cmf",
        summary="ROID with a Kalman-filtered model in place of the source model.",
        presets={
            "imagenet": CmfHyperparameters(lr=2.5e-4, nesterov=True),
            "cifar": CmfHyperparameters(lr=1e-3, optimizer="adam"),
        },
        min_batch_size=2,
    ),
    "adacontrast": MethodEntry(
        implementation="tta_pipeline.methods.adacontrast:AdaContrast",
        summary="Pseudo labels refined by neighbours, contrast between views, and diversity.",
        presets=dict.fromkeys(_RESNET, AdaContrastHyperparameters(lr=2e-4, weight_decay=1e-4, nesterov=True)),
        min_batch_size=2,
    ),
    "rmt": MethodEntry(
        implementation="tta_pipeline.methods.rmt:Rmt",
        summary="A mean teacher with contrast to source prototypes and source replay.",
        presets={
            "imagenet": RmtHyperparameters(lr=0.01, nesterov=True),
            "cifar": RmtHyperparameters(lr=1e-3, optimizer="adam"),
        },
        source_data="required",
    ),
    "zero_shot": MethodEntry(
        implementation="tta_pipeline.methods.zero_shot:ZeroShot",
        summary="The zero-shot classifier of a CLIP as it is, without adaptation.",
        presets=_NO_HYPERPARAMETERS_IN_ANY_PRESET,
        needs="clip",
    ),
    "tda": MethodEntry(
        implementation="tta_pipeline.methods.tda:Tda",
        summary="The zero-shot prediction of a CLIP corrected by caches of certain and of less certain images.",
        presets=dict.fromkeys(PRESETS, TdaHyperparameters()),
        needs="clip",
    ),
    "bca": MethodEntry(
        implementation="tta_pipeline.methods.bca:Bca",
        summary="Class embeddings of a CLIP, and the class prior of each, become running means over the stream.",
        presets=dict.fromkeys(PRESETS, BcaHyperparameters()),
        needs="clip",
    ),
    "zero": MethodEntry(
        implementation="tta_pipeline.methods.zero:Zero",
        summary="A vote of a CLIP's most certain predictions for many views of an image, without adaptation.",
        presets=dict.fromkeys(PRESETS, ZeroHyperparameters()),
        needs="clip",
    ),
    "tpt": MethodEntry(
        implementation="tta_pipeline.methods.tpt:Tpt",
        summary="The context of a CLIP's prompts is tuned to each image, so that views of the image agree.",
        presets=dict.fromkeys(PRESETS, TptHyperparameters()),
        needs="clip",
    ),
}


def find_method(method: str) -> MethodEntry:
    """Return the entry of *method*: a name in `METHODS`, or the import path `<module>:<name>` of a `MethodEntry`.

    Raises:
        ValueError: there is no such entry.
    """
    if method in METHODS:
        return METHODS[method]
    choices = f"one of {', '.join(METHODS)}, or <module>:<name> of a MethodEntry"
    if ":" not in method:
        raise ValueError(f"method is {method!r}; expected {choices}")
    try:
        entry = load_reference(method)
    except (Exception, SystemExit) as error:  # a user's module can raise anything on import
        raise ValueError(f"method is {method!r}, and its import raised {error!r}; expected {choices}") from error
    if not isinstance(entry, MethodEntry):
        raise ValueError(f"method is {method!r}, a {type(entry).__name__}; expected {choices}")  # noqa: TRY004 - a bad value to pydantic
    return entry
