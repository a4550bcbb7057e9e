"""The names of ImageNet-C's corruptions, from its shift set."""

from tta_pipeline.data.shifts.shift_set_files import shipped_sets

_SET = shipped_sets()["imagenet_c"]
CORRUPTIONS = _SET.names
COMMON_CORRUPTIONS = _SET.in_mean
EXTRA_CORRUPTIONS = _SET.held_out
SEVERITIES = _SET.severities
