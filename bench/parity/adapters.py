"""Adapters that make the authors' objects: one for each method, which passes our hyperparameters by their names.

`MD` is mariodoebler/test-time-adaptation, the authors' own repository for ROID and RMT, which also has the other
methods for CIFAR. If a method has its own repository, and that can be imported, our method is compared with that.
"""

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from sklearn.mixture import GaussianMixture
from torch import nn
from torchvision import transforms

from bench.parity.cifar import VIT
from bench.parity.clones import import_from_clone, module, package
from bench.parity.comparison import Predict, Setting
from bench.parity.features import FeaturesOf
from tta_pipeline.methods.teachers.memory_bank import BalancedBank
from tta_pipeline.methods.teachers.petta import Petta
from tta_pipeline.methods.teachers.teacher_views import moco_view, weak_view
from tta_pipeline.methods.views.augmix import augmix_views

_RandomAffine = transforms.RandomAffine
NOMINAL = 1000
"""Number of classes that is hard-coded in COME's code."""


# Common parts.


def _optimizer(at: Setting, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    settings: Any = at.settings
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=settings.lr, betas=(settings.momentum, 0.999))
    return torch.optim.SGD(parameters, lr=settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)


def _prepare(at: Setting, code: ModuleType) -> tuple[nn.Module, list[nn.Parameter]]:
    """Return the model as prepared by *code*, a module like Tent's, and the parameters that the module collects."""
    network = code.configure_model(at.network)
    return network, code.collect_params(network)[0]


def _parts(network: nn.Module, *_: object) -> tuple[nn.Module, nn.Module]:
    """Split a network into features and last layer, instead of the authors' function that does so by name."""
    features = FeaturesOf(network)
    return features, features.last


# The repositories of single methods.


def tent(at: Setting) -> Predict:
    """Make Tent."""
    code = import_from_clone(at.clone, "tent")
    network, parameters = _prepare(at, code)
    made: Predict = code.Tent(network, _optimizer(at, parameters), steps=_any(at).steps)
    return made


def eta_of_eata(at: Setting) -> Predict:
    """Make EATA without Fisher information."""
    code, settings = import_from_clone(at.clone, "eata"), _any(at)
    network, parameters = _prepare(at, code)
    made: Predict = code.EATA(
        network,
        _optimizer(at, parameters),
        e_margin=settings.e_margin * math.log(at.num_classes),
        d_margin=settings.d_margin,
    )
    return made


def sar_of_sar(at: Setting) -> Predict:
    """Make SAR."""
    return _sar(at, "sar", "SAR")


def _sar(at: Setting, name: str, of: str) -> Predict:
    code, settings = import_from_clone(at.clone, name), _any(at)
    network, parameters = _prepare(at, code)
    sam = import_from_clone(at.clone, "sam").SAM
    optimizer = sam(parameters, torch.optim.SGD, rho=settings.rho, lr=settings.lr, momentum=settings.momentum)
    made: Predict = getattr(code, of)(network, optimizer, margin_e0=settings.e_margin * math.log(at.num_classes))
    return made


def tent_of_come(at: Setting) -> Predict:
    """Make Tent with COME's loss."""
    code = import_from_clone(at.clone, "tent_come")
    network, parameters = _prepare(at, code)
    made: Predict = code.Tent_COME(network, _optimizer(at, parameters), None)
    return made


def eta_of_come(at: Setting) -> Predict:
    """Make EATA with COME's loss, without Fisher information."""
    code, settings = import_from_clone(at.clone, "eata_come"), _any(at)
    network, parameters = _prepare(at, code)
    made: Predict = code.EATA_COME(
        network,
        _optimizer(at, parameters),
        e_margin=settings.e_margin * math.log(at.num_classes),
        d_margin=settings.d_margin,
    )
    return made


def sar_of_come(at: Setting) -> Predict:
    """Make SAR with COME's loss."""
    return _sar(at, "sar_come", "SAR_COME")


