"""The comparisons, and the reasons for known differences."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from bench.parity.adapters import (
    NOMINAL,
    adacontrast,
    adacontrast_with_labels_later,
    asr,
    dpcore,
    eta_of_come,
    eta_of_eata,
    image_by_image,
    images_by_class,
    imse,
    lame,
    lame_of_lame,
    neo,
    of_md,
    ostta,
    petta,
    petta_with_divergence_of_each_class,
    rdumb,
    rem,
    rem_of_script,
    rmt,
    rmt_with_warm_up_of_a_file,
    rotta,
    sar_of_come,
    sar_of_sar,
    shot_im,
    shot_im_of_norm_layers,
    sotta,
    t3a,
    tent,
    tent_of_come,
    unient,
    unient_of_eata,
    view_after_images,
    zerosiam,
)
from bench.parity.cifar import InBfloat16, in_turns, vit
from bench.parity.clip import WordsThroughNorm, as_clip, bca, bca_with_nearest_embedding, tda, tpt, zero
from bench.parity.clip_methods import (
    batclip,
    boostadapter,
    ctpt,
    ecalp,
    ecalp_with_first_of_equals,
    mta,
    oga,
    oga_in_float32,
    onzeta,
    stata,
    tps,
)
from bench.parity.comparison import Comparison
from bench.parity.zeroth_order import bottlenecks, fozo, zoa, zoa_of_resnet, zoa_of_resnet_with_source_mean
from tta_pipeline.methods.teachers.memory_bank import BalancedBank
from tta_pipeline.methods.teachers.petta import Petta

MD = "mariodoebler/test-time-adaptation"
COMMITS: Mapping[str, str] = {
    "BIT-DA/RoTTA": "67e34c900cdd355fc07e55edd4c577ea7b8ebcc9",
    "BlueWhaleLab/COME": "409a19b71f62c765b1a5be62347a9455524ec176",
    "Cascol-Chen/ZeroSiam": "57dfceb",
    "DequanWang/tent": "e9e926a668d85244c66a6d5c006efbd2b82e83e8",
    "FarinaMatteo/zero": "c609f7c27bd83a9c898c5bb0256f8272e4d973e3",
    "MotasemAlfarra/Online_Test_Time_Adaptation": "8e21fad470f6bc4cd9a55cf52e3e0adb6f78bc65",
    "DengZeshuai/ZOA": "48305fb6b053cfc4a42f22942335464d7a398887",
    "YonseiML/asr": "295718ecf5400d80b3c96b1f1e0cefbee324bcde",
    "awesomealex1/NEO": "cd8ac01c4d981aee274b77a07ebb0712dd54db98",
    "Yushu-Li/ECALP": "96ddf0bd482a44bcca460b6ff58eaa2597512851",
    "cfuchs2023/OGA": "b91d449a28d0958849c43dc7f698405b9fcfe4b4",
    "eVI-group-SCU/FOZO": "5bc3e5ca8194ff54e6cc1e334ecbf22d869b9a76",
    "elaine-sui/TPS": "556db0fe310f029fc7b796ffa83eaa64c578b505",
    "hee-suk-yoon/C-TPT": "085e6c2e3d2da647ca42dcef163e0cbd4bf30a67",
    "idstcv/OnZeta": "befef06dd681c30a8c2ecedd4d5bfe4847a3a963",
    "MaxZanella/MTA": "cafafdfa2918d3e9e45eb711f6aed8e3582fcb8d",
    "MaxZanella/StatA": "eea86375732d12d43eb2deeceb07fcf56c24b02f",
    "azshue/TPT": "63ecbace79694205d7884e63fdc3137a200f0b0e",
    "baek85/IMSE": "b8632d6aedf966aebc334a9f1ffce85ac4844244",
    "fiveai/LAME": "d2e5f63090bc1c8129bf7cbd781029a5955e1a67",
    "gaozhengqing/UniEnt": "af7faa8c674b61f0ce3741a6e265fd202d8a6656",
    "hthieu166/petta": "5b4de7f064f00c0532b2a14faf7243d8531dfcf1",
    "kdiAAA/TDA": "e697fb0c8078cdeff93daa56bcf8860702542069",
    MD: "8b2ed63255d906b6b0afaefc6ae630b9ec4bdaa1",
    "matsuolab/T3A": "ff8cde5f06f61035c957720c6275c33893e0f564",
    "mr-eggplant/EATA": "f739b3668cc7617e9b9f1979c1a358497a3472c3",
    "mr-eggplant/SAR": "20f6e24b17525f34503510afccedc0629b67b7c4",
    "oripress/CCC": "656dec36b8f5b4dbf64fe44c73a9a1326b9588ff",
    "pilsHan/rem": "d757218433944c3bd736f8d230dec6f3f29f118a",
    "sarthaxxxxx/BATCLIP": "ba2e3381873ef58e76a90148ee3835864349e985",
    "taeckyung/SoTTA": "50b33330b44ebd831ef2f8669f1be07b96bb3444",
    "taolinzhang/BoostAdapter": "9983e1a1fdbd8587177d89a594d19458ad181a30",
    "walawalagoose/TTABC": "c5fbdadf65b0d3e32c06fd084c8bf6caf1dd122c",
    "zybeich/DPCore": "79b143fa0dbb2a9ababd8803d0787902a7b11208",
}
"""The commit of each repository with which docs/results/parity.csv was made."""

WITHOUT_CLONE: Mapping[str, str] = {
    "Cascol-Chen/ZeroSiam": "its files without the clone",
    "walawalagoose/TTABC": "the class `BCAState` of `bca.py` alone, without the clone",
}
"""Source of docs/results/parity.csv for repositories without a clone."""


def _of_roid(settings: Any) -> Mapping[str, object]:
    return {
        "USE_WEIGHTING": True, "USE_PRIOR_CORRECTION": True, "USE_CONSISTENCY": True,
        "MOMENTUM_SRC": getattr(settings, "momentum_src", 0), "MOMENTUM_PROBS": settings.momentum_probs,
        "TEMPERATURE": settings.temperature,
    }  # fmt: skip


ROID = of_md("roid", "ROID", ROID=_of_roid)
CMF = of_md("cmf", "CMF", ROID=_of_roid, CMF=lambda s: {"ALPHA": s.alpha, "GAMMA": s.gamma, "Q": s.q, "TYPE": "lp"})
COTTA = of_md("cotta", "CoTTA", COTTA=lambda s: {"RST": s.restore_probability, "AP": s.anchor_threshold})
DEYO_OF_MD = of_md(
    "deyo", "DeYO",
    DEYO=lambda s: {
        "REWEIGHT_ENT": True, "REWEIGHT_PLPD": True, "PLPD": s.plpd_threshold, "MARGIN": s.deyo_margin,
        "AUG_TYPE": "patch", "OCCLUSION_SIZE": 0, "ROW_START": 0, "COLUMN_START": 0, "PATCH_LEN": s.patch_len,
    },
)  # fmt: skip
SAR_OF_MD = of_md("sar", "SAR", SAR=lambda s: {"RESET_CONSTANT_EM": s.reset_margin})
_PER_IMAGE = "we draw for each image of a view, they once per batch"
_NOISE = "a view's noise is drawn in the order of the memory: by arrival in our code, by class in theirs"
_STEPS = "the student predicts, and its steps by Adam on all parameters enlarge rounding"
_ROUNDING = "bfloat16 has 8 bits, and Adam's steps enlarge its rounding: the first prediction is the same"
_SURE_IMAGE = "the first step of AdamW has the size of its rate even if a sure image's gradient is only rounding"
_AT_THE_THRESHOLD = (
    "steps by Adam enlarge rounding, and an image that then enters or leaves the memory at the threshold changes each "
    "draw after it"
)
_OF_200 = {"update_frequency": 200, "memory_size": 100}
"""SoTTA's settings if both sides predict batches of 200 just before a step."""
_OF_1600 = {"stream_size": 1600}
_SHARES = partial(torch.softmax, dim=1)
_AS_THEIRS = {"augment_per": "batch"}
_ROID_AS_THEIRS = {**_AS_THEIRS, "prior_correction": "logits"}
_FEW_VIEWS = {"num_augmentations": 4}
_SHORT_WARM_UP = {"num_samples_warm_up": 2000}
_SMALL_STEPS = {**_SHORT_WARM_UP, **_AS_THEIRS, "optimizer": "sgd", "lr": 0.001}
_DIVERGENCE = (
    "our divergence is the mean over classes, and source moments use labels; theirs is the exponential of the mean "
    "distance, and moments use predictions"
)
_ONCE_A_BATCH = {"update_frequency": 200}
_NO_SMALL_DIFFERENCE = {**_ONCE_A_BATCH, **_AS_THEIRS, "nu": 0.1}
"""Settings with a teacher that follows so fast that the student's learning shows in the predictions."""

