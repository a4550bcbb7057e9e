"""The comparisons, and the reasons for known differences."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from bench.parity.adapters import (
    NOMINAL,
    adacontrast,
    adacontrast_with_labels_later,
    asr,
    eta_of_come,
    eta_of_eata,
    image_by_image,
    images_by_class,
    lame,
    neo,
    of_md,
    petta,
    petta_with_divergence_of_each_class,
    rdumb,
    rem,
    rem_of_script,
    rmt,
    rotta,
    sar_of_come,
    sar_of_sar,
    t3a,
    tent,
    tent_of_come,
    view_after_images,
    zerosiam,
)
from bench.parity.cifar import vit
from bench.parity.clip import as_clip, tda, tpt, zero
from bench.parity.comparison import Comparison
from tta_pipeline.methods.teachers.memory_bank import BalancedBank
from tta_pipeline.methods.teachers.petta import Petta

MD = "mariodoebler/test-time-adaptation"


def _of_roid(settings: Any) -> Mapping[str, object]:
    return {
        "USE_WEIGHTING": True, "USE_PRIOR_CORRECTION": True, "USE_CONSISTENCY": True,
        "MOMENTUM_SRC": getattr(settings, "momentum_src", 0), "MOMENTUM_PROBS": settings.momentum_probs,
        "TEMPERATURE": settings.temperature,
    }  # fmt: skip


ROID = of_md("roid", "ROID", ROID=_of_roid)
CMF = of_md("cmf", "CMF", ROID=_of_roid, CMF=lambda s: {"ALPHA": s.alpha, "GAMMA": s.gamma, "Q": s.q, "TYPE": "lp"})
COTTA = of_md("cotta", "CoTTA", COTTA=lambda s: {"RST": s.restore_probability, "AP": s.anchor_threshold})
SAR_OF_MD = of_md("sar", "SAR", SAR=lambda s: {"RESET_CONSTANT_EM": s.reset_margin})
_PER_IMAGE = "each image of a view has its own draws, theirs has one for a batch"
_NOISE = (
    "a view's noise is drawn in the order of the memory, which is that of arrival in ours, that of classes in theirs"
)
_STEPS = "the student predicts, and its steps by Adam on all parameters enlarge rounding"
_AS_THEIRS = {"draws": "batch"}
_ROID_AS_THEIRS = {**_AS_THEIRS, "prior_correction": "logits"}
_FEW_VIEWS = {"num_augmentations": 4}
_SHORT_WARM_UP = {"num_samples_warm_up": 2000}
_DIVERGENCE = (
    "the divergence is the mean over classes, and source moments go by label; theirs takes the exponential of the mean "
    "distance, and moments by prediction"
)
_ONCE_A_BATCH = {"update_frequency": 200}
_NO_SMALL_DIFFERENCE = {**_ONCE_A_BATCH, **_AS_THEIRS, "nu": 0.1}
"""Settings with a teacher that follows so fast that the student's learning shows in the predictions."""


@contextmanager
def _memory_by_class_and_images_passed() -> Iterator[None]:
    with patch.object(BalancedBank, "images", images_by_class), patch.object(Petta, "_view", view_after_images):
        yield