def rdumb(at: Setting) -> Predict:
    """Make RDumb; its learning rate is hard-coded, its other constants are set here, and its counter starts later."""
    folder = at.clone / "models"
    models = package(folder)
    base = import_from_clone(at.clone, "models.registery", {"models": models})
    functional = import_from_clone(at.clone, "models.functional", {"models": package(folder)})
    vars(models).update(AdaptiveModel=base.AdaptiveModel, register=base.register, functional=functional)
    code, settings = import_from_clone(at.clone, "models.rdumb", {"models": models}), _any(at)
    made = code.RDumb(at.network)
    made.e_margin = settings.e_margin * math.log(at.num_classes)
    made.d_margin = settings.d_margin
    made.total_steps = NOMINAL - settings.reset_every
    return made


def rotta(at: Setting) -> Predict:
    """Make RoTTA."""
    code, settings = import_from_clone(at.clone, "core.adapter.rotta"), _any(at)
    own = SimpleNamespace(
        MEMORY_SIZE=settings.memory_size, LAMBDA_T=settings.lambda_t, LAMBDA_U=settings.lambda_u, NU=settings.nu,
        UPDATE_FREQUENCY=settings.update_frequency, ALPHA=settings.alpha,
    )  # fmt: skip
    cfg = SimpleNamespace(
        ADAPTER=SimpleNamespace(RoTTA=own),
        CORRUPTION=SimpleNamespace(NUM_CLASS=at.num_classes),
        OPTIM=SimpleNamespace(STEPS=settings.steps),
        INPUT=SimpleNamespace(SIZE=(32, 32), TTA_MEAN=0, TTA_STD=1),
    )
    with patch.object(transforms, "RandomAffine", _random_affine_with_old_names):
        made: Predict = code.RoTTA(cfg, at.network, partial(_optimizer, at))
    return made


def _random_affine_with_old_names(
    degrees: object, *, resample: object, fillcolor: object, **options: object
) -> transforms.RandomAffine:
    """Return torchvision's transform from the old names of its arguments."""
    return _RandomAffine(degrees, interpolation=resample, fill=fillcolor or 0, **options)


def t3a(at: Setting) -> Predict:
    """Make T3A on the two parts of a network."""
    base = type("Algorithm", (nn.Module,), {"__init__": _algorithm})
    stand_ins = {"domainbed.algorithms": module("domainbed.algorithms", Algorithm=base)}
    code = import_from_clone(at.clone, "domainbed.adapt_algorithms", stand_ins)
    features = FeaturesOf(at.network.eval())
    parts = SimpleNamespace(featurizer=features, classifier=features.last)
    options = {"filter_K": _any(at).filter_k, "cached_loader": False}
    made = code.T3A(None, at.num_classes, None, options, parts)
    return torch.no_grad()(partial(made, adapt=True))  # type: ignore[no-any-return]


def shot_im_of_norm_layers(at: Setting) -> Predict:
    """Make SHOT-IM; its learning rate is hard-coded, and it always adapts the norm layers."""
    made: Predict = _shot_im(at)
    return made


def shot_im(at: Setting) -> Predict:
    """Make SHOT-IM, with an optimiser of all parameters that its code gives a gradient."""
    made = _shot_im(at)
    made.optimizer = _optimizer(at, [each for each in made.model.parameters() if each.requires_grad])
    predict: Predict = made
    return predict


def _shot_im(at: Setting) -> Any:
    code = import_from_clone(at.clone, "tta_methods.shot_im", {"tta_methods": package(at.clone / "tta_methods")})
    told = SimpleNamespace(steps=_any(at).steps, update_bn_only=_any(at).params == "norm", beta_clustering_loss=0)
    return code.SHOTIM(at.network, told)


class _WithFc(nn.Module):
    """A network whose last linear layer is called `fc`, as in the models that UniEnt adapts."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.features = FeaturesOf(network)
        self.fc: nn.Module = self.features.last

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.features(images))
        return logits


def ostta(at: Setting) -> Predict:
    """Make OSTTA."""
    return _unient(at, "ostta", "OSTTA")


def unient(at: Setting) -> Predict:
    """Make Tent with UniEnt's loss."""
    return _unient(at, "tent", "Tent")


