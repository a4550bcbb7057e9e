"""The reference of the methods, from their entries and from the list of comparisons with the authors' code.

`docs/make_reference.py` writes it. What no entry knows is in the texts below.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from reference_benchmark import table

from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline.methods.entropy.entries import EntropyHyperparameters
from tta_pipeline.methods.entry import (
    GradientHyperparameters,
    Hyperparameters,
    MethodEntry,
    TopHyperparameters,
    ViewHyperparameters,
)

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.parity.comparisons import COMMITS, COMPARISONS, NOT_COMPARED

DIFFERENCES = Path(__file__).parent / "reference" / "method-differences.md"
BY_HAND: Mapping[str, str] = {"foa": "mr-eggplant/FOA `004b02d`, by hand", "spa": "mr-eggplant/SPA `b4a66ea`, by hand"}
"""What was compared without `bench.parity`, since the licence keeps the authors' code out."""
UNPUBLISHED: Mapping[str, str] = {"bn_ema": "`norm_ema` of mariodoebler/test-time-adaptation"}
"""Where methods without a paper come from."""
_FAMILIES: Mapping[str, str] = {
    "batch_norm": "Batch norm statistics",
    "entropy": "Entropy and other losses of the prediction",
    "alignment": "Alignment with the source's features",
    "gradient_free": "No gradients",
    "views": "Views of single images",
    "teachers": "Mean teachers and weight averages",
    "clip": "CLIP and other zero-shot models",
}
"""Titles of the packages of `tta_pipeline.methods`."""
_LAYERS_OF_KINDS = {"any": "", "vit": "ViT with a class token", "clip": "CLIP"}
_PROMPTS = "CLIP with open_clip's own text tower"
_WITH_PROMPTS = {"tpt", "ctpt", "batclip"}
_LABELLED = {"petta", "rmt"}

