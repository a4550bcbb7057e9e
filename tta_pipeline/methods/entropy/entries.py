"""Methods that take gradient steps on a loss of the predictions for a batch."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from tta_pipeline.methods.entry import (
    PRESETS,
    RESNET_PRESETS,
    USUAL_SETS,
    GradientHyperparameters,
    Hyperparameters,
    MemoryHyperparameters,
    MethodEntry,
    Paper,
    TopHyperparameters,
)
from tta_pipeline.util.config_model import MAX_COUNT


class EntropyHyperparameters(GradientHyperparameters):
    """Hyperparameters of every method that minimises entropy: its loss, its parameters and its resets."""

    code_of_choices: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "loss": {
            "come": "tta_pipeline.methods.entropy.come:opinion_entropy",
            "gce": "tta_pipeline.methods.entropy.own_label:own_label_cross_entropy",
        },
        "params": {
            "last": "tta_pipeline.methods.entropy.last_layer:unfreeze_classifier",
            "lora": "tta_pipeline.methods.entropy.added_parameters:add_low_rank_updates",
            "adapters": "tta_pipeline.methods.entropy.added_parameters:add_adapters",
        },
        "reset": {
            "periodic": "tta_pipeline.methods.entropy.periodic_reset:PeriodicReset",
            "asr": "tta_pipeline.methods.entropy.asr:AdaptiveReset",
        },
    }

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


class RplHyperparameters(GradientHyperparameters):
    """Hyperparameters of RPL."""

    q: float = Field(default=0.8, gt=0, le=1)
    """Exponent of the generalised cross entropy: near 0, the cross entropy; at 1, 1 minus the probability."""


class ReliableHyperparameters(Hyperparameters):
    """Hyperparameters of every method that adapts on reliable samples."""

    e_margin: float = Field(default=0.4, gt=0, allow_inf_nan=False)
    """Entropy below which a sample is reliable, as a fraction of ln K."""


class ChosenHyperparameters(ReliableHyperparameters):
    """Hyperparameters of every method that can choose samples as ETA does."""

    d_margin: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Cosine with earlier predictions from which on a sample is redundant; 0.4 for CIFAR-10, 0.1 for CIFAR-100."""


class SharpnessHyperparameters(Hyperparameters):
    """Hyperparameters of every method that seeks a flat minimum, by a second gradient after a step of ascent."""

    rho: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Distance of the ascent step, after which the second gradient is computed."""


class EtaHyperparameters(ChosenHyperparameters, EntropyHyperparameters):
    """Hyperparameters of ETA."""


class EataHyperparameters(EtaHyperparameters):
    """Hyperparameters of EATA."""

    fisher_alpha: float = Field(default=2000.0, ge=0, allow_inf_nan=False)
    """Weight of the penalty on forgetting."""
    fisher_size: int = Field(default=2000, ge=1, le=MAX_COUNT)
    """Number of clean samples that the Fisher information is computed from."""


class SarHyperparameters(SharpnessHyperparameters, ReliableHyperparameters, EntropyHyperparameters, TopHyperparameters):
    """Hyperparameters of SAR."""

    reset_margin: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    """Moving average of the entropy, in nats, below which the model is reset."""

    @model_validator(mode="after")
    def _freezes_norm_layers(self) -> "SarHyperparameters":
        if self.frozen_layers is not None and self.params != "norm":
            raise ValueError(
                f"frozen_layers is given with params {self.params}; expected `params: norm`, since only norm layers "
                "can be frozen: remove frozen_layers"
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
                f"num_predictions is {self.num_predictions} and mask_ratio is {self.mask_ratio:g}; expected "
                "(num_predictions - 1) * mask_ratio below 1, so that some patches remain: lower one of them"
            )
        return self


class ShotImHyperparameters(GradientHyperparameters):
    """Hyperparameters of SHOT-IM."""

    params: Literal["all", "norm"] = "all"
    """Parameters that adapt: all except the classifier's, or weight and bias of the norm layers."""