def unient_of_eata(at: Setting) -> Predict:
    """Make EATA with UniEnt's loss, without Fisher information."""
    settings = _any(at)
    margins = {"e_margin": settings.e_margin * math.log(at.num_classes), "d_margin": settings.d_margin}
    return _unient(at, "eata", "EATA", **margins)


_CRITERIA = {"none": "ent", "hard": "ent_ind_ood", "soft": "ent_unf"}


def _unient(at: Setting, name: str, of: str, **options: object) -> Predict:
    code, settings = import_from_clone(at.clone, f"cifar.{name}", {"cifar": package(at.clone / "cifar")}), _any(at)
    vars(code)["GaussianMixture"] = partial(GaussianMixture, random_state=0)  # as ours; theirs draws its start
    network = code.configure_model(_WithFc(at.network))
    made: Predict = getattr(code, of)(
        network, _optimizer(at, code.collect_params(network)[0]), steps=settings.steps,
        alpha=[settings.marginal_weight, settings.unknown_weight], criterion=_CRITERIA[settings.split], **options,
    )  # fmt: skip
    return made


def sotta(at: Setting) -> Predict:
    """Make SoTTA with our draws, without the parts of its base class that read data, and log."""
    settings = _any(at)
    arguments = SimpleNamespace(
        gpu_idx=0, use_learned_stats=True, bn_momentum=settings.bn_momentum, update_every_x=settings.update_frequency,
        memory_type="HUS", temperature=1.0, epoch=1, tta_attack_type=None,
        opt={"num_class": at.num_classes, "batch_size": settings.memory_size},
    )  # fmt: skip
    conf = module("conf", args=arguments)
    learner = package(at.clone / "learner")
    learner.dnn = dnn = module("learner.dnn", DNN=_Learner)  # type: ignore[attr-defined]
    stand_ins = {"conf": conf, "learner": learner, "learner.dnn": dnn, "utils": package(at.clone / "utils")}
    with patch.object(torch.cuda, "set_device", lambda _: None):
        code = import_from_clone(at.clone, "learner.sotta", stand_ins)
    generator = torch.Generator().manual_seed(at.ours.seed)
    code.memory.random = SimpleNamespace(
        choice=lambda among: among[int(torch.randint(len(among), (), generator=generator))],
        randrange=lambda _, count: int(torch.randint(count, (), generator=generator)),
    )
    return _Learner.started(code, at)


class _Learner:
    """The base class of the authors' learners: a network, its optimiser and a memory."""

    def __init__(self, network: nn.Module, mem: object) -> None:
        self.net, self.mem = network, mem
        self.logits = torch.empty(0)

    @classmethod
    def started(cls, code: ModuleType, at: Setting) -> Predict:
        settings = _any(at)
        made = code.SoTTA(at.network, code.memory.HUS(settings.memory_size, settings.threshold))
        parameters = import_from_clone(at.clone, "utils.sam_optimizer").sam_collect_params(at.network, freeze_top=True)
        made.optimizer = code.SAM(
            parameters[0], torch.optim.Adam, rho=settings.rho, lr=settings.lr, weight_decay=settings.weight_decay
        )

        def predict(images: torch.Tensor) -> torch.Tensor:
            none = torch.zeros(len(images), dtype=torch.int64)
            made.target_train_set = images, none, none
            for number in range(len(images)):
                made.train_online(number + 1)
            logits: torch.Tensor = made.logits
            return logits

        return predict

    def log_loss_results(self, *_: object, **__: object) -> None:
        """Log nothing."""

    def evaluation_online(self, _: int, samples: Sequence[Sequence[torch.Tensor]]) -> None:
        """Predict the last images as the authors' base class does."""
        self.net.eval()
        with torch.no_grad():
            self.logits = self.net(torch.stack(list(samples[0])))


