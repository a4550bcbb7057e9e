"""Compare methods, and plot error against speed.

    python examples/compare_methods.py SHARDS data/digits_c/source_models/digits_cnn.safetensors methods.png

prints

    source  error 88.8%     139 images/s
    norm    error 43.5%     918 images/s
    tent    error 44.3%     981 images/s
"""

import sys

import matplotlib as mpl
from matplotlib import pyplot as plt

import tta_pipeline as tta


def main(folder: str, model: str, picture: str) -> None:
    """Evaluate three methods, and draw error against speed."""
    mpl.use("agg")
    figure, axes = plt.subplots()
    for name in ("source", "norm", "tent"):
        method = tta.build(name, tta.load_model(model), num_classes=10, preset="cifar")
        result = tta.evaluate(method, folder, batch_size=64)
        print(f"{name:7} error {result.error:.1%}  {result.time.images_per_s:6,.0f} images/s")
        axes.scatter(result.time.images_per_s, result.error)
        axes.annotate(name, (result.time.images_per_s, result.error))
    axes.set(xlabel="images/s", ylabel="top-1 error", ylim=(0, 1))
    figure.savefig(picture)
    plt.close(figure)


if __name__ == "__main__":
    main(*sys.argv[1:])