class UnientHyperparameters(ChosenHyperparameters, GradientHyperparameters):
    """Hyperparameters of UniEnt and OSTTA."""

    adapt_on: Literal["all", "surer_than_source", "reliable"] = "all"
    """Known samples whose entropy is minimised. `all`: every one. `surer_than_source`: the model's probability of the
    source model's label is at least the source model's. `reliable`: ETA's choice, with ETA's weights."""
    split: Literal["none", "hard", "soft"] = "hard"
    """How known and unknown samples are separated. `none`: not at all. `hard`: each is one or the other, as in UniEnt.
    `soft`: each is both, weighted by its probabilities, as in UniEnt+."""
    unknown_weight: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Weight of the mean entropy of unknown samples, which is maximised."""
    marginal_weight: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Weight of the entropy of the mean prediction, which is maximised."""


class SottaHyperparameters(SharpnessHyperparameters, MemoryHyperparameters, TopHyperparameters):
    """Hyperparameters of SoTTA."""

    threshold: float = Field(default=0.99, ge=0, le=1)
    """Smallest confidence with which an image enters the memory; 0.66 for CIFAR-100, 0.33 for ImageNet."""
    memory_size: int = Field(default=64, ge=2, le=MAX_COUNT)
    """Number of images in the memory."""
    bn_momentum: float = Field(default=0.2, ge=0, le=1)
    """Weight of the memory's statistics in batch norm's, in each of the two passes of an update."""


class ImseHyperparameters(SharpnessHyperparameters, ReliableHyperparameters, GradientHyperparameters):
    """Hyperparameters of IMSE."""

    diversity_weight: float = Field(default=50.0, ge=0, allow_inf_nan=False)
    """Weight of the diversity with which the top's inputs use its singular vectors."""
    shift_threshold: float = Field(default=0.05, ge=0, allow_inf_nan=False)
    """Divergence between the tokens of a batch and of the domain above which another domain begins."""
    source_size: int = Field(default=2000, ge=1, le=MAX_COUNT)
    """Number of clean images that describe the source domain."""


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