class _Zoo(nn.Module):
    """A ViT with the attribute names of the models that IMSE adapts."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.normalize, self.model = nn.Identity(), network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(self.normalize(images))
        return logits


def imse(at: Setting) -> Predict:
    """Make IMSE with domain-aware retrieval, as its configuration for continual streams."""
    settings = _any(at)
    real = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == "timm"}  # theirs has a copy
    stand_ins = {
        "method": package(at.clone / "method"),
        "utils": module("utils", get_imagenet_r_mask=lambda: None),
        **real,
    }
    code = import_from_clone(at.clone, "method.svd", stand_ins)
    own = SimpleNamespace(
        COMPONENT_NUM=14, MODE="svft_variance_maximization", BIAS=False, DECOMPOSE_QKV=False, DYNAMIC=True,
        NUM_SEEN_TEST_DOMAINS=1, DYNAMIC_MODE="top1_adapt", TEMP=1.0, FEATURE_LAYER=[-1], DYNAMIC_POOL="dss",
        DSS_K=settings.shift_threshold, LOAD_OPTIMIZER_STATE="reset", VM_WEIGHT=settings.diversity_weight, VM_RATIO=1.0,
        VM_NUM=3, DOMAIN_DISTANCE="kl_div", RETRIEVAL_DISTANCE="kl_div",
    )  # fmt: skip
    cfg = SimpleNamespace(
        SVD=own,
        MODEL=SimpleNamespace(ADAPTATION="imse", ARCH="VITB_augreg_in21k_ours"),
        OPTIM=SimpleNamespace(METHOD="SAM_Adam", LR=settings.lr, NORM_LR=0.0),
        EATA=SimpleNamespace(MARGIN_E0=settings.e_margin),
        TEST=SimpleNamespace(BATCH_SIZE=at.batch_size),
    )
    network = code.configure_model(_Zoo(at.network), cfg)
    parameters, _ = code.collect_params(network, cfg)
    optimizer = code.get_optimizer(cfg, parameters)
    made = code.SVD(cfg, network, optimizer, None, parameters, at.source_data, num_classes=at.num_classes)
    return lambda images: made(images)[0]  # type: ignore[no-any-return]


def dpcore(at: Setting) -> Predict:
    """Make DPCore with our source images and first prompts; its learning rate is hard-coded."""
    code, settings = import_from_clone(at.clone / "imagenet", "dpcore"), _any(at)
    # Without the assertion that features have 768 numbers, as by `python -O`.
    of_any_width = compile(inspect.getsource(code.calculate_weights), "dpcore.py", "exec", optimize=1)
    exec(of_any_width, vars(code))  # noqa: S102 - code of the clone, like all that is imported
    network = code.PromptViT(at.network, settings.num_prompts)
    network.prompts.data.copy_(at.ours._first_prompts)  # type: ignore[attr-defined] # noqa: SLF001 - the same draw
    made = code.DPCore(
        network,
        torch.optim.AdamW([network.prompts]),
        temp_tau=settings.temperature,
        ema_alpha=settings.coreset_rate,
        thr_rho=settings.reuse_threshold,
        E_OOD=settings.steps,
    )
    images = torch.cat([images for images, _ in at.source_data])[: settings.source_size]
    with torch.no_grad():
        made.train_info = torch.std_mean(network.forward_raw_features(images)[:, 0], dim=0)
    return lambda images: made(images)[0]  # type: ignore[no-any-return]


class _Headed(nn.Module):
    """A network whose classifier has the attribute name of timm's ViTs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.features = FeaturesOf(network.eval())
        self.head: nn.Module = self.features.last

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def neo(at: Setting) -> Predict:
    """Make NEO for the classes of the network."""
    stand_ins = {
        "utils": package(at.clone / "utils"),
        "utils.utils": module("utils.utils", get_device=lambda: torch.device("cpu")),
        "dataset": package(at.clone / "dataset"),
    }
    code = import_from_clone(at.clone, "tta_library.neo", stand_ins)
    made = code.NEO(_Headed(at.network), at.num_classes)
    made.imagenet_mask = None
    return torch.no_grad()(made.forward)