_ZOA_OF_VIT = {
    "fitness_lambda": 30.0, "lr": 5e-4, "perturbation_scale": 0.02, "shift_threshold": 0.1, "source_size": 2000
}  # fmt: skip
"""ZOA's settings for a ViT, on all images of the source."""


_TOP_OF_NAMES = {"frozen_layers": tuple(f"tower.network.blocks.{number}" for number in (9, 10, 11))}
"""What the names in MD's code, and in TTABC's, match in CLIP models: not the norm layer after the blocks."""


def _clip_of_vit(network: nn.Module) -> nn.Module:
    return as_clip(vit(network), scale=50.0)


@contextmanager
def _memory_by_class_and_images_passed() -> Iterator[None]:
    with patch.object(BalancedBank, "images", images_by_class), patch.object(Petta, "_view", view_after_images):
        yield


COMPARISONS: Sequence[Comparison] = (
    Comparison(title="source", method="source", repository=MD, theirs=of_md("source", "Source")),
    Comparison(title="norm", method="norm", repository=MD, theirs=of_md("norm", "BNTest")),
    Comparison(
        title="norm, bfloat16", method="norm", repository=MD, theirs=of_md("norm", "BNTest"), network=InBfloat16
    ),
    Comparison(
        title="bn_alpha", method="bn_alpha", repository=MD,
        theirs=of_md("norm", "BNAlpha", BN=lambda s: {"ALPHA": s.alpha}),
    ),
    Comparison(title="bn_ema", method="bn_ema", repository=MD, theirs=of_md("norm", "BNEMA")),
    Comparison(title="tent", method="tent", repository="DequanWang/tent", theirs=tent),
    Comparison(
        title="tent, two steps", method="tent", repository="DequanWang/tent", theirs=tent, changes={"steps": 2}
    ),
    Comparison(
        title="tent, bfloat16", method="tent", repository="DequanWang/tent", theirs=tent, network=InBfloat16,
        reason=_ROUNDING, shown_by="tent",
    ),
    Comparison(title="rpl", method="rpl", repository=MD, theirs=of_md("rpl", "RPL", RPL=lambda s: {"Q": s.q})),
    Comparison(title="eta", method="eta", repository="mr-eggplant/EATA", theirs=eta_of_eata),
    Comparison(title="eata", method="eata", repository=MD, theirs=of_md("eata", "EATA")),
    Comparison(
        title="eata, two steps", method="eata", repository=MD, theirs=of_md("eata", "EATA"), changes={"steps": 2}
    ),
    Comparison(
        title="eata, bfloat16", method="eata", repository=MD, theirs=of_md("eata", "EATA"), network=InBfloat16,
        reason=_ROUNDING, shown_by="eata",
    ),
    Comparison(
        title="rdumb", method="rdumb", repository="oripress/CCC", theirs=rdumb,
        changes={"optimizer": "sgd", "lr": 2.5e-4, "reset_every": 5},
    ),
    Comparison(
        title="asr", method="asr", repository="YonseiML/asr", theirs=asr, changes={"asr_alpha": 0.81}
    ),
    Comparison(
        title="asr, another share", method="asr", repository="YonseiML/asr", theirs=asr,
        changes={"asr_alpha": 0.81, "asr_r_0": 0.2, "asr_lambda_r": 2.0},
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
    Comparison(title="deyo", method="deyo", repository=MD, theirs=DEYO_OF_MD),
    Comparison(title="zerosiam", method="zerosiam", repository="Cascol-Chen/ZeroSiam", theirs=zerosiam),
    Comparison(
        title="rem", method="rem", repository="pilsHan/rem", theirs=rem_of_script, network=vit,
        reason="their code wraps the network before it looks for the last norm layer by name, so this layer adapts",
        shown_by="rem, not wrapped",
    ),
    Comparison(title="rem, not wrapped", method="rem", repository="pilsHan/rem", theirs=rem, network=vit),
    Comparison(
        title="shot_im", method="shot_im", repository="MotasemAlfarra/Online_Test_Time_Adaptation", theirs=shot_im,
        reason="steps by Adam on all parameters enlarge rounding", shown_by="shot_im, small steps",
    ),
    Comparison(
        title="shot_im, small steps", method="shot_im", repository="MotasemAlfarra/Online_Test_Time_Adaptation",
        theirs=shot_im, changes={"optimizer": "sgd", "lr": 0.001},
    ),
    Comparison(
        title="shot_im, norm layers", method="shot_im", repository="MotasemAlfarra/Online_Test_Time_Adaptation",
        theirs=shot_im_of_norm_layers, changes={"params": "norm", "optimizer": "sgd", "lr": 0.01},
    ),
    Comparison(title="ostta", method="ostta", repository="gaozhengqing/UniEnt", theirs=ostta),
    Comparison(
        title="ostta, hard split", method="ostta", repository="gaozhengqing/UniEnt", theirs=ostta,
        changes={"split": "hard"},
    ),
    Comparison(title="unient", method="unient", repository="gaozhengqing/UniEnt", theirs=unient),
    Comparison(
        title="unient, soft split", method="unient", repository="gaozhengqing/UniEnt", theirs=unient,
        changes={"split": "soft", "unknown_weight": 0.2},
    ),
    Comparison(
        title="unient, reliable samples", method="unient", repository="gaozhengqing/UniEnt", theirs=unient_of_eata,
        changes={"adapt_on": "reliable"},
    ),
    Comparison(
        title="unient, reliable samples, soft split", method="unient", repository="gaozhengqing/UniEnt",
        theirs=unient_of_eata, changes={"adapt_on": "reliable", "split": "soft", "unknown_weight": 0.2},
    ),
    Comparison(
        title="sotta", method="sotta", repository="taeckyung/SoTTA", theirs=sotta, changes=_OF_200,
        reason=_AT_THE_THRESHOLD, shown_by="sotta, small steps",
    ),
    Comparison(
        title="sotta, small steps", method="sotta", repository="taeckyung/SoTTA", theirs=sotta,
        changes={**_OF_200, "lr": 1e-5},
    ),
    Comparison(
        title="sotta, small steps, many sure images", method="sotta", repository="taeckyung/SoTTA", theirs=sotta,
        changes={**_OF_200, "lr": 1e-5, "threshold": 0.5},
    ),
    Comparison(
        title="imse", method="imse", repository="baek85/IMSE", theirs=imse, network=vit, changes={"e_margin": 0.9}
    ),
    Comparison(title="fozo", method="fozo", repository="eVI-group-SCU/FOZO", theirs=fozo, network=vit),
    Comparison(
        title="fozo, two directions", method="fozo", repository="eVI-group-SCU/FOZO", theirs=fozo, network=vit,
        changes={"num_directions": 2, "lr": 0.01},
    ),
    Comparison(
        title="dpcore", method="dpcore", repository="zybeich/DPCore", theirs=dpcore, network=vit, order=in_turns,
        changes={"steps": 10, "temperature": 0.1, "reuse_threshold": 0.9},
    ),
    Comparison(title="lame", method="lame", repository=MD, theirs=lame, as_theirs=torch.exp),
    Comparison(
        title="lame, its own program", method="lame", repository="fiveai/LAME", theirs=lame_of_lame,
        as_theirs=torch.exp,
    ),
    Comparison(title="t3a", method="t3a", repository="matsuolab/T3A", theirs=t3a),
    Comparison(title="neo", method="neo", repository="awesomealex1/NEO", theirs=neo),
    Comparison(
        title="zoa", method="zoa", repository="DengZeshuai/ZOA", theirs=zoa, network=vit, changes=_ZOA_OF_VIT
    ),
    Comparison(
        title="zoa, two directions, few domains", method="zoa", repository="DengZeshuai/ZOA", theirs=zoa, network=vit,
        changes={**_ZOA_OF_VIT, "lr": 0.005, "num_directions": 2, "max_domains": 2},
    ),
    Comparison(
        title="zoa, a ResNet", method="zoa", repository="DengZeshuai/ZOA", theirs=zoa_of_resnet, network=bottlenecks,
        changes={"source_size": 2000},
        reason="their features shift to the source's mean of the last feature alone, and the source begins a domain",
        shown_by="zoa, a ResNet, the source's mean",
    ),
    Comparison(
        title="zoa, a ResNet, the source's mean", method="zoa", repository="DengZeshuai/ZOA",
        theirs=zoa_of_resnet_with_source_mean, network=bottlenecks, changes={"source_size": 2000},
    ),
    Comparison(title="tda", method="tda", repository="kdiAAA/TDA", theirs=tda, network=as_clip),
    Comparison(
        title="bca", method="bca", repository="walawalagoose/TTABC", theirs=bca, network=as_clip, as_theirs=torch.exp,
        reason="an image enters the nearest embedding; theirs takes the embedding of the predicted class",
        shown_by="bca, nearest embedding",
    ),
    Comparison(
        title="bca, nearest embedding", method="bca", repository="walawalagoose/TTABC",
        theirs=bca_with_nearest_embedding, network=as_clip, as_theirs=torch.exp,
    ),
    Comparison(
        title="zero", method="zero", repository="FarinaMatteo/zero", theirs=zero, network=as_clip,
        num_images=400,
    ),
    Comparison(
        title="tpt", method="tpt", repository="azshue/TPT", theirs=tpt, network=as_clip, num_images=400,
        reason=_SURE_IMAGE, shown_by="tpt, less sure",
    ),
    Comparison(
        title="tpt, less sure", method="tpt", repository="azshue/TPT", theirs=tpt, network=partial(as_clip, scale=10.0),
        num_images=400,
    ),
    Comparison(
        title="mta", method="mta", repository="MaxZanella/MTA", theirs=mta, network=as_clip, num_images=400
    ),
    Comparison(
        title="onzeta", method="onzeta", repository="idstcv/OnZeta", theirs=onzeta, network=as_clip,
        as_theirs=torch.exp, changes=_OF_1600, num_images=1600,
        reason="first steps of these sizes enlarge rounding", shown_by="onzeta, small steps",
    ),
    Comparison(
        title="onzeta, small steps", method="onzeta", repository="idstcv/OnZeta", theirs=onzeta, network=as_clip,
        as_theirs=torch.exp, changes={**_OF_1600, "proxy_lr": 0.05, "dual_lr": 1.0}, num_images=1600,
    ),
    Comparison(
        title="tps", method="tps", repository="elaine-sui/TPS", theirs=tps, network=as_clip, num_images=400,
        reason=_SURE_IMAGE, shown_by="tps, less sure",
    ),
    Comparison(
        title="tps, less sure", method="tps", repository="elaine-sui/TPS", theirs=tps,
        network=partial(as_clip, scale=10.0), num_images=400,
    ),
    Comparison(
        title="ctpt", method="ctpt", repository="hee-suk-yoon/C-TPT", theirs=ctpt, network=as_clip, num_images=400
    ),
    Comparison(
        title="oga", method="oga", repository="cfuchs2023/OGA", theirs=oga, network=as_clip, as_theirs=_SHARES,
        reason="their cache is in float16", shown_by="oga, cache in float32",
    ),
    Comparison(
        title="oga, cache in float32", method="oga", repository="cfuchs2023/OGA", theirs=oga_in_float32,
        network=as_clip, as_theirs=_SHARES,
    ),
    Comparison(
        title="oga, larger cache in float32", method="oga", repository="cfuchs2023/OGA", theirs=oga_in_float32,
        network=as_clip, as_theirs=_SHARES, changes={"cache_size": 40},
    ),
    Comparison(
        title="ecalp", method="ecalp", repository="Yushu-Li/ECALP", theirs=ecalp, network=as_clip, as_theirs=_SHARES,
        num_images=800, shown_by="ecalp, first of equals",
        reason="of an image and its copy, which are equally near, their code takes either as neighbour, by chance",
    ),
    Comparison(
        title="ecalp, first of equals", method="ecalp", repository="Yushu-Li/ECALP", network=as_clip,
        theirs=ecalp_with_first_of_equals, as_theirs=_SHARES, num_images=800,
    ),
    Comparison(
        title="boostadapter", method="boostadapter", repository="taolinzhang/BoostAdapter", theirs=boostadapter,
        network=as_clip, num_images=400,
    ),
    Comparison(
        title="stata", method="stata", repository="MaxZanella/StatA", theirs=stata, network=as_clip, as_theirs=_SHARES
    ),
    Comparison(
        title="batclip", method="batclip", repository="sarthaxxxxx/BATCLIP", theirs=batclip,
        network=partial(as_clip, words=WordsThroughNorm),
    ),
    Comparison(
        title="tent, a CLIP", method="tent", repository=MD, theirs=of_md("tent", "Tent"), network=_clip_of_vit
    ),
    Comparison(
        title="sar, a CLIP", method="sar", repository=MD, theirs=SAR_OF_MD, network=_clip_of_vit,
        changes=_TOP_OF_NAMES,
    ),
    Comparison(
        title="deyo, a CLIP", method="deyo", repository=MD, theirs=DEYO_OF_MD, network=_clip_of_vit,
        changes={**_TOP_OF_NAMES, "plpd_threshold": 0.0},
    ),
    Comparison(title="ttaug", method="ttaug", repository=MD, theirs=image_by_image("ttaug", "TTAug"), num_images=100),
    Comparison(title="memo", method="memo", repository=MD, theirs=image_by_image("memo", "MEMO"), num_images=100),
    Comparison(
        title="cotta", method="cotta", draws_differ=True,
        repository=MD, theirs=COTTA, changes=_FEW_VIEWS, reason=_PER_IMAGE,
        shown_by="cotta, augment_per: batch",
    ),
    Comparison(
        title="cotta, augment_per: batch",
        method="cotta", repository=MD, theirs=COTTA, changes={**_FEW_VIEWS, **_AS_THEIRS}
    ),
    Comparison(
        title="rotta", method="rotta", draws_differ=True,
        repository="BIT-DA/RoTTA", theirs=rotta, reason=f"{_PER_IMAGE}; {_NOISE}",
        shown_by="rotta, augment_per: batch, memory by class",
    ),
    Comparison(
        title="rotta, augment_per: batch", method="rotta", repository="BIT-DA/RoTTA", theirs=rotta, changes=_AS_THEIRS,
        reason=_NOISE, shown_by="rotta, augment_per: batch, memory by class",
    ),
    Comparison(
        title="rotta, augment_per: batch, memory by class", method="rotta", repository="BIT-DA/RoTTA", theirs=rotta,
        changes=_AS_THEIRS, within=partial(patch.object, BalancedBank, "images", images_by_class),
    ),
    Comparison(
        title="petta", method="petta", draws_differ=True,
        repository="hthieu166/petta", theirs=petta, changes=_ONCE_A_BATCH,
        reason=f"{_PER_IMAGE}; {_NOISE}; {_DIVERGENCE}",
        shown_by="petta, augment_per: batch, memory and divergence by class",
    ),
    Comparison(
        title="petta, augment_per: batch, memory and divergence by class", method="petta", repository="hthieu166/petta",
        theirs=petta_with_divergence_of_each_class, changes=_NO_SMALL_DIFFERENCE,
        within=partial(patch.object, BalancedBank, "images", images_by_class),
    ),
    Comparison(
        title="petta, not symmetric", method="petta", repository="hthieu166/petta",
        theirs=petta_with_divergence_of_each_class, changes={**_NO_SMALL_DIFFERENCE, "symmetric": False},
        within=partial(patch.object, BalancedBank, "images", images_by_class),
        reason="their student also passes the images without a view, only for its statistics",
        shown_by="petta, not symmetric, images passed",
    ),
    Comparison(
        title="petta, not symmetric, images passed", method="petta", repository="hthieu166/petta",
        theirs=petta_with_divergence_of_each_class, changes={**_NO_SMALL_DIFFERENCE, "symmetric": False},
        within=_memory_by_class_and_images_passed,
    ),
    Comparison(
        title="roid", method="roid",
        repository=MD, theirs=ROID,
        reason=f"{_PER_IMAGE}; we multiply probabilities by the prior, they multiply logits",
        shown_by="roid, augment_per: batch",
    ),
    Comparison(
        title="roid, prior as theirs", method="roid", draws_differ=True, repository=MD, theirs=ROID,
        changes={"prior_correction": "logits"}, reason=_PER_IMAGE, shown_by="roid, augment_per: batch",
    ),
    Comparison(title="roid, augment_per: batch", method="roid", repository=MD, theirs=ROID, changes=_ROID_AS_THEIRS),
    Comparison(
        title="cmf", method="cmf",
        repository=MD, theirs=CMF,
        reason=f"{_PER_IMAGE}; we multiply probabilities by the prior, they multiply logits",
        shown_by="cmf, augment_per: batch",
    ),
    Comparison(
        title="cmf, prior as theirs", method="cmf", draws_differ=True, repository=MD, theirs=CMF,
        changes={"prior_correction": "logits"}, reason=_PER_IMAGE, shown_by="cmf, augment_per: batch",
    ),
    Comparison(title="cmf, augment_per: batch", method="cmf", repository=MD, theirs=CMF, changes=_ROID_AS_THEIRS),
    Comparison(
        title="roid, three times the rate", method="roid", repository=MD, theirs=ROID,
        changes={**_ROID_AS_THEIRS, "lr": 0.003},
    ),
    Comparison(
        title="cmf, away from roid", method="cmf", repository=MD, theirs=CMF,
        changes={**_ROID_AS_THEIRS, "lr": 0.003, "alpha": 0.5, "gamma": 0.5, "q": 5.0},
    ),
    Comparison(
        title="adacontrast", method="adacontrast", repository=MD, theirs=adacontrast,
        reason="their code puts the labels of a batch into its queue before the loss, and masks the keys they replace",
        shown_by="adacontrast, labels entered after the loss",
    ),
    Comparison(
        title="adacontrast, labels entered after the loss", method="adacontrast", repository=MD,
        theirs=adacontrast_with_labels_later,
    ),
    Comparison(
        title="rmt", method="rmt", draws_differ=True,
        repository=MD, theirs=rmt, changes=_SHORT_WARM_UP, reason=f"{_PER_IMAGE}; {_STEPS}",
        shown_by="rmt, augment_per: batch, small steps",
    ),
    Comparison(
        title="rmt, augment_per: batch",
        method="rmt", repository=MD, theirs=rmt, changes={**_SHORT_WARM_UP, **_AS_THEIRS},
        reason=_STEPS, shown_by="rmt, augment_per: batch, small steps",
    ),
    Comparison(
        title="rmt, augment_per: batch, small steps", method="rmt", repository=MD, theirs=rmt,
        changes=_SMALL_STEPS,
    ),
    Comparison(
        title="rmt, part of a pass", method="rmt", repository=MD, theirs=rmt,
        changes={**_SMALL_STEPS, "num_samples_warm_up": 2600},
        reason=(
            "their code goes on with the source images after those of the warm-up; when it reads the warm-up from a "
            "file, as in each later run, it begins with the first, as we always do"
        ),
        shown_by="rmt, part of a pass, from a file",
    ),
    Comparison(
        title="rmt, part of a pass, from a file", method="rmt", repository=MD, theirs=rmt_with_warm_up_of_a_file,
        changes={**_SMALL_STEPS, "num_samples_warm_up": 2600},
    ),
)  # fmt: skip
"""Every comparison; a comparison with a reason is followed by one in which the reason is removed."""

NOT_COMPARED: Mapping[str, str] = {
    "foa": "its code is not free, so nothing here uses it. By hand, on a small ViT with random weights and the same "
    "candidates: 0 of 2,560 predictions differ (constants from mr-eggplant/FOA, `004b02d`)",
    "spa": "its code is not free either. By hand, with the same draws: 0 of 640 predictions differ (constants from "
    "mr-eggplant/SPA, `b4a66ea`)",
    "zero_shot": "it is the model itself",
    "combinations": "`params` last, all, lora and adapters, `loss` gce and `reset` with other bases than in the table: "
    "no program has them, and tests compare the parts with second implementations",
    "fp16": "no program trains in it on a CPU",
    "views": "both sides use our views if a loader makes them (AdaContrast, MEMO, TTAug, ZERO, TPT); tests compare "
    "each transform with torchvision or the formula",
}
"""Methods and parts without a comparison, methods first, and the current state of each."""