COMPARISONS: Sequence[Comparison] = (
    Comparison(title="source", method="source", repository=MD, theirs=of_md("source", "Source")),
    Comparison(title="norm", method="norm", repository=MD, theirs=of_md("norm", "BNTest")),
    Comparison(
        title="bn_alpha", method="bn_alpha", repository=MD,
        theirs=of_md("norm", "BNAlpha", BN=lambda s: {"ALPHA": s.alpha}),
    ),
    Comparison(title="bn_ema", method="bn_ema", repository=MD, theirs=of_md("norm", "BNEMA")),
    Comparison(title="tent", method="tent", repository="DequanWang/tent", theirs=tent),
    Comparison(title="rpl", method="rpl", repository=MD, theirs=of_md("rpl", "RPL", RPL=lambda s: {"Q": s.q})),
    Comparison(title="eta", method="eta", repository="mr-eggplant/EATA", theirs=eta_of_eata),
    Comparison(title="eata", method="eata", repository=MD, theirs=of_md("eata", "EATA")),
    Comparison(
        title="rdumb", method="rdumb", repository="oripress/CCC", theirs=rdumb,
        changes={"optimizer": "sgd", "lr": 2.5e-4, "reset_every": 5},
    ),
    Comparison(
        title="asr", method="asr", repository="YonseiML/asr", theirs=asr, changes={"asr_alpha": 0.81}
    ),
    Comparison(title="sar", method="sar", repository="mr-eggplant/SAR", theirs=sar_of_sar),
    Comparison(
        title="sar, forced resets", method="sar", repository=MD, theirs=SAR_OF_MD, changes={"reset_margin": 0.255}
    ),
    Comparison(
        title="come", method="come", repository="BlueWhaleLab/COME", theirs=tent_of_come, num_outputs=NOMINAL
    ),
    Comparison(
        title="eta+come", method="eta", repository="BlueWhaleLab/COME", theirs=eta_of_come, num_outputs=NOMINAL,
        changes={"loss": "come"},
    ),
    Comparison(
        title="sar+come", method="sar", repository="BlueWhaleLab/COME", theirs=sar_of_come, num_outputs=NOMINAL,
        changes={"loss": "come"},
    ),
    Comparison(
        title="deyo", method="deyo", repository=MD,
        theirs=of_md(
            "deyo", "DeYO",
            DEYO=lambda s: {
                "REWEIGHT_ENT": True, "REWEIGHT_PLPD": True, "PLPD": s.plpd_threshold, "MARGIN": s.deyo_margin,
                "AUG_TYPE": "patch", "OCCLUSION_SIZE": 0, "ROW_START": 0, "COLUMN_START": 0, "PATCH_LEN": s.patch_len,
            },
        ),
    ),
    Comparison(title="zerosiam", method="zerosiam", repository="Cascol-Chen/ZeroSiam", theirs=zerosiam),
    Comparison(
        title="rem", method="rem", repository="pilsHan/rem", theirs=rem_of_script, network=vit,
        reason="theirs wraps the network before it leaves out the norm layer behind the blocks by name, so this adapts",
        shown_by="rem, not wrapped",
    ),
    Comparison(title="rem, not wrapped", method="rem", repository="pilsHan/rem", theirs=rem, network=vit),
    Comparison(title="lame", method="lame", repository=MD, theirs=lame, as_theirs=torch.exp),
    Comparison(title="t3a", method="t3a", repository="matsuolab/T3A", theirs=t3a),
    Comparison(title="neo", method="neo", repository="awesomealex1/NEO", theirs=neo),
    Comparison(title="tda", method="tda", repository="kdiAAA/TDA", theirs=tda, network=as_clip),
    Comparison(
        title="zero", method="zero", repository="FarinaMatteo/zero", theirs=zero, network=as_clip,
        num_images=400,
    ),
    Comparison(
        title="tpt", method="tpt", repository="azshue/TPT", theirs=tpt, network=as_clip, num_images=400,
        reason="the first step of AdamW has the size of its rate also where a sure image's gradient is but rounding",
        shown_by="tpt, less sure",
    ),
    Comparison(
        title="tpt, less sure", method="tpt", repository="azshue/TPT", theirs=tpt, network=partial(as_clip, scale=10.0),
        num_images=400,
    ),
    Comparison(title="ttaug", method="ttaug", repository=MD, theirs=image_by_image("ttaug", "TTAug"), num_images=100),
    Comparison(title="memo", method="memo", repository=MD, theirs=image_by_image("memo", "MEMO"), num_images=100),
    Comparison(
        title="cotta", method="cotta", repository=MD, theirs=COTTA, changes=_FEW_VIEWS, reason=_PER_IMAGE,
        shown_by="cotta, draws: batch",
    ),
    Comparison(
        title="cotta, draws: batch", method="cotta", repository=MD, theirs=COTTA, changes={**_FEW_VIEWS, **_AS_THEIRS}
    ),
    Comparison(
        title="rotta", method="rotta", repository="BIT-DA/RoTTA", theirs=rotta, reason=f"{_PER_IMAGE}; {_NOISE}",
        shown_by="rotta, draws: batch, memory by class",
    ),
    Comparison(
        title="rotta, draws: batch", method="rotta", repository="BIT-DA/RoTTA", theirs=rotta, changes=_AS_THEIRS,
        reason=_NOISE, shown_by="rotta, draws: batch, memory by class",
    ),
    Comparison(
        title="rotta, draws: batch, memory by class", method="rotta", repository="BIT-DA/RoTTA", theirs=rotta,
        changes=_AS_THEIRS, within=partial(patch.object, BalancedBank, "images", images_by_class),
    ),
    Comparison(
        title="petta", method="petta", repository="hthieu166/petta", theirs=petta, changes=_ONCE_A_BATCH,
        reason=f"{_PER_IMAGE}; {_NOISE}; {_DIVERGENCE}", shown_by="petta, draws: batch, memory and divergence by class",
    ),
    Comparison(
        title="petta, draws: batch, memory and divergence by class", method="petta", repository="hthieu166/petta",
        theirs=petta_with_divergence_of_each_class, changes=_NO_SMALL_DIFFERENCE,
        within=partial(patch.object, BalancedBank, "images", images_by_class),
    ),
    Comparison(
        title="petta, not symmetric", method="petta", repository="hthieu166/petta",
        theirs=petta_with_divergence_of_each_class, changes={**_NO_SMALL_DIFFERENCE, "symmetric": False},
        within=partial(patch.object, BalancedBank, "images", images_by_class),
        reason="the student of theirs also passes the images without a view, for nothing but its statistics",
        shown_by="petta, not symmetric, images passed",
    ),
    Comparison(
        title="petta, not symmetric, images passed", method="petta", repository="hthieu166/petta",
        theirs=petta_with_divergence_of_each_class, changes={**_NO_SMALL_DIFFERENCE, "symmetric": False},
        within=_memory_by_class_and_images_passed,
    ),
    Comparison(
        title="roid", method="roid", repository=MD, theirs=ROID,
        reason=f"{_PER_IMAGE}; ours multiplies probabilities by the prior, theirs logits",
        shown_by="roid, draws: batch",
    ),
    Comparison(title="roid, draws: batch", method="roid", repository=MD, theirs=ROID, changes=_ROID_AS_THEIRS),
    Comparison(
        title="cmf", method="cmf", repository=MD, theirs=CMF,
        reason=f"{_PER_IMAGE}; ours multiplies probabilities by the prior, theirs logits",
        shown_by="cmf, draws: batch",
    ),
    Comparison(title="cmf, draws: batch", method="cmf", repository=MD, theirs=CMF, changes=_ROID_AS_THEIRS),
    Comparison(
        title="adacontrast", method="adacontrast", repository=MD, theirs=adacontrast,
        reason="theirs enters the labels of a batch into its queue before the loss, and masks the keys they replace",
        shown_by="adacontrast, labels entered after the loss",
    ),
    Comparison(
        title="adacontrast, labels entered after the loss", method="adacontrast", repository=MD,
        theirs=adacontrast_with_labels_later,
    ),
    Comparison(
        title="rmt", method="rmt", repository=MD, theirs=rmt, changes=_SHORT_WARM_UP, reason=f"{_PER_IMAGE}; {_STEPS}",
        shown_by="rmt, draws: batch, small steps",
    ),
    Comparison(
        title="rmt, draws: batch", method="rmt", repository=MD, theirs=rmt, changes={**_SHORT_WARM_UP, **_AS_THEIRS},
        reason=_STEPS, shown_by="rmt, draws: batch, small steps",
    ),
    Comparison(
        title="rmt, draws: batch, small steps", method="rmt", repository=MD, theirs=rmt,
        changes={**_SHORT_WARM_UP, **_AS_THEIRS, "optimizer": "sgd", "lr": 0.001},
    ),
)  # fmt: skip
"""Every comparison; a comparison with a reason is followed by one in which the reason is removed."""

NOT_COMPARED: Mapping[str, str] = {
    "foa": "code not free, no part of this; by hand on a small ViT with random weights and the same "
    "candidates: 0 of 2,560 predictions differ",
    "spa": "code not free, no part of this; by hand on a small ViT with random weights and the same "
    "draws: 0 of 640 predictions differ",
    "bca": "needs a CLIP; held against its formula only, from summaries",
    "zero_shot": "the model as it is",
}
"""Methods without a comparison, and the present state of each."""