class _Forked(nn.Module):
    """A network whose parts have the attribute names of timm's ResNets."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.forward_features = FeaturesOf(network)
        self.fc = self.forward_features.last
        self.forward_head = self.fc


def zerosiam(at: Setting) -> Predict:
    """Make ZeroSiam on the two parts of a network."""
    settings = _any(at)
    stand_ins = {"models": package(at.clone / "models"), "tta_library": package(at.clone / "tta_library")}
    code = import_from_clone(at.clone, "tta_library.zerosiam", stand_ins)
    network = code.configure_model(code.BYOLWrapper(_Forked(at.network), ""))
    rates = (settings.lr, settings.lr * settings.predictor_lr_factor)
    adapted = (code.collect_params(network)[0], list(network.predictor.parameters()))
    optimizers = [
        torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum)
        for parameters, lr in zip(adapted, rates, strict=True)
    ]
    made: Predict = code.ZeroSiam(network, *optimizers)
    return made


def rem(at: Setting) -> Predict:
    """Make REM."""
    return _rem(at, lambda network: network)


def rem_of_script(at: Setting) -> Predict:
    """Make REM as its script does: the network is wrapped before parameters are selected by name."""
    return _rem(at, nn.DataParallel)


def _rem(at: Setting, wrapped: Callable[[nn.Module], nn.Module]) -> Predict:
    scripts, settings = at.clone / "cifar", _any(at)
    code = import_from_clone(scripts, "rem", {"cv2": module("cv2")})
    zoo = scripts / "robustbench"
    stand_ins = {"robustbench": package(zoo), "robustbench.model_zoo": package(zoo / "model_zoo")}
    with patch("timm.models.registry.register_model", lambda make: make):  # its models have the names of timm's
        models = import_from_clone(scripts, "robustbench.model_zoo.rem_vit", stand_ins)
    network = models.rem_vit(**VIT)
    network.load_state_dict(at.network.state_dict())
    num_patches = network.patch_embed.num_patches
    network, parameters = _prepare(replace(at, network=wrapped(network)), code)
    made: Predict = code.REM(
        network, _optimizer(at, parameters), m=settings.mask_ratio, n=settings.num_predictions,
        lamb=settings.lambda_rank, margin=settings.margin,
    )  # fmt: skip
    made.tokens = num_patches  # type: ignore[attr-defined] # theirs is for 384 pixels
    return made


def _make_petta(at: Setting) -> Any:
    settings = _any(at)
    absent = module("src.model.resnet_domainnet126", ResNetDomainNet126=type("Absent", (), {}))
    parts = module("src.utils.petta_utils", split_up_model=_parts, get_source_loader=lambda **_: (None, at.source_data))
    stand_ins = {"src.model": package(at.clone / "src" / "model"), absent.__name__: absent, parts.__name__: parts}
    code = import_from_clone(at.clone, "src.adapter.petta", stand_ins)
    shared = SimpleNamespace(
        MEMORY_SIZE=settings.memory_size, UPDATE_FREQUENCY=settings.update_frequency, ALPHA=settings.alpha,
        LAMBDA_T=settings.lambda_t, LAMBDA_U=settings.lambda_u,
    )  # fmt: skip
    own = SimpleNamespace(
        ALPHA_0=settings.nu, LAMBDA_0=settings.lambda_0, AL_WGT=settings.anchor_weight, REGULARIZER="cosine",
        ADAPTIVE_LAMBDA=True, ADAPTIVE_ALPHA=True, NORM_LAYER="rbn", LOSS_FUNC="sce" if settings.symmetric else "ce",
        PERCENTAGE=1.0, NUM_WORKERS=0,
    )  # fmt: skip
    cfg = SimpleNamespace(
        ADAPTER=SimpleNamespace(NAME="petta", RoTTA=shared, PETTA=own),
        CORRUPTION=SimpleNamespace(DATASET="cifar10c", NUM_CLASS=at.num_classes),
        OPTIM=SimpleNamespace(STEPS=settings.steps),
        MODEL=SimpleNamespace(ARCH=""),
        INPUT=SimpleNamespace(SIZE=(32, 32)),
        CKPT_DIR=str(at.scratch),
        CKPT_PATH="",
        SRC_DATA_DIR="",
    )
    return code.PeTTA(cfg, at.network, partial(_optimizer, at))


def petta(at: Setting) -> Predict:
    """Make PeTTA; it expects labels with the images, but only counts them."""
    made = _make_petta(at)
    return lambda images: made(images, torch.zeros(len(images)))


def petta_with_divergence_of_each_class(at: Setting) -> Predict:
    """Make PeTTA with our moments of the source features, and with the mean of the classes' divergences."""
    made, ours = _make_petta(at), at.ours
    means, variances = ours._source_means, ours._scales  # type: ignore[attr-defined] # noqa: SLF001 - by label
    made.proto_mem.mem_proto.copy_(means)
    made.divg_score.src_proto.copy_(means)
    made.divg_score.src_proto_cov.copy_(variances - 1e-6)
    of_classes = made.divg_score.forward

    def divergence(feats: torch.Tensor, pseudo_lbls: torch.Tensor) -> torch.Tensor:
        """Return a value from which their formula, made for the mean distance, gives the mean of 1 - exp(-distance)."""
        rows = zip(torch.split(feats, 1), torch.split(pseudo_lbls, 1), strict=True)
        return -torch.stack([(-of_classes(row, label)).exp() for row, label in rows]).mean().log()

    made.divg_score.forward = divergence
    return lambda images: made(images, torch.zeros(len(images)))


