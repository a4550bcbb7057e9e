"""The comparison with authors' code finds what is equal, what is not, and what is not there."""

import csv
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from bench.parity.__main__ import STEP, choose, describe_scene, find_clones, main
from bench.parity.__main__ import run as run_all
from bench.parity.adapters import tent
from bench.parity.cifar import vit
from bench.parity.clip import as_clip
from bench.parity.comparison import Agreement, Comparison, Scene, unexplained_titles
from bench.parity.comparisons import COMMITS, COMPARISONS, NOT_COMPARED
from bench.parity.orders import ROWS, of_ours, of_rotta
from bench.parity.orders import main as compare_orders
from bench.parity.page import COLUMNS, data_rows, describe_seeds, document, row
from bench.result_pages import RESULTS, csv_text, read_data
from tta_pipeline.methods import METHODS
from tta_pipeline_tests.methods.models import NUM_CLASSES, batch_norm_model, contrasts, source_batches, surer

TENT = """
import helper
import torch
from torch import nn


def configure_model(model):
    model.requires_grad_(False)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.requires_grad_(True)
            layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
    return model


def collect_params(model):
    return [p for p in model.parameters() if p.requires_grad], []


class Tent(nn.Module):
    def __init__(self, model, optimizer, steps):
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def forward(self, images):
        logits = self.model(images)
        (helper.entropy(logits).mean() * FACTOR + torch.zeros(()).cuda()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return logits
"""
HELPER = "def entropy(x):\n    return -(x.softmax(1) * x.log_softmax(1)).sum(1)\n"
PLAIN = Comparison(
    title="tent", method="tent", repository="someone/tent", theirs=tent, changes={"optimizer": "sgd", "lr": 0.05}
)


def run(comparisons: list[Comparison], scene: Scene, clones: Path) -> dict[str, Agreement]:
    """Return the agreements by title; the clone is `tent` in the folder *clones*."""
    return dict(run_all(comparisons, scene, {PLAIN.repository: clones / "tent"}))


@pytest.fixture
def scene() -> Scene:
    """A few small batches, and a small model that is sure of some of them."""
    generator = torch.Generator().manual_seed(0)
    stream = [(images, torch.randint(NUM_CLASSES, (len(images),), generator=generator)) for images in contrasts()]
    return Scene(
        network=surer(batch_norm_model()), num_classes=NUM_CLASSES, stream=stream, source_data=source_batches()
    )


@pytest.fixture
def authors(tmp_path: Path) -> Callable[[str], Path]:
    """A folder with a second implementation of Tent, whose loss has a factor."""

    def folder(factor: str) -> Path:
        (tmp_path / "tent").mkdir()
        (tmp_path / "tent" / "tent.py").write_text(TENT.replace("FACTOR", factor))
        (tmp_path / "tent" / "helper.py").write_text(HELPER)
        return tmp_path

    return folder


def test_a_second_implementation_is_equal(scene: Scene, authors):
    """Over all batches, though it imports a module beside it and asks for CUDA; errors are those of the labels."""
    found = run([PLAIN], scene, authors("1"))["tent"]

    assert found.is_equal
    assert (80, 0) == (found.num_images, found.num_differing)
    assert found.logit_difference < 1e-4
    assert 0.3 < found.our_error == found.their_error < 1
    assert [] == unexplained_titles({"tent": found}, [PLAIN])


def test_a_comparison_may_have_a_network_of_its_own(scene: Scene, authors):
    """Both sides get it, and not that of the scene, which the method would refuse."""
    own = replace(PLAIN, network=lambda _: surer(batch_norm_model()))
    without_norm = replace(scene, network=nn.Flatten())

    assert run([own], without_norm, authors("1"))["tent"].is_equal


def test_a_clip_is_made_of_the_network():
    """Its features are those before the last layer, and its classes the rows of that layer, as directions."""
    network, (images,) = batch_norm_model().eval(), contrasts(num_batches=1)
    clip = as_clip(network, scale=7.0)
    directions = normalize(network[:-1](images), dim=1), normalize(network[-1].weight, dim=1)

    torch.testing.assert_close(7 * directions[0] @ directions[1].T, clip(images), rtol=0, atol=1e-5)


