"""Adapters that make the authors' FOZO; see `bench.parity.adapters`."""

from types import ModuleType
from typing import Any

import torch

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