_HEAD = """# Methods

Look up a method here: what it does, what it needs, its defaults, and how far its code was checked. To pick one, read
[Choose a method](../guides/choose-a-method.md) instead. To write one, read [your method](../guides/own-method.md). The
[fields of each method](benchmark/index.md) have types and descriptions.

There are {number} methods and two baselines without adaptation, `source` and `zero_shot`.

## All methods

Forwards and backwards are the most passes per image, with preset `imagenet`. Methods that select images need fewer.
"""
_WORDS = """## Read an entry

- **Needs**: without these layers, source data or batches, the run stops with an error before the first batch.
  *Norm layers* are batch, layer or group norm. *Linear head* is a last linear layer with one output per class; a
  distilled DeiT has two, so it does not count. *Source data* are clean images, set by `clean` under `images` in the
  benchmark file.
- **Adapts**: what changes during the stream, and which prediction counts. *Before the update* means that a batch is
  predicted, then learned. Methods that adapt norm layers use the statistics of the current batch in batch norm, unless
  the entry lists statistics. *Below the top* leaves out [frozen layers](frozen-layers.md).
- **Defaults**: the authors' settings; if the authors have none, mariodoebler/test-time-adaptation's. `imagenet`
  comes first, then what other presets change. Without an `optimizer`, gradient steps use SGD with momentum 0.9.
  `imagenet` is for a ResNet-50 and batches of 64, `cifar` for batches of 200, `imagenet_vit` for a ViT-B.
- **Code**: what it was written from, and the commit whose predictions it was [compared with](../results/parity.md).

You choose the preset; it is never guessed from the data. Any value can be changed under `hyperparameters`. For small
batches, SAR's authors scale the learning rate of a ResNet-50: `2.5e-4 * B / 32` for B below 32, and twice as much for
`sar` with single images. Set `lr` yourself in this case.

All methods keep dropout and stochastic depth off. A batch with NaN or infinite logits is counted, and marks the result
as `diverged`. No method repairs itself.

**Networks with layer norm** (ViT, DeiT, Swin, ConvNeXt of timm and torchvision) run with every method that needs
neither batch norm nor CLIP. `rem`, `imse`, `dpcore`, `foa` and `fozo` need a class token: ViT and DeiT of timm, ViT of
torchvision.

**CLIP** also runs with `tent`, `eata`, `sar`, `deyo` and all others that need neither batch norm nor a ViT. They adapt
the image tower only. To repeat TTABC's rows for `sar` and `deyo`, freeze the last three blocks by name, since its code
leaves the norm layer behind them adaptable, and predict after the update:

```yaml
experiments:
  sar_as_ttabc:
    model: clip
    method: sar
    preset: imagenet_vit
    batch_size: 64
    hyperparameters:
      frozen_layers: [tower.transformer.resblocks.9, tower.transformer.resblocks.10, tower.transformer.resblocks.11]
    protocol: {shift: reset_each_shift, predict_after_update: true}
  tent_as_ttabc:
    model: clip
    method: tent
    preset: imagenet_vit
    batch_size: 64
    hyperparameters: {optimizer: adamw, lr: 0.005}  # the default of TTABC's command line
    protocol: {shift: reset_each_shift, predict_after_update: true}
```
"""
_PUBLISHED = """## Published errors

Compare your run with these before you trust it. Mean error in % over the 15 corruptions of ImageNet-C at severity 5.
Columns differ in images and protocol, so compare within a column only. **A**: mariodoebler/test-time-adaptation,
5,000 images, continual. **C**: EATA's repository, 50,000 images, reset at each shift. **D**: Alfarra et al., as C.

| ResNet-50 | A | C | D |
|---|---|---|---|
| `source` | 82.0 | 82.0 | 82.0 |
| `norm` | 68.6 | 66.5 | 68.5 |
| `tent` | 62.6 | 57.4 | 57.3 |
| `eta` | | 51.9 | 52.0 |
| `eata` | 58.0 | 52.2 | |
| `sar` | 61.9 | | 56.2 |
| `cotta` | 63.1 | | 61.5 |
| `rotta` | 67.3 | | |
| `adacontrast` | 65.5 | | |
| `rmt` | 59.9 | | |
| `roid` | 54.5 | | |
| `lame` | 93.5 | | 82.7 |
| `memo` | | 76.1 | 76.3 |
| `shot_im` with `params: norm` | | | 59.9 |

For a ViT-B, each row has numbers of one repository, with its own weights, images and protocol:

| method | error | in the same repository |
|---|---|---|
| `foa` | 33.7 | source 44.5, `t3a` 43.1, `tent` 40.4, `sar` 37.3 |
| `fozo` | 40.5 | `foa` 41.9 (5,000 images, continual) |
| `spa` | 29.9 | source 44.5, `eata` 32.2, `deyo` 34.0 |
| `neo` | 40.8 | source 44.4 (512 images per corruption) |
| `come` | 38.8 | source 60.2, `tent` 47.2 (number of images not stated) |
| `zerosiam` | 36.6 | source 71.5, `come` 38.4, `deyo` 38.6 (imbalanced labels) |
| `roid` | 45.0 | source 60.2, `tent` 54.5, `eata` 49.8, `sar` 51.7 (A) |

Trap: the ViT-B rows of SAR's repository use the wrong mean and std, so accuracy without adaptation is 29.9 % instead of
51.1 %.
"""