def test_the_vit_is_the_same_each_time():
    """Its weights do not depend on what was drawn before, nor does making it change what is drawn next."""
    torch.manual_seed(1)
    first, following = vit(nn.Identity()), torch.rand(1)
    torch.manual_seed(1)

    assert following == torch.rand(1)
    torch.testing.assert_close(first.state_dict(), vit(nn.Identity()).state_dict(), rtol=0, atol=0)


def test_another_step_is_found(scene: Scene, authors):
    """A tenth more of the gradient is a difference without a reason."""
    found = run([PLAIN], scene, authors("1.1"))

    assert not found["tent"].is_equal
    assert ["tent"] == unexplained_titles(found, [PLAIN])


def test_a_reason_is_a_reason_only_if_nothing_differs_without_it(scene: Scene, authors):
    """The comparison without the reason must be there, and be equal."""
    slower = {**PLAIN.changes, "lr": 0.055}
    explained = replace(PLAIN, title="slower", changes=slower, reason="another rate", shown_by="tent")
    wrongly = replace(explained, shown_by="slower")
    comparisons = [explained, PLAIN]
    theirs = authors("1")
    # The rate of their optimiser follows ours, so that the factor of the loss is the difference.
    (theirs / "tent" / "tent.py").write_text(
        TENT.replace("FACTOR", "(1 if self.optimizer.param_groups[0]['lr'] == 0.05 else 2)")
    )
    found = run(comparisons, scene, theirs)

    assert [False, True] == [found[each.title].is_equal for each in comparisons]
    assert [] == unexplained_titles(found, comparisons)
    assert ["slower"] == unexplained_titles(found, [wrongly])
    assert ["slower"] == unexplained_titles({"slower": found["slower"]}, [explained])


def test_what_is_not_there_is_left_out_by_name():
    """Nothing is wrong, and the page names it."""
    page = document([PLAIN], [], scene="A scene.")

    assert [] == unexplained_titles({}, [PLAIN])
    assert "left out, since there was no clone: `tent` (someone/tent)" in page


def test_their_code_is_not_heard(scene: Scene, authors, capfd: pytest.CaptureFixture[str]):
    """What it prints, logs or warns about is dropped, and its errors are not."""
    clones = authors("1")
    helper = clones / "tent" / "helper.py"
    noise = "import logging, warnings\nprint('!')\nwarnings.warn('!')\nlogging.warning('!')\n"
    helper.write_text(noise + HELPER)
    run([PLAIN], scene, clones)
    helper.write_text(f"raise OSError('heard')\n{HELPER}")

    assert ("", "") == capfd.readouterr()
    with pytest.raises(OSError, match="heard"):
        run([PLAIN], scene, clones)


def test_rows_are_chosen_by_method_or_title():
    """A method has all of its rows; a title has its own, and the one that shows its reason."""
    assert {"sar", "sar+come", "sar, forced resets"} <= {each.title for each in choose(["sar"])}
    assert ["rotta, augment_per: batch", "rotta, augment_per: batch, memory by class"] == [
        each.title for each in choose(["rotta, augment_per: batch"])
    ]
    assert COMPARISONS == tuple(choose([]))
    with pytest.raises(ValueError, match=r"'sra'.*docs/results/parity\.md"):
        choose(["sra"])


def test_a_clone_is_known_by_its_name_or_is_that_of_the_first_row(tmp_path: Path):
    """A folder of clones serves every row, and one clone the rows of its repository."""
    chosen = choose(["sar"])
    for name in ("COME", "mine"):
        (tmp_path / name).mkdir()

    assert {"BlueWhaleLab/COME": tmp_path / "COME"} == find_clones(chosen, authors=None, clone=tmp_path / "COME")
    assert {"mr-eggplant/SAR": tmp_path / "mine"} == find_clones(chosen, authors=None, clone=tmp_path / "mine")
    assert {"BlueWhaleLab/COME": tmp_path / "COME"} == find_clones(chosen, authors=tmp_path, clone=None)
    with pytest.raises(ValueError, match=r"--clone .*/absent\b.*mr-eggplant/SAR"):
        find_clones(chosen, authors=None, clone=tmp_path / "absent")


