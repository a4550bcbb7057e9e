"""Cost of adaptation: every method relative to `source`, and four to bare PyTorch loops: `python -m bench.methods`.

ResNet-18, 64x64, batches of 32 in memory. The speed-up of other settings on this CPU follows; see `bench.settings`. The
filters of EATA and SAR are set to let every sample pass, so that method and loop make the same steps. The weights are
random: speed does not depend on them.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.functional import normalize
from torchvision.models import resnet18

from bench import settings
from tta_pipeline.methods import METHODS, build

NUM_CLASSES, BATCH_SIZE, IMAGE_SIZE = 200, 32, 64
NUM_BATCHES = int(os.environ.get("BENCH_BATCHES", "4"))
REPEATS = int(os.environ.get("BENCH_REPEATS", "3"))
ALL_PASS = {"e_margin": 2.0}
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "eta": ALL_PASS | {"d_margin": 2.0},
    "eata": ALL_PASS | {"d_margin": 2.0},
    "rdumb": ALL_PASS | {"d_margin": 2.0},
    "asr": ALL_PASS | {"d_margin": 2.0},
    "sar": ALL_PASS,
    "deyo": ALL_PASS | {"deyo_margin": 2.0, "plpd_threshold": -1.0},
    "rmt": {"num_samples_warm_up": 0},
}
Predict = Callable[[torch.Tensor], torch.Tensor]


def main() -> None:
    """Measure in turn, and print a table."""
    torch.manual_seed(0)
    images = [torch.rand(BATCH_SIZE, 3, IMAGE_SIZE, IMAGE_SIZE) for _ in range(NUM_BATCHES)]
    labels = torch.arange(NUM_CLASSES).split(BATCH_SIZE)
    source_data = [(torch.rand(len(part), 3, IMAGE_SIZE, IMAGE_SIZE), part) for part in labels]
    methods = {
        name: build(name, model(), num_classes=NUM_CLASSES, source_data=source_data, **SETTINGS.get(name, {}))
        for name, entry in METHODS.items()
        if entry.needs == "any"  # the others have no ResNet
    }
    ways: dict[str, Predict] = {name: method.predict for name, method in methods.items()}
    ways |= {f"{name}, bare loop": make(source_data) for name, make in BARE_LOOPS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS + 1):  # the first warms up
        for name, predict in ways.items():
            seconds[name].append(_pass_s(predict, images if name not in ("memo", "ttaug") else images[:1], images))
    _print(seconds, methods)
    settings.main()


def model() -> nn.Module:
    """Return the network with fixed random weights."""
    torch.manual_seed(1)
    return resnet18(num_classes=NUM_CLASSES).eval()


def _pass_s(predict: Predict, images: list[torch.Tensor], everything: list[torch.Tensor]) -> float:
    """Return the seconds for all batches; for methods that take minutes, *images* has one batch, which is scaled up."""
    started = time.perf_counter()
    for batch in images:
        predict(batch)
    return (time.perf_counter() - started) * len(everything) / len(images)


def bare_norm(_: object) -> Predict:
    """Batch statistics, forward."""
    network = _with_batch_statistics(model())

    @torch.inference_mode()
    def predict(images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = network(images)
        return logits

    return predict


def bare_tent(_: object) -> Predict:
    """Forward, entropy, backward, step."""
    return tent_loop(model())


def tent_loop(network: nn.Module) -> Predict:
    """Return the step of Tent's paper on *network*, in plain torch."""
    _with_batch_statistics(network)
    optimizer = torch.optim.SGD(_affine(network), lr=2.5e-4, momentum=0.9)

    def predict(images: torch.Tensor) -> torch.Tensor:
        logits = network(images)
        _entropy(logits).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return logits.detach()

    return predict