def _algorithm(self: Any, _shape: object, _num_classes: object, _num_domains: object, options: object) -> None:
    nn.Module.__init__(self)
    self.hparams = options


_images_of_bank = BalancedBank.images


def images_by_class(bank: BalancedBank) -> torch.Tensor:
    """Sort *bank* by class, as the authors' code does, and return its images."""
    bank._entries.sort(key=lambda entry: entry.label)  # noqa: SLF001 - an experiment
    return _images_of_bank(bank)


_view_of_petta = Petta._view  # noqa: SLF001 - an experiment


def view_after_images(method: Petta, images: torch.Tensor) -> torch.Tensor:
    """Return a view of *images* after passing the images themselves through the student of *method*."""
    method._forward(images)  # noqa: SLF001 - an experiment
    return _view_of_petta(method, images)


# MD.


def _any(at: Setting) -> Any:
    """Return the method's hyperparameters."""
    return at.settings


def _cfg(at: Setting, **sections: SimpleNamespace) -> SimpleNamespace:
    """Return the configuration that every method of MD reads, with additional *sections* of the method."""
    settings = _any(at)
    has_step = hasattr(settings, "lr")
    common = {
        "MODEL": SimpleNamespace(EPISODIC=False, RESET_AFTER_NUM_UPDATES=0, ADAPTATION="", ARCH="", CKPT_PATH=""),
        "CORRUPTION": SimpleNamespace(DATASET="cifar10_c"),
        "OPTIM": SimpleNamespace(
            STEPS=getattr(settings, "steps", 1),
            METHOD={"adam": "Adam", "adamw": "AdamW"}.get(settings.optimizer, "SGD") if has_step else "SGD",
            LR=settings.lr if has_step else 0,
            BETA=settings.momentum if has_step else 0,
            MOMENTUM=settings.momentum if has_step else 0,
            NESTEROV=has_step and settings.nesterov,
            WD=settings.weight_decay if has_step else 0,
            DAMPENING=0,
        ),
        "TEST": SimpleNamespace(
            WINDOW_LENGTH=1, BATCH_SIZE=at.batch_size, DEBUG=False,
            N_AUGMENTATIONS=getattr(settings, "num_augmentations", 0),
        ),
        "SOURCE": SimpleNamespace(NUM_SAMPLES=getattr(settings, "fisher_size", -1), PERCENTAGE=1.0, NUM_WORKERS=0),
        "M_TEACHER": SimpleNamespace(MOMENTUM=getattr(settings, "teacher_momentum", 0)),
        "EATA": SimpleNamespace(
            MARGIN_E0=getattr(settings, "e_margin", 0), D_MARGIN=getattr(settings, "d_margin", 0),
            FISHER_ALPHA=getattr(settings, "fisher_alpha", 0),
        ),
        "MIXED_PRECISION": False,
        "DATA_DIR": "",
        "CKPT_DIR": str(at.scratch),
    }  # fmt: skip
    return SimpleNamespace(**{**common, **sections})