def test_without_a_clone_the_command_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """It names the listed commit, and ends with status 2."""
    assert 2 == main(["tent", "--cifar", str(tmp_path)])
    said = capsys.readouterr().err

    assert f"https://github.com/DequanWang/tent && git -C tent checkout {COMMITS['DequanWang/tent']}" in said


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["tent", "--output", "page.md"], "for the whole page"),
        (["--images", "900"], "a multiple of 800"),
        (["--seeds", "1"], "at least 2"),
        (["tetn"], "expected a method or title"),
    ],
)
def test_a_part_of_the_page_is_never_written(wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    """And other options that make no sense are refused before anything runs."""
    with pytest.raises(SystemExit):
        main([*wrong, "--cifar", "nowhere"])
    assert message in capsys.readouterr().err


def test_errors_over_seeds_are_compared_by_their_means():
    """Three seeds each; the standard error is that of the difference of two independent means."""
    agreements = [
        Agreement(
            num_images=100, num_differing=9, first_logit_difference=1, logit_difference=1, first_largest_logit=1,
            our_error=ours / 100, their_error=theirs / 100, num_resets=0,
        )
        for ours, theirs in ((30, 32), (31, 33), (32, 37))
    ]  # fmt: skip

    assert describe_seeds("roid", agreements) == (
        "- roid, 3 seeds, 100 images: our error 31.00 ± 1.00 %, theirs 34.00 ± 2.65 %; the means differ by -3.00, "
        "with a standard error of 1.63"
    )


def test_the_page_says_what_was_found():
    """A row for each comparison; its reason and the commit of its code are in the data."""
    found = Agreement(
        num_images=1600, num_differing=3, first_logit_difference=0.25, logit_difference=2, first_largest_logit=20,
        our_error=0.255, their_error=0.25, num_resets=2,
    )  # fmt: skip
    explained = replace(PLAIN, reason="another rate", shown_by="the same rate")
    wrongly = replace(PLAIN, title="wrongly")
    both = dict.fromkeys(("tent", "wrongly"), found)
    data = csv_text(COLUMNS, data_rows([explained, wrongly], both, commits={"someone/tent": "abc"}))
    first, second = rows = list(csv.DictReader(data.splitlines()))
    page = document([explained, wrongly], rows, scene="A scene.")

    settings = "`optimizer` sgd, `lr` 0.05, 2 resets"
    assert ["tent", "someone/tent", "abc", settings, "1600", "3", "2e-01", "2e+00", "25.50", "25.00"] == (
        list(first.values())[:10]
    )
    assert ["differs, explained", "another rate", "the same rate"] == list(first.values())[10:]
    assert ["**differs**", "", ""] == list(second.values())[10:]
    assert "| tent | 1,600 | 3 | 25.50 | 25.00 | differs |" in page
    assert "| wrongly | 1,600 | 3 | 25.50 | 25.00 | **differs** |" in page
    assert "0 of 2 comparisons agree" in page
    assert f"| tent | someone/tent | {settings} | 1,600 | 3 | 2e-01 | 2e+00 | 25.50 | 25.00 | differs, explained |" == (
        row(explained, found)
    )


def test_the_committed_page_is_of_this_program():
    """It follows from its data, which have each comparison; errors over seeds and orders are the page's own."""
    page, rows = (RESULTS / "parity.md").read_text(), read_data("parity")
    seeds = [" ".join(line.split()) for line in re.findall(r"^- .+, \d seeds, (?:.+\n)+?(?=- |\n)", page, re.MULTILINE)]
    (orders,) = re.findall(r"^\| sampler .*", page, re.MULTILINE | re.DOTALL)

    assert 3 == len(seeds)
    assert page == document(COMPARISONS, rows, scene=describe_scene(5 * STEP), over_seeds=seeds, orders=orders)
    assert list(COLUMNS) == list(rows[0])
    assert [(each.title, each.repository, each.reason, each.shown_by) for each in COMPARISONS] == [
        (each["comparison"], each["repository"], each["reason"], each["equal_without_it"]) for each in rows
    ]
    assert all(each["commit"].startswith(COMMITS[each["repository"]]) for each in rows)


def test_the_page_names_each_method_that_differs():
    """And so do its rows: a difference without a reason is never committed."""
    page = (RESULTS / "parity.md").read_text()
    reasons = page.partition("## Why some differ")[2].partition("## Setup")[0]

    assert all(f"`{each.method}`" in reasons for each in COMPARISONS if each.reason)
    assert {"equal", "differs, explained"} == {each["result"] for each in read_data("parity")}
    for sampler in ROWS:
        assert re.search(rf"^\| {sampler.title} \| `{sampler.repository}` \|", page, re.MULTILINE)
        assert f"- {sampler.title}: {sampler.reason}" in " ".join(page.split()) or not sampler.reason


SAMPLER = """
import numpy as np
from numpy.random import dirichlet


class LabelDirichletDomainSequence:
    def __init__(self, images, gamma, batch_size):
        self.labels = np.array([image.label for image in images if image.domain == 0])
        self.gamma, self.num_domains = gamma, len({image.domain for image in images})

    def __iter__(self):
        num_classes = len(set(self.labels.tolist()))
        for domain in range(self.num_domains):
            slots = [[] for _ in range(num_classes)]
            for label, shares in enumerate(dirichlet([self.gamma] * num_classes, num_classes)):
                own = np.flatnonzero(self.labels == label) + domain * len(self.labels)
                for slot, part in zip(slots, np.split(own, (np.cumsum(shares)[:-1] * len(own)).astype(int))):
                    slot.append(part.tolist())
            for slot in slots:
                for number in np.random.permutation(range(len(slot)))ORDER:
                    yield from slot[number]
"""


@pytest.mark.parametrize(("order", "is_equal"), [("", True), ("[::-1]", False)])
def test_a_second_sampler_is_equal_only_if_it_draws_alike(tmp_path: Path, order: str, *, is_equal: bool):
    """With the same numbers; each domain draws its own."""
    (tmp_path / "core" / "data").mkdir(parents=True)
    (tmp_path / "core" / "data" / "ttasampler.py").write_text(SAMPLER.replace("ORDER", order))
    labels = np.repeat(np.arange(5), 40)

    found = of_rotta(tmp_path, labels, delta=0.1)
    assert is_equal == bool((found == of_ours(labels, delta=0.1)).all())
    assert found[:200].tolist() != found[200:400].tolist()


def test_without_clones_no_order_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The command names what to clone, and ends with status 2."""
    assert 2 == compare_orders(["--authors", str(tmp_path)])
    assert COMMITS["BIT-DA/RoTTA"] in capsys.readouterr().err


def test_every_method_is_compared_or_is_said_not_to_be():
    """And each reason is shown by a comparison that is there, of the same method and code."""
    titles = {each.title: each for each in COMPARISONS}

    assert {each.repository for each in COMPARISONS} == set(COMMITS)
    assert set(METHODS) <= {each.method for each in COMPARISONS} | set(NOT_COMPARED)
    assert not {each.method for each in COMPARISONS} & set(NOT_COMPARED)
    assert len(COMPARISONS) == len(titles)
    for each in COMPARISONS:
        assert bool(each.reason) == bool(each.shown_by)
        if each.reason:
            without = titles[each.shown_by]
            assert (each.method, each.repository) == (without.method, without.repository)


def test_a_network_is_widened_without_a_change_of_its_logits(scene: Scene):
    """The outputs that are added are last, and no image gets them."""
    images = contrasts()[0]
    found = scene.with_outputs(12).network(images)

    torch.testing.assert_close(scene.network(images), found[:, :NUM_CLASSES])
    assert 12 == found.shape[1]
    assert (found[:, NUM_CLASSES:] == -20).all()
