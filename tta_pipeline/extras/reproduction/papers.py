"""The papers of the methods, for citations."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A publication; `authors` begins with the first author, as in a BibTeX entry."""

    authors: str
    title: str
    venue: str
    year: int
    arxiv: str | None = None

    def bibtex(self, key: str) -> str:
        """Return a BibTeX entry with the key *key*."""
        fields = {"author": self.authors, "title": f"{{{self.title}}}", "booktitle": self.venue, "year": str(self.year)}
        fields |= {"eprint": self.arxiv, "archiveprefix": "arXiv"} if self.arxiv else {}
        return (
            f"@inproceedings{{{key},\n"
            + "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
            + "}\n"
        )


_SCHNEIDER = Paper(
    authors="Schneider, Steffen and others", venue="NeurIPS", year=2020, arxiv="2006.16971",
    title="Improving robustness against common corruptions by covariate shift adaptation",
)  # fmt: skip
_MEMO = Paper(
    authors="Zhang, Marvin and others", venue="NeurIPS", year=2022, arxiv="2110.09506",
    title="MEMO: Test Time Robustness via Adaptation and Augmentation",
)  # fmt: skip
_EATA = Paper(
    authors="Niu, Shuaicheng and others", venue="ICML", year=2022, arxiv="2204.02610",
    title="Efficient Test-Time Model Adaptation without Forgetting",
)  # fmt: skip
PAPERS = {
    "norm": _SCHNEIDER,
    "bn_alpha": _SCHNEIDER,
    "tent": Paper(
        authors="Wang, Dequan and others", venue="ICLR", year=2021, arxiv="2006.10726",
        title="Tent: Fully Test-Time Adaptation by Entropy Minimization",
    ),
    "come": Paper(
        authors="Zhang, Qingyang and others", venue="ICLR", year=2025,
        title="COME: Test-time adaption by conservatively minimizing entropy",
    ),
    "rpl": Paper(
        authors="Rusak, Evgenia and others", venue="TMLR", year=2022, arxiv="2104.12928",
        title="If your data distribution shifts, use self-learning",
    ),
    "eta": _EATA,
    "eata": _EATA,
    "rdumb": Paper(
        authors="Press, Ori and others", venue="NeurIPS", year=2023, arxiv="2306.05401",
        title="RDumb: A simple approach that questions our progress in continual test-time adaptation",
    ),
    "asr": Paper(
        authors="Lim and others", venue="ICLR", year=2026,
        title="When and where to reset matters for long-term test-time adaptation",
    ),
    "sar": Paper(
        authors="Niu, Shuaicheng and others", venue="ICLR", year=2023, arxiv="2302.12400",
        title="Towards Stable Test-Time Adaptation in Dynamic Wild World",
    ),
    "deyo": Paper(
        authors="Lee, Jonghyun and others", venue="ICLR", year=2024, arxiv="2403.07366",
        title="Entropy is not Enough for Test-Time Adaptation: From the Perspective of Disentangled Factors",
    ),
    "lame": Paper(
        authors="Boudiaf, Malik and others", venue="CVPR", year=2022, arxiv="2201.05718",
        title="Parameter-free Online Test-time Adaptation",
    ),
    "t3a": Paper(
        authors="Iwasawa, Yusuke and Matsuo, Yutaka", venue="NeurIPS", year=2021,
        title="Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization",
    ),
    "neo": Paper(
        authors="Murphy and others", venue="ICLR", year=2026,
        title="NEO: No-optimization test-time adaptation through latent re-centering",
    ),
    "ttaug": _MEMO,
    "memo": _MEMO,
    "cotta": Paper(
        authors="Wang, Qin and others", venue="CVPR", year=2022, arxiv="2203.13591",
        title="Continual Test-Time Domain Adaptation",
    ),
    "rotta": Paper(
        authors="Yuan, Longhui and others", venue="CVPR", year=2023, arxiv="2303.13899",
        title="Robust Test-Time Adaptation in Dynamic Scenarios",
    ),
    "petta": Paper(
        authors="Hoang, Trung-Hieu and others", venue="NeurIPS", year=2024,
        title="Persistent test-time adaptation in recurring testing scenarios",
    ),
    "roid": Paper(
        authors="Marsden, Robert A. and others", venue="WACV", year=2024, arxiv="2306.00650",
        title="Universal Test-time Adaptation through Weight Ensembling, Diversity Weighting, and Prior Correction",
    ),
    "cmf": Paper(
        authors="Lee, Jae-Hong and Chang, Joon-Hyuk", venue="ICLR", year=2024,
        title="Continual Momentum Filtering on Parameter Space for Online Test-time Adaptation",
    ),
    "adacontrast": Paper(
        authors="Chen, Dian and others", venue="CVPR", year=2022, arxiv="2204.10377",
        title="Contrastive Test-Time Adaptation",
    ),
    "rmt": Paper(
        authors='D{\\"o}bler, Mario and others', venue="CVPR", year=2023, arxiv="2211.13081",
        title="Robust Mean Teacher for Continual and Gradual Test-Time Adaptation",
    ),
    "foa": Paper(
        authors="Niu, Shuaicheng and others", venue="ICML", year=2024, arxiv="2404.01650",
        title="Test-Time Model Adaptation with Only Forward Passes",
    ),
    "spa": Paper(authors="Niu and others", venue="ICML", year=2025, arxiv="2504.08010",
                 title="Self-Bootstrapping for Versatile Test-Time Adaptation"),
    "rem": Paper(authors="Han and others", venue="ICML", year=2025, arxiv="2505.16441",
                 title="Ranked Entropy Minimization for Continual Test-Time Adaptation"),
    "zerosiam": Paper(authors="Chen and others", venue="ICLR", year=2026, arxiv="2509.23183",
                      title="ZeroSiam: An efficient asymmetry for test-time entropy optimization without collapse"),
    "tda": Paper(
        authors="Karmanov, Adilbek and others", venue="CVPR", year=2024, arxiv="2403.18293",
        title="Efficient Test-Time Adaptation of Vision-Language Models",
    ),
    "zero": Paper(
        authors="Farina, Matteo and others", venue="NeurIPS", year=2024, arxiv="2405.18330",
        title="Frustratingly Easy Test-Time Adaptation of Vision-Language Models",
    ),
    "tpt": Paper(
        authors="Shu, Manli and others", venue="NeurIPS", year=2022, arxiv="2209.07511",
        title="Test-Time Prompt Tuning for Zero-Shot Generalization in Vision-Language Models",
    ),
    "bca": Paper(
        authors="Zhou and others", venue="CVPR", year=2025,
        title="Bayesian Test-Time Adaptation for Vision-Language Models",
    ),
}  # fmt: skip
"""Papers by method; `source`, `zero_shot` and `bn_ema` have no paper of their own."""