def _stand_ins(at: Setting, folder: Path) -> dict[str, ModuleType]:
    """Return stand-ins for MD's modules of models and data, which give our two parts of a network and our batches."""

    class BaseModel(nn.Module):
        def __init__(self, network: nn.Module, *_: object) -> None:
            super().__init__()
            self.features, self.last = _parts(network)
            self.output_dim, self.num_classes = self.last.in_features, at.num_classes

        def forward(self, images: torch.Tensor, *, return_feats: bool = False) -> object:
            features = self.features(images)
            logits = self.last(features)
            return (features, logits) if return_feats else logits

    models = module("models.model", ResNetDomainNet126=type("Absent", (), {}), split_up_model=_parts)
    models.BaseModel = BaseModel  # type: ignore[attr-defined]
    source = _SourceLoader(at.source_data, at.batch_size)
    return {
        "methods": package(folder / "methods"),
        "models": package(folder / "models"),
        "models.model": models,
        "datasets": package(folder / "datasets"),
        "datasets.data_loading": module("datasets.data_loading", get_source_loader=lambda **_: (None, source)),
    }


class _SourceLoader(list[Any]):
    """Batches of clean images and their labels, with the attribute `batch_size` of a loader."""

    def __init__(self, batches: Sequence[Any], batch_size: int) -> None:
        super().__init__(batches)
        self.batch_size = batch_size


def _make_of_md(at: Setting, name: str, of: str, *, folder: str = "classification", **sections: SimpleNamespace) -> Any:
    """Return the object of the class *of* in MD's file *name*."""
    scripts = at.clone / folder
    code = import_from_clone(scripts, f"methods.{name}", _stand_ins(at, scripts))
    at.network.model_preprocess = None  # type: ignore[assignment]
    return getattr(code, of)(_cfg(at, **sections), at.network, at.num_classes)


def of_md(name: str, of: str, **sections: Callable[[Any], Mapping[str, object]]) -> Callable[[Setting], Predict]:
    """Return the adapter of a method of MD that takes images alone.

    Each of *sections* is a function from our hyperparameters to a section of MD's configuration.
    """

    def theirs(at: Setting) -> Predict:
        made: Predict = _make_of_md(
            at, name, of, **{key: SimpleNamespace(**make(at.settings)) for key, make in sections.items()}
        )
        return made

    return theirs


def rmt(at: Setting) -> Predict:
    """Make RMT; it initialises its projector with the same draws as ours."""
    settings = _any(at)
    made: Predict = _make_of_md(
        at,
        "rmt",
        "RMT",
        CONTRAST=SimpleNamespace(
            MODE="all", TEMPERATURE=settings.temperature, PROJECTION_DIM=settings.projection_dim
        ),
        RMT=SimpleNamespace(
            LAMBDA_CE_SRC=settings.lambda_ce_src, LAMBDA_CE_TRG=settings.lambda_ce_trg,
            LAMBDA_CONT=settings.lambda_cont, NUM_SAMPLES_WARM_UP=settings.num_samples_warm_up,
        ),
    )  # fmt: skip
    return made


def rmt_with_warm_up_of_a_file(at: Setting) -> Predict:
    """Make RMT as each run after the first: it reads the warm-up from the file that the first one wrote."""
    rmt(replace(at, network=deepcopy(at.network)))
    torch.manual_seed(at.ours.seed)
    return rmt(at)


def lame_of_lame(at: Setting) -> Predict:
    """Make the affinities and the optimisation of LAME's own program."""
    settings, folder = _any(at), at.clone / "src"
    stand_ins = {
        "src": package(folder),
        "src.adaptation": package(folder / "adaptation"),
        "src.adaptation.non_adaptive": module("src.adaptation.non_adaptive", NonAdaptiveMethod=object),
        "src.adaptation.build": module(
            "src.adaptation.build", ADAPTER_REGISTRY=SimpleNamespace(register=lambda: lambda made: made)
        ),
    }
    code = import_from_clone(at.clone, "src.adaptation.lame", stand_ins)
    affinity = getattr(code, f"{settings.affinity}_affinity")(sigma=1.0, knn=settings.knn)
    features = FeaturesOf(at.network.eval())

    @torch.no_grad()
    def predict(images: torch.Tensor) -> torch.Tensor:
        found = features(images)
        unary = -torch.log(features.last(found).softmax(1) + 1e-10)
        assigned: torch.Tensor = code.laplacian_optimization(unary, affinity(nn.functional.normalize(found, dim=-1)))
        return assigned

    return predict