def _in_words(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


_USUAL_VALUES: Mapping[str, str] = {
    name: _in_words(info.default)
    for kind in (GradientHyperparameters, EntropyHyperparameters, TopHyperparameters, ViewHyperparameters)
    for name, info in kind.model_fields.items()
    if not info.is_required()
}
"""Hyperparameters that are listed only if a preset changes them."""


def methods() -> str:
    """Return the page of all methods."""
    parts = [_HEAD.format(number=len(METHODS) - 2), _overview(), _WORDS]
    family = ""
    for name, entry in METHODS.items():
        if family != (family := entry.implementation.split(".")[2]):
            parts.append(f"## {_FAMILIES[family]}")
        parts += [
            f"### {name}",
            entry.summary,
            "\n".join(f"- **{word}**: {text}." for word, text in _facts(name, entry)),
        ]
    return "\n\n".join(part.strip() for part in [*parts, _PUBLISHED]) + "\n"


def needs_of(name: str, entry: MethodEntry) -> str:
    """Return what the method *name* needs, in words; empty if it runs with anything."""
    kind = _PROMPTS if name in _WITH_PROMPTS else _LAYERS_OF_KINDS[entry.needs]
    layers = "" if entry.needs == "clip" else entry.layers
    source = {"required": "labelled source data" if name in _LABELLED else "source data"}.get(entry.source_data, "")
    batch = f"batches of at least {entry.min_batch_size}" if entry.min_batch_size > 1 else ""
    return ", ".join(each for each in (kind, layers, source, batch) if each)


def checked_against(name: str) -> str:
    """Return the repositories and commits whose predictions the method *name* was compared with, or "nothing"."""
    found = dict.fromkeys(each.repository for each in COMPARISONS if each.method == name)
    if not found and name not in BY_HAND:
        return "nothing"
    return ", ".join(f"{each} `{COMMITS[each][:7]}`" for each in found) or BY_HAND[name]


def defaults_of(entry: MethodEntry) -> str:
    """Return the hyperparameters of each preset: all of the first, and what the others change."""
    said: dict[str, list[str]] = {}
    first: Mapping[str, str] = _USUAL_VALUES
    for preset, settings in entry.presets.items():
        values = _in_words_of(preset, settings, entry)
        changed = {name: value for name, value in values.items() if first.get(name) != value}
        first = values if first is _USUAL_VALUES else first
        said.setdefault(", ".join(f"`{name}` {value}" for name, value in changed.items()), []).append(f"`{preset}`")
    if list(said) == [""]:
        return "nothing to set"
    return "; ".join(f"{' and '.join(names)}: {text or 'the same'}" for text, names in said.items())


def _in_words_of(preset: str, settings: Hyperparameters, entry: MethodEntry) -> dict[str, str]:
    values = {name: _in_words(value) for name, value in settings.model_dump(mode="json").items()}
    if rule := entry.lr_of_batch_size.get(preset):
        values["lr"] = f"{rule(64):g} for batches of 64, {rule(1):.1e} for single images"
    return values


def _overview() -> str:
    return table(
        ("method", "needs", "forwards", "backwards"),
        (
            (f"[`{name}`](#{name})", needs_of(name, entry), f"{_forwards(entry):g}", f"{entry.backwards:g}")
            for name, entry in METHODS.items()
        ),
    )


def _forwards(entry: MethodEntry) -> float:
    return entry.passes - 2 * entry.backwards


def _facts(name: str, entry: MethodEntry) -> Iterator[tuple[str, str]]:
    if entry.paper:
        link = f", [arXiv](https://arxiv.org/abs/{entry.paper.arxiv})" if entry.paper.arxiv else ""
        authors = entry.paper.authors.replace('D{\\"o}bler', "Döbler")
        yield "Paper", f"{authors}: *{entry.paper.title}*, {entry.paper.venue} {entry.paper.year}{link}"
    elif name in UNPUBLISHED:
        yield "Paper", f"none; {UNPUBLISHED[name]}"
    if needs := needs_of(name, entry):
        yield "Needs", needs
    if entry.adapts:
        yield "Adapts", f"{entry.adapts}; prediction: {entry.prediction}"
    if (defaults := defaults_of(entry)) != "nothing to set":
        yield "Defaults", defaults
    code = [f"written from {entry.written_from}"] if entry.paper or name in UNPUBLISHED else []
    if name not in NOT_COMPARED or name in BY_HAND:
        code.append(f"checked against {checked_against(name)}")
    if f"`{name}`" in DIFFERENCES.read_text():
        code.append("[differences](method-differences.md)")
    if code:
        yield "Code", "; ".join(code)
