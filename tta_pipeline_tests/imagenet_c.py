"""The names of ImageNet-C's corruptions, from its dataset."""

from tta_pipeline.data.datasets.dataset_files import shipped_sets

_SET = shipped_sets()["imagenet_c"]
CORRUPTIONS = _SET.names
COMMON_CORRUPTIONS = _SET.in_mean
EXTRA_CORRUPTIONS = _SET.held_out
SEVERITIES = _SET.severities