def lame(at: Setting) -> Predict:
    """Make LAME; it returns assignments, not logits."""
    settings = _any(at)
    made: Predict = _make_of_md(
        at,
        "lame",
        "LAME",
        LAME=SimpleNamespace(
            AFFINITY=settings.affinity, KNN=settings.knn, SIGMA=1.0, FORCE_SYMMETRY=settings.force_symmetry
        ),
    )
    return made


def asr(at: Setting) -> Predict:
    """Make EATA with ASR, without Fisher information."""
    settings = _any(at)
    made: Predict = _make_of_md(
        at,
        "eata",
        "EATA",
        folder="",
        ASR=SimpleNamespace(
            ON=True, M0=settings.asr_mu_0, P0=settings.asr_lambda_0, A0=settings.asr_alpha,
            R0=1 - settings.asr_r_0,  # theirs is the share that stays
            R1=settings.asr_lambda_r,
        ),
    )  # fmt: skip
    return made


def _make_adacontrast(at: Setting) -> Any:
    settings = _any(at)
    made = _make_of_md(
        at,
        "adacontrast",
        "AdaContrast",
        CONTRAST=SimpleNamespace(TEMPERATURE=settings.temperature),
        ADACONTRAST=SimpleNamespace(
            QUEUE_SIZE=settings.queue_size, CONTRAST_TYPE="class_aware", CE_TYPE="standard", ALPHA=1, BETA=1, ETA=1,
            DIST_TYPE="cosine", CE_SUP_TYPE="weak_strong", REFINE_METHOD="nearest_neighbors",
            NUM_NEIGHBORS=settings.num_neighbors,
        ),
    )  # fmt: skip
    directions, labels = at.ours._keys.rows()  # type: ignore[attr-defined] # noqa: SLF001 - the same random keys to start with
    made.model.mem_feat.copy_(directions.T)
    made.model.mem_labels.copy_(labels)
    return made


def adacontrast(at: Setting) -> Predict:
    """Make AdaContrast, and pass it the views that our method draws, instead of its loader's."""
    made, generator = _make_adacontrast(at), torch.Generator().manual_seed(at.ours.seed)
    views = (weak_view, moco_view, moco_view)
    return lambda images: made([images, *(view(images, generator) for view in views)])


def adacontrast_with_labels_later(at: Setting) -> Predict:
    """Make AdaContrast, changed so that keys and labels of a batch enter its queue after the loss."""
    made, generator = _make_adacontrast(at), torch.Generator().manual_seed(at.ours.seed)
    enter, waiting = made.model.update_memory, []
    made.model.update_memory = lambda *arguments: waiting.append(arguments)

    def predict(images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = made([images, *(view(images, generator) for view in (weak_view, moco_view, moco_view))])
        enter(*waiting.pop())
        return logits

    return predict


def image_by_image(name: str, of: str) -> Callable[[Setting], Predict]:
    """Return the adapter of MEMO or TTAug, which passes each image with the views that our method draws."""

    def theirs(at: Setting) -> Predict:
        settings, generator = _any(at), torch.Generator().manual_seed(at.ours.seed)
        made = _make_of_md(at, name, of, BN=SimpleNamespace(ALPHA=1 / (settings.prior_strength + 1)))
        made.episodic = hasattr(settings, "lr")

        def predict(images: torch.Tensor) -> torch.Tensor:
            views = augmix_views(images, generator, num_views=settings.num_augmentations, crop=settings.crop)
            pairs = zip(torch.split(images, 1), views, strict=True)
            return torch.cat([made([image, *torch.split(of_it, 1)]) for image, of_it in pairs])

        return predict

    return theirs