def bare_eata(source_data: list[tuple[torch.Tensor, torch.Tensor]]) -> Predict:
    """Forward, two filters, weighted entropy and Fisher penalty, backward, step."""
    network = _with_batch_statistics(model())
    parameters = list(_affine(network))
    origins = [parameter.detach().clone() for parameter in parameters]
    fishers = [torch.zeros_like(parameter) for parameter in parameters]
    for images, _ in source_data:
        logits = network(images)
        nn.functional.cross_entropy(logits, logits.argmax(1)).backward()
        for fisher, parameter in zip(fishers, parameters, strict=True):
            fisher.add_(parameter.grad**2 / len(source_data))
            parameter.grad = None
    optimizer = torch.optim.SGD(parameters, lr=2.5e-4, momentum=0.9)
    mean: list[torch.Tensor] = []
    e0 = 2.0 * torch.tensor(float(NUM_CLASSES)).log()

    def predict(images: torch.Tensor) -> torch.Tensor:
        logits = network(images)
        probabilities = logits.detach().softmax(1)
        kept = (_entropy(logits.detach()) < e0).nonzero().squeeze(1)
        if mean:
            cosines = normalize(probabilities[kept], dim=1) @ normalize(mean[0], dim=0)
            kept = kept[(cosines.abs() < 2.0).nonzero().squeeze(1)]
        mean[:] = [0.9 * mean[0] + 0.1 * probabilities[kept].mean(0) if mean else probabilities[kept].mean(0)]
        entropies = _entropy(logits[kept])
        loss = (torch.exp(e0 - entropies.detach()) * entropies).mean()
        for fisher, parameter, origin in zip(fishers, parameters, origins, strict=True):
            loss = loss + 2000 * (fisher * (parameter - origin) ** 2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return logits.detach()

    return predict


def bare_sar(_: object) -> Predict:
    """Forward and backward, climb, forward and backward, back and step."""
    network = _with_batch_statistics(model())
    parameters = [p for name, layer in network.named_children() if name != "layer4" for p in _affine(layer)]
    chosen = {id(parameter) for parameter in parameters}
    for parameter in network.parameters():
        parameter.requires_grad_(id(parameter) in chosen)
    optimizer = torch.optim.SGD(parameters, lr=2.5e-4, momentum=0.9)
    e0 = 2.0 * torch.tensor(float(NUM_CLASSES)).log()

    def predict(images: torch.Tensor) -> torch.Tensor:
        logits = network(images)
        kept = (_entropy(logits.detach()) < e0).nonzero().squeeze(1)
        _entropy(logits[kept]).mean().backward()
        origins = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            length = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
            for parameter in parameters:
                parameter.add_(parameter.grad * (0.05 / length))
        optimizer.zero_grad()
        second = network(images)[kept]
        kept = (_entropy(second.detach()) < e0).nonzero().squeeze(1)
        loss = _entropy(second[kept]).mean()
        loss.backward()
        with torch.no_grad():
            for parameter, origin in zip(parameters, origins, strict=True):
                parameter.copy_(origin)
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())
        return logits.detach()

    return predict


BARE_LOOPS: Mapping[str, Callable[[list[tuple[torch.Tensor, torch.Tensor]]], Predict]] = {
    "norm": bare_norm,
    "tent": bare_tent,
    "eata": bare_eata,
    "sar": bare_sar,
}


def _with_batch_statistics(network: nn.Module) -> nn.Module:
    network.requires_grad_(requires_grad=False)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
            layer.requires_grad_(requires_grad=True)
    return network


def _affine(network: nn.Module) -> Iterator[nn.Parameter]:
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            yield from (layer.weight, layer.bias)


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    return -(logits.softmax(1) * logits.log_softmax(1)).sum(1)


def _print(seconds: Mapping[str, list[float]], methods: Mapping[str, object]) -> None:
    table = Table(
        title=f"Methods, ResNet-18, {IMAGE_SIZE}x{IMAGE_SIZE}, batch {BATCH_SIZE}: medians \\[range]", box=None
    )
    for name in (
        "method",
        "images/s",
        "time / source",
        "time / bare loop",
        "asked",
        "forwards",
        "backwards",
        "adapted on",
    ):
        table.add_column(name)
    for name, method in methods.items():
        bare = seconds.get(f"{name}, bare loop")
        table.add_row(
            name,
            f"{NUM_BATCHES * BATCH_SIZE / statistics.median(seconds[name][1:]):,.0f}",
            _ratios(seconds[name], seconds["source"]),
            _ratios(seconds[name], bare) if bare else "",
            "<= 1.15" if bare else "",
            *(
                f"{getattr(method, counter) / _num_seen(name):.2f}"
                for counter in ("num_forwards", "num_backwards", "num_adapted_samples")
            ),
        )
    Console(width=140).print(table)


def _num_seen(name: str) -> int:
    return BATCH_SIZE * (REPEATS + 1) * (1 if name in ("memo", "ttaug") else NUM_BATCHES)


def _ratios(seconds: list[float], reference: list[float]) -> str:
    ratios = [mine / other for mine, other in zip(seconds[1:], reference[1:], strict=True)]
    return f"{statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}]"


if __name__ == "__main__":
    main()
