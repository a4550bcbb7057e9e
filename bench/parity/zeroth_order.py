"""Adapters that make the authors' FOZO and ZOA; see `bench.parity.adapters`."""

import logging
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from bench.parity.clones import import_from_clone, module, package
from bench.parity.comparison import Predict, Setting


class _OurDraws:
    """The module torch, whose normal draws for each seed are those of *generator*, in the order of the seeds."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator
        self._drawn: dict[int, torch.Tensor] = {}
        self._seed = 0

    def manual_seed(self, seed: int) -> None:
        """Choose the draw that `normal` returns."""
        self._seed = seed

    def normal(self, *, size: tuple[int, ...], **_: object) -> torch.Tensor:
        """Return the draw of the chosen seed, as often as it is asked for."""
        if self._seed not in self._drawn:
            self._drawn[self._seed] = torch.randn(size, generator=self._generator)
        return self._drawn[self._seed]

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _packages(at: Setting, *names: str) -> dict[str, ModuleType]:
    return {name: package(at.clone / name) for name in names}


def fozo(at: Setting) -> Predict:
    """Make FOZO with our draws; the 768 numbers of a ViT-B's token are hard-coded, so the shift takes the network's."""
    settings: Any = at.settings
    absent = {"PTQSLBatchingQuantMatMul": type(None), "SoSPTQSLBatchingQuantMatMul": type(None)}
    quantized = module("quant_library.quant_layers.matmul", **absent)
    stand_ins = {**_packages(at, "models", "tta_library"), quantized.__name__: quantized}
    stand_ins |= {name: module(name) for name in ("quant_library", "quant_library.quant_layers")}
    code: Any = import_from_clone(at.clone, "tta_library.FOZO", stand_ins)
    generator = torch.Generator().manual_seed(at.ours.seed)
    network = code.PromptViT(at.network, settings.num_prompts)
    largest = (6 / (3 * at.network.patch_embed.patch_size[0] ** 2 + network.prompt_dim)) ** 0.5  # type: ignore[index,union-attr]
    network.prompts.data.uniform_(-largest, largest, generator=generator)
    made = code.FOZO(
        network, zo_eps=settings.perturbation_scale, lr=settings.lr, fitness_lambda=settings.fitness_lambda,
        n_spsa=settings.num_directions, log_dir=None,
    )  # fmt: skip
    made.obtain_origin_stat(at.source_data, str(at.scratch / "statistics.pt"))
    made._get_shift_vector = lambda: _shift(made, network.prompt_dim)  # noqa: SLF001 - its width is hard-coded
    code.torch = _OurDraws(generator)
    return torch.no_grad()(made.forward)  # type: ignore[no-any-return]


def _shift(made: Any, width: int) -> torch.Tensor | None:
    """Return the shift of the last *width* numbers."""
    if made.hist_stat is None:
        return None
    shift: torch.Tensor = made.train_info["combined_stats"][1][-width:] - made.hist_stat[-width:]
    return shift


def zoa(at: Setting) -> Predict:
    """Make ZOA for a ViT."""
    made = _zoa(at, "vit", "ViT", "ln")
    return torch.no_grad()(made.forward)  # type: ignore[no-any-return]


def zoa_of_resnet(at: Setting) -> Predict:
    """Make ZOA for a ResNet."""
    made = _zoa(at, "resnet", "ResNet", "bn")
    return torch.no_grad()(made.forward)  # type: ignore[no-any-return]


def zoa_of_resnet_with_source_mean(at: Setting) -> Predict:
    """Make ZOA for a ResNet whose features shift to the source's mean, and whose first domain is the stream's."""
    made = _zoa(at, "resnet", "ResNet", "bn")
    made.model.reset_domain_info()
    mean = made.train_info[1][-made.model.model.fc.in_features :]
    made._get_shift_vector = lambda: None if made.hist_stat is None else mean - made.hist_stat  # noqa: SLF001 - mended
    return torch.no_grad()(made.forward)  # type: ignore[no-any-return]


def _zoa(at: Setting, kind: str, name: str, norm: str) -> Any:
    settings: Any = at.settings
    stand_ins = {**_packages(at, "models", "tta_library"), "cma": module("cma")}
    code: Any = import_from_clone(at.clone, f"tta_library.zoa_{kind}", stand_ins)
    fuse: Any = import_from_clone(at.clone, f"models.fuse_{kind}", stand_ins)
    told = SimpleNamespace(
        quant=False, steps=1, lr=settings.lr, weight_decay=settings.weight_decay, lr_alpha=settings.mixture_lr,
        weight_decay_alpha=0.1, spsa_c=settings.perturbation_scale, spsa_c_alpha=settings.mixture_perturbation_scale,
        spsa_momentum=0, sp_avg=settings.num_directions, max_weight_nums=settings.max_domains, alpha_scale=10.0,
        domain_t=settings.shift_threshold,
    )  # fmt: skip
    network = code.configure_model(getattr(fuse, f"Fuse{name}")(told, at.network, logging.getLogger()))
    getattr(network, f"replace_fuse_{norm}")()
    network.configure_model()
    parts = network.collect_params()
    groups = [{"params": parts["alpha"], "lr": told.lr_alpha, "weight_decay": told.weight_decay_alpha}]
    rest = torch.optim.SGD([*parts["epsilon_weight"], *parts["epsilon_bias"]], told.lr, weight_decay=told.weight_decay)
    network.set_optimizers(torch.optim.AdamW(groups), rest)
    made = getattr(code, f"ZOA_{name}")(told, network, settings.fitness_lambda)
    made.obtain_origin_stat(at.source_data)
    return made


def bottlenecks(_: nn.Module) -> nn.Module:
    """Return a ResNet of eight bottlenecks with fixed random weights."""
    from torchvision.models.resnet import Bottleneck, ResNet

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return ResNet(Bottleneck, [2, 2, 2, 2], num_classes=10).eval()