_WITHOUT_CIFAR = {preset: USUAL_SETS[preset] for preset in ("imagenet", "imagenet_vit")}
_EATA = Paper(
    authors="Niu, Shuaicheng and others",
    venue="ICML",
    year=2022,
    arxiv="2204.02610",
    title="Efficient Test-Time Model Adaptation without Forgetting",
)
METHODS: Mapping[str, MethodEntry] = {
    "tent": MethodEntry(
        implementation="tta_pipeline.methods.entropy.tent:Tent",
        predicts_by_network=True,
        summary="Minimises the entropy of the predictions.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": EntropyHyperparameters(lr=2.5e-4),
            "cifar": EntropyHyperparameters(lr=1e-3, optimizer="adam"),
            "imagenet_vit": EntropyHyperparameters(lr=1e-3),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr},
        paper=Paper(
            authors="Wang, Dequan and others",
            venue="ICLR",
            year=2021,
            arxiv="2006.10726",
            title="Tent: Fully Test-Time Adaptation by Entropy Minimization",
        ),
        passes=3,
        backwards=1,
    ),
    "come": MethodEntry(
        implementation="tta_pipeline.methods.entropy.tent:Tent",
        predicts_by_network=True,
        summary="Tent with a loss that treats logits as evidence, so that predictions may stay uncertain.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": EntropyHyperparameters(lr=2.5e-4, loss="come"),
            "cifar": EntropyHyperparameters(lr=1e-3, optimizer="adam", loss="come"),
            "imagenet_vit": EntropyHyperparameters(lr=1e-3, loss="come"),
        },
        published=_WITHOUT_CIFAR,
        lr_of_batch_size={"imagenet_vit": _vit_lr},
        paper=Paper(
            authors="Zhang, Qingyang and others",
            venue="ICLR",
            year=2025,
            title="COME: Test-time adaption by conservatively minimizing entropy",
        ),
        passes=3,
        backwards=1,
    ),
    "rpl": MethodEntry(
        implementation="tta_pipeline.methods.entropy.rpl:Rpl",
        predicts_by_network=True,
        summary="Tent with another loss: the generalised cross entropy of the model's own label.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": RplHyperparameters(lr=5e-4),
            "cifar": RplHyperparameters(lr=1e-3, optimizer="adam"),
        },
        paper=Paper(
            authors="Rusak, Evgenia and others",
            venue="TMLR",
            year=2022,
            arxiv="2104.12928",
            title="If your data distribution shifts, use self-learning",
        ),
        passes=3,
        backwards=1,
    ),
    "eta": MethodEntry(
        implementation="tta_pipeline.methods.entropy.eta:Eta",
        predicts_by_network=True,
        summary="Tent on samples with low entropy whose prediction differs from earlier ones.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": EtaHyperparameters(lr=2.5e-4),
            "cifar": EtaHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4),
            "imagenet_vit": EtaHyperparameters(lr=1e-3),
        },
        published={**USUAL_SETS, "cifar": {"cifar_10_c": {}, "cifar_100_c": {"d_margin": 0.1}}},
        lr_of_batch_size={"imagenet_vit": _vit_lr},
        paper=_EATA,
        passes=3,
        backwards=1,
    ),
    "eata": MethodEntry(
        implementation="tta_pipeline.methods.entropy.eata:Eata",
        predicts_by_network=True,
        summary="ETA with a Fisher penalty, which limits how much the model forgets.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": EataHyperparameters(lr=2.5e-4),
            "cifar": EataHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4, fisher_alpha=1.0),
            "imagenet_vit": EataHyperparameters(lr=1e-3),
        },
        published={**USUAL_SETS, "cifar": {"cifar_10_c": {}, "cifar_100_c": {"d_margin": 0.1}}},
        lr_of_batch_size={"imagenet_vit": _vit_lr},
        source_data="required",
        without_source_data="eta",
        paper=_EATA,
        passes=3,
        backwards=1,
    ),
    "rdumb": MethodEntry(
        implementation="tta_pipeline.methods.entropy.rdumb:Rdumb",
        predicts_by_network=True,
        summary="ETA that resets to the source model every 1,000 steps.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": EtaHyperparameters(lr=2.5e-4, reset="periodic"),
            "cifar": EtaHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4, reset="periodic"),
        },
        published={**USUAL_SETS, "imagenet": {"imagenet_c": {}, "ccc": {}}},
        paper=Paper(
            authors="Press, Ori and others",
            venue="NeurIPS",
            year=2023,
            arxiv="2306.05401",
            title="RDumb: A simple approach that questions our progress in continual test-time adaptation",
        ),
        passes=3,
        backwards=1,
    ),
    "asr": MethodEntry(
        implementation="tta_pipeline.methods.entropy.eta:Eta",
        predicts_by_network=True,
        summary="ETA that resets the layers near the output when predictions concentrate on few classes.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": EtaHyperparameters(lr=2.5e-4, reset="asr"),
            "cifar": EtaHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4, reset="asr"),
        },
        published={"imagenet": {"ccc": {}}},
        paper=Paper(
            authors="Lim and others",
            venue="ICLR",
            year=2026,
            title="When and where to reset matters for long-term test-time adaptation",
        ),
        passes=4,
        backwards=1,
    ),
    "sar": MethodEntry(
        implementation="tta_pipeline.methods.entropy.sar:Sar",
        predicts_by_network=True,
        summary="Minimises entropy on samples with low entropy, seeks flat minima, and resets after a collapse.",
        adapts="weight and bias of norm layers below the top",
        layers="norm layers",
        presets={
            "imagenet": SarHyperparameters(lr=2.5e-4),
            "cifar": SarHyperparameters(lr=1e-3),
            "imagenet_vit": SarHyperparameters(lr=1e-3),
        },
        published=_WITHOUT_CIFAR,
        lr_of_batch_size={"imagenet_vit": _vit_lr_doubled_for_single_images},
        paper=Paper(
            authors="Niu, Shuaicheng and others",
            venue="ICLR",
            year=2023,
            arxiv="2302.12400",
            title="Towards Stable Test-Time Adaptation in Dynamic Wild World",
        ),
        passes=6,
        backwards=2,
    ),
    "deyo": MethodEntry(
        implementation="tta_pipeline.methods.entropy.deyo:Deyo",
        predicts_by_network=True,
        summary="Minimises entropy on samples whose label depends on the object's shape.",
        adapts="weight and bias of norm layers below the top",
        layers="norm layers",
        presets={
            "imagenet": DeyoHyperparameters(lr=2.5e-4, plpd_threshold=0.3),
            "cifar": DeyoHyperparameters(lr=1e-3, optimizer="adam"),
            "imagenet_vit": DeyoHyperparameters(lr=1e-3),
        },
        lr_of_batch_size={"imagenet_vit": _vit_lr_doubled_for_single_images},
        paper=Paper(
            authors="Lee, Jonghyun and others",
            venue="ICLR",
            year=2024,
            arxiv="2403.07366",
            title="Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors",
        ),
        passes=4,
        backwards=1,
    ),
    "zerosiam": MethodEntry(
        implementation="tta_pipeline.methods.entropy.zerosiam:ZeroSiam",
        predicts_by_network=True,
        summary="Minimises entropy through a learned predictor that absorbs shortcuts; predictions leave it out.",
        adapts="weight and bias of norm layers, predictor",
        layers="norm layers, linear head",
        presets={
            "imagenet": ZeroSiamHyperparameters(lr=2.5e-3),
            "cifar": ZeroSiamHyperparameters(lr=2.5e-3),
            "imagenet_vit": ZeroSiamHyperparameters(lr=5e-3, predictor_lr_factor=1.0),
        },
        published={"imagenet_vit": USUAL_SETS["imagenet_vit"]},  # their ResNet-50 has group norm
        lr_of_batch_size={"imagenet_vit": _vit_lr_times_five},
        paper=Paper(
            authors="Chen and others",
            venue="ICLR",
            year=2026,
            arxiv="2509.23183",
            title="ZeroSiam: An efficient asymmetry for test-time entropy optimization without collapse",
        ),
        passes=3,
        backwards=1,
    ),
    "spa": MethodEntry(
        implementation="tta_pipeline.methods.entropy.spa:Spa",
        predicts_by_network=True,
        summary="Trains views without low frequencies and with noise to match the prediction for the whole image.",
        adapts="weight and bias of norm layers, predictor, shares of noise",
        layers="norm layers, linear head",
        written_from="paper, facts of the authors' code",
        presets={
            **dict.fromkeys(
                RESNET_PRESETS, SpaHyperparameters(lr=2.5e-3, predictor_lr_factor=10.0, mask_ratio=0.1, noise_ratio=0.1)
            ),
            "imagenet_vit": SpaHyperparameters(lr=1e-2),
        },
        published={"imagenet_vit": USUAL_SETS["imagenet_vit"]},  # their ResNet-50 has group norm
        paper=Paper(
            authors="Niu and others",
            venue="ICML",
            year=2025,
            arxiv="2504.08010",
            title="Self-Bootstrapping for Versatile Test-Time Adaptation",
        ),
        passes=7,
        backwards=2,
    ),
    "rem": MethodEntry(
        implementation="tta_pipeline.methods.entropy.rem:Rem",
        predicts_by_network=True,
        summary="Trains predictions without the most attended patches to agree with the full one, no more confident.",
        adapts="weight and bias of norm layers below the top",
        written_from="part of the paper, authors' code",
        presets=dict.fromkeys(PRESETS, RemHyperparameters(lr=1e-3, optimizer="adam")),
        needs="vit",
        paper=Paper(
            authors="Han and others",
            venue="ICML",
            year=2025,
            arxiv="2505.16441",
            title="Ranked Entropy Minimization for Continual Test-Time Adaptation",
        ),
        passes=9,
        backwards=3,
    ),
    "shot_im": MethodEntry(
        implementation="tta_pipeline.methods.entropy.shot_im:ShotIm",
        predicts_by_network=True,
        summary="Maximises information: confident predictions spread over all classes.",
        adapts="all parameters except the classifier",
        layers="linear head",
        presets={
            "imagenet": ShotImHyperparameters(lr=1e-2),
            "cifar": ShotImHyperparameters(lr=1e-3, optimizer="adam"),
        },
        published=_WITHOUT_CIFAR,
        paper=Paper(
            authors="Liang, Jian and others",
            venue="ICML",
            year=2020,
            arxiv="2002.08546",
            title=(
                "Do We Really Need to Access the Source Data? Source Hypothesis Transfer for Unsupervised Domain "
                "Adaptation"
            ),
        ),
        passes=3,
        backwards=1,
    ),
    "ostta": MethodEntry(
        implementation="tta_pipeline.methods.entropy.unient:Unient",
        summary="Minimises entropy on samples whose label is at least as probable as under the source model.",
        adapts="weight and bias of norm layers",
        layers="norm layers",
        presets={
            "imagenet": UnientHyperparameters(lr=1e-3, adapt_on="surer_than_source", split="none"),
            "cifar": UnientHyperparameters(
                lr=1e-3, optimizer="adam", adapt_on="surer_than_source", split="none", d_margin=0.4
            ),
        },
        published={},  # its programs try several weights
        paper=Paper(
            authors="Lee, Jungsoo and others",
            venue="ICCV",
            year=2023,
            arxiv="2308.06879",
            title="Towards Open-Set Test-Time Adaptation Utilizing the Wisdom of Crowds in Entropy Minimization",
        ),
        passes=4,
        backwards=1,
    ),
    "unient": MethodEntry(
        implementation="tta_pipeline.methods.entropy.unient:Unient",
        summary="Lowers the entropy of images that look known, and raises it for those that look unknown.",
        adapts="weight and bias of norm layers",
        layers="norm layers, linear head",
        presets={
            "imagenet": UnientHyperparameters(lr=1e-3),
            "cifar": UnientHyperparameters(lr=1e-3, optimizer="adam", d_margin=0.4),
        },
        published={},  # its programs try several weights
        paper=Paper(
            authors="Gao, Zhengqing and others",
            venue="CVPR",
            year=2024,
            arxiv="2404.06065",
            title="Unified Entropy Optimization for Open-Set Test-Time Adaptation",
        ),
        passes=4,
        backwards=1,
    ),
    "sotta": MethodEntry(
        implementation="tta_pipeline.methods.entropy.sotta:Sotta",
        predicts_by_network=True,
        summary="Minimises entropy, with flat minima, on a memory of confident images of all classes.",
        adapts="weight and bias of norm layers below the top, statistics of batch norm",
        layers="norm layers",
        presets={
            "imagenet": SottaHyperparameters(lr=1e-3, optimizer="adam", threshold=0.33),
            "cifar": SottaHyperparameters(lr=1e-3, optimizer="adam"),
        },
        published={**USUAL_SETS, "cifar": {"cifar_10_c": {}, "cifar_100_c": {"threshold": 0.66}}},
        paper=Paper(
            authors="Gong, Taesik and others",
            venue="NeurIPS",
            year=2023,
            arxiv="2310.10074",
            title="SoTTA: Robust Test-Time Adaptation on Noisy Data Streams",
        ),
        passes=7,
        backwards=2,
    ),
    "imse": MethodEntry(
        implementation="tta_pipeline.methods.entropy.imse:Imse",
        predicts_by_network=True,
        summary="Adapts the singular values of a ViT's linear layers, and reuses earlier values for a similar domain.",
        adapts="singular values of linear layers below the top",
        presets=dict.fromkeys(PRESETS, ImseHyperparameters(lr=7e-3, optimizer="adam")),
        published=_WITHOUT_CIFAR,
        source_data="required",
        needs="vit",
        paper=Paper(
            authors="Baek, Sunghyun and others",
            venue="ICLR",
            year=2026,
            arxiv="2603.07926",
            title="IMSE: Intrinsic Mixture of Spectral Experts Fine-tuning for Test-Time Adaptation",
        ),
        passes=7,
        backwards=2,
    ),
}
