"""The views answer what their comments say, and never put together what does not belong together."""

import itertools
import json
import math
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest

from tta_pipeline.domain.locations import Locations
from tta_pipeline.evaluation.calibration import calibration_bins
from tta_pipeline.results.evaluation_parts import SPEED_CONDITIONS
from tta_pipeline_tests.imagenet_c import COMMON_CORRUPTIONS, CORRUPTIONS, SEVERITIES
from tta_pipeline_tests.result_paths import remove_results
from tta_pipeline_tests.results.database.conftest import Ask
from tta_pipeline_tests.results.database.made import record, record_of_part, record_shard_set
from tta_pipeline_tests.results.database.trained import record_training, training_run


def record_grid(locations: Locations, *, error: float = 0.5, **changes: Any) -> None:
    """Record all 75 cells and clean images with half the error."""
    record(locations, corruption="clean", severity=0, error=error / 2, **changes)
    for corruption in COMMON_CORRUPTIONS:
        for severity in SEVERITIES:
            record(locations, corruption=corruption, severity=severity, error=error, **changes)


def test_several_seeds_are_one_experiment(locations: Locations, ask: Ask):
    """Mean and standard deviation are over the seeds' means over cells, and there is one line."""
    errors = {0: (0.2, 0.4), 1: (0.25, 0.5), 2: (0.1, 0.2)}
    for seed, (mild, severe) in errors.items():
        record(locations, seed=seed, severity=1, error=mild)
        record(locations, seed=seed, severity=5, error=severe)

    (row,) = ask("SELECT num_cells, num_runs, mean_error, sd_error, mean_error_at_5 FROM leaderboard")

    means = [fmean(pair) for pair in errors.values()]
    assert (2, 3) == row[:2]
    assert pytest.approx((fmean(means), stdev(means), fmean(severe for _, severe in errors.values()))) == row[2:]


def test_more_seeds_ask_for_no_more_cells(locations: Locations, ask: Ask):
    """Two cells are complete with two cells, each under two seeds."""
    for seed in (0, 1):
        for corruption in ("fog", "snow"):
            record(locations, seed=seed, corruption=corruption)

    assert [(2, 2, 2)] == ask("SELECT num_cells, num_cells_asked, num_runs FROM leaderboard")


@pytest.mark.parametrize(("num_seeds", "num_worst"), [(9, 0), (10, 1), (11, 2)])
def test_the_tail_is_the_worst_tenth_of_the_seeds(locations: Locations, ask: Ask, num_seeds: int, num_worst: int):
    """Rounded up; fewer than ten seeds have no tail."""
    for seed in range(num_seeds):
        record(locations, seed=seed, error=0.01 * (7 * seed % num_seeds))

    errors = sorted(error for (error,) in ask("SELECT error FROM evaluations WHERE counts"))
    expected = pytest.approx(fmean(errors[-num_worst:])) if num_worst else None
    assert [(num_seeds, expected)] == ask("SELECT num_runs, error_worst_10pct_seeds FROM leaderboard")


def test_a_seed_that_is_not_through_waits(locations: Locations, ask: Ask):
    """A run of fewer cells than another of the same experiment is in no mean."""
    for severity in (1, 5):
        record(locations, seed=0, severity=severity, error=0.25)
    record(locations, seed=1, severity=5, error=0.9)

    assert [(2, 1, 0.25, None)] == ask("SELECT num_cells, num_runs, mean_error, sd_error FROM leaderboard")


def test_the_leaderboard_says_where_hyperparameters_come_from(locations: Locations, ask: Ask):
    """As the plan says, whatever was said when a cell was evaluated: they had the same values."""
    origins = ("published", "tuned (held-out)", "preset", "own", "set by hand")
    for number, origin in enumerate(origins):
        tuning = '{"cells": ["spatter|5"]}' if origin == "tuned (held-out)" else None
        name = f"{number}"
        record(locations, experiment=name, severity=1, hyperparameters_origin="preset", tuning=None)
        record(locations, experiment=name, severity=2, hyperparameters_origin=origin, tuning=tuning)

    found = ask("SELECT experiment, hyperparameters FROM leaderboard ORDER BY 1")

    assert [(f"{number}", origin) for number, origin in enumerate(origins)] == found


def test_subsets_are_never_mixed(locations: Locations, ask: Ask):
    """An experiment on all samples and one on some have two lines in every view of errors."""
    for subset, error in (("all", 0.25), ("first 40", 0.5)):
        record(locations, experiment=subset, subset=subset, error=error)

    for view in ("leaderboard", "corruption_errors"):
        assert [("all", 0.25, 1), ("first 40", 0.5, 1)] == ask(
            f"SELECT subset, mean_error, num_runs FROM {view} ORDER BY subset"
        )
    assert [("all",), ("first 40",)] == ask("SELECT subset FROM mce WHERE normaliser = 'alexnet-full' ORDER BY subset")


def test_a_stream_that_visits_a_cell_twice_has_both(locations: Locations, ask: Ask):
    """Neither visit takes the other's place."""
    for position, error in enumerate((0.25, 0.5, 0.75)):
        record(locations, protocol="gradual", stream="all", position=position, error=error)

    assert [(3, 0.5)] == ask("SELECT num_cells, mean_error FROM leaderboard")


def test_of_results_with_one_fingerprint_the_oldest_counts(locations: Locations, ask_published: Ask):
    """Published one by one or at once; another device may round otherwise, and no later pass changes an error."""
    record(locations, error=0.25)
    record(locations, error=0.5)
    assert [(0.25,)] == ask_published("SELECT error FROM evaluations WHERE counts")

    record(locations, error=0.75)
    record(locations, seed=1, error=0.125)
    assert [(0, 0.25), (1, 0.125)] == ask_published("SELECT seed, error FROM evaluations WHERE counts ORDER BY 1")


def robustbench() -> list[tuple[str, int, dict[str, float]]]:
    """Return corruption, severity and the error of each model of RobustBench's published cells."""
    lines = (Path(__file__).parent / "robustbench.csv").read_text().splitlines()
    header, *rows = (line.split(",") for line in lines if not line.startswith("#"))
    return [
        (corruption, int(severity), {m: 1 - float(a) for m, a in zip(header[2:], accuracies, strict=True)})
        for corruption, severity, *accuracies in rows
    ]


PUBLISHED_MCE = {
    "AlexNet": (100, 0),
    "Standard_R50": (76.377, 0.001),
    "Tian2022Deeper_DeiT-B": (41.70, 0.01),
}
"""Mean corruption errors of some of RobustBench's models, each with its tolerance."""


def test_mce_is_the_published_one(locations: Locations, ask: Ask):
    """By RobustBench's own AlexNet, by its errors as constants, and in the leaderboard of its list."""
    for corruption, severity, errors in robustbench():
        for model, error in ((name, errors[name]) for name in PUBLISHED_MCE):
            cell = {"experiment": model, "corruption": corruption, "severity": severity, "subset": "robustbench 5000"}
            record(locations, error=error, num_samples=5000, **cell)

    found = ask(
        """
        SELECT experiment, a.mce, m.mce, l.mce
        FROM mce_against('AlexNet') AS a
        JOIN mce AS m USING (experiment)
        JOIN leaderboard AS l USING (experiment)
        WHERE m.normaliser = 'alexnet-5k'
        """
    )

    assert set(PUBLISHED_MCE) == {model for model, *_ in found}
    for model, against, constant, shown in found:
        expected, tolerance = PUBLISHED_MCE[model]
        assert pytest.approx(expected, abs=tolerance) == against, model
        assert pytest.approx([against, against], abs=1e-9) == [constant, shown], model


def test_the_constants_are_the_published_ones(ask: Ask):
    """Their means over severities are those of the paper's table, and no cell is missing."""
    means = dict(
        ask(
            "SELECT corruption, avg(error) FROM mce_baselines "
            "WHERE baseline = 'alexnet-full' AND severity > 0 GROUP BY 1"
        )
    )
    counts = dict(ask("SELECT baseline, count(*) FROM mce_baselines GROUP BY 1"))

    assert {"alexnet-full": 19 * 5 + 1, "alexnet-5k": 15 * 5 + 1} == counts
    assert 0.788993 == pytest.approx(fmean(means[c] for c in COMMON_CORRUPTIONS), abs=1e-6)
    for corruption, mean in {"gaussian_noise": 0.886428, "jpeg_compression": 0.6065, "saturate": 0.658248}.items():
        assert mean == pytest.approx(means[corruption], abs=1e-6)


def test_images_made_here_have_no_published_mce(locations: Locations, ask: Ask):
    """The leaderboard has none for them; the view and an experiment as the normaliser still compute one."""
    record_grid(locations, generated=True)

    assert [(75, None, None)] == ask("SELECT num_cells, mce, relative_mce FROM leaderboard")
    assert [(100.0, 100.0)] == ask("SELECT mce, relative_mce FROM mce_against('tent')")
    assert [(1,), (1,)] == ask("SELECT num_runs FROM mce WHERE mce > 0")


def test_five_visits_are_not_five_severities(locations: Locations, ask: Ask):
    """A gradual stream over three severities has no mCE, though it has five rows for each corruption."""
    visits = itertools.product(COMMON_CORRUPTIONS, (1, 2, 3, 2, 1))
    for position, (corruption, severity) in enumerate(visits):
        record(locations, corruption=corruption, severity=severity, stream="all", position=position)

    assert [(75, None)] == ask("SELECT num_cells, mce FROM leaderboard")


def test_mce_by_hand(locations: Locations, ask: Ask):
    """With one error in every cell, mCE follows from the constants' sums; relative mCE takes the clean errors away.

    The four extra corruptions and other experiments change nothing. Without clean images relative mCE is NULL, and
    with 74 cells so is mCE.
    """
    record_grid(locations, error=0.5)
    record(locations, corruption="saturate", severity=5, error=0.9)
    record(locations, experiment="other", error=0.9)
    constants = ask("SELECT corruption, sum(error) FROM mce_baselines WHERE baseline = 'alexnet-full' GROUP BY 1")
    sums = {corruption: errors for corruption, errors in constants if corruption in COMMON_CORRUPTIONS}
    mce = pytest.approx(100 * fmean(5 * 0.5 / s for s in sums.values()))
    relative = pytest.approx(100 * fmean(5 * 0.25 / (s - 5 * 0.43478) for s in sums.values()))
    columns, other = "SELECT experiment, mce, relative_mce", ("other", None, None)

    assert [("tent", mce, relative)] == ask(f"{columns} FROM mce WHERE normaliser = 'alexnet-full' AND mce > 0")
    for lost, expected in (("", (mce, relative)), ("clean-0", (mce, None)), ("fog-3", (None, None))):
        if lost:
            remove_results(locations.root, "made", "tent", lost)
        assert [other, ("tent", *expected)] == ask(f"{columns} FROM leaderboard ORDER BY 1")


def test_mce_follows_from_counts(locations: Locations, ask: Ask):
    """Wrong images are counted by hand, other ones in each cell, and divided by AlexNet's share of as many images."""
    constants = {(c, s): e for c, s, e in ask("SELECT corruption, severity, error FROM mce_baselines "
                                              "WHERE baseline = 'alexnet-full'")}  # fmt: skip
    wrong = {
        (corruption, severity): 7 * number % 60 + 5 * severity
        for number, corruption in enumerate(COMMON_CORRUPTIONS)
        for severity in range(1, 6)
    }
    for (corruption, severity), count in wrong.items():
        record(locations, corruption=corruption, severity=severity, num_samples=200, error=count / 200)
    by_hand = [
        sum(wrong[corruption, s] for s in range(1, 6)) / sum(200 * constants[corruption, s] for s in range(1, 6))
        for corruption in COMMON_CORRUPTIONS
    ]

    ((found,),) = ask("SELECT mce FROM mce WHERE normaliser = 'alexnet-full'")
    assert 100 * fmean(by_hand) == pytest.approx(found)


def test_what_is_forgotten_is_told_at_each_return_to_clean_images(locations: Locations, ask: Ask):
    """Against the same weights unadapted, mean over seeds; clean images that are a stream of their own do not count."""
    clean = {"corruption": "clean", "severity": 0}
    record(locations, experiment="source", method="source", error=0.1, **clean)
    record(locations, experiment="other", method="source", error=0.7, weights_sha256="1" * 64, **clean)
    record(locations, error=0.2, **clean)
    for seed, errors in enumerate(((0.25, 0.5), (0.35, 0.6))):
        for position, error in zip((1, 3), errors, strict=True):
            record(locations, experiment="on", seed=seed, stream="5", position=position, error=error, **clean)

    found = ask("SELECT experiment, position, num_runs, clean_error, unadapted_error, forgetting FROM forgetting")

    assert [("on", 1, 2), ("on", 3, 2)] == [row[:3] for row in found]
    assert [pytest.approx((0.3, 0.1, 0.2)), pytest.approx((0.55, 0.1, 0.45))] == [row[3:] for row in found]


def test_errors_are_estimated_from_confidences(locations: Locations, ask: Ask):
    """1 minus the confidence; with clean images of the source model shifted by what is wrong there; never below 0."""
    sure = {"mean_confidence": 0.75, "source_agreement": 0.5}
    record(locations, experiment="tent", error=0.5, **sure)
    question = "SELECT is_calibrated, estimated_error, estimation_gap, disagreement FROM estimated_errors"
    assert [(False, 0.25, -0.25, 0.5)] == ask(question)

    clean = {"corruption": "clean", "severity": 0, "method": "source", "experiment": "source"}
    record(locations, error=0.25, mean_confidence=0.875, **clean)
    record(locations, experiment="certain", error=0.5, mean_confidence=1.0, corruption="frost")

    found = ask(f"{question} WHERE corruption <> 'clean' ORDER BY experiment")
    assert [(True, 0.125, -0.375, None), (True, 0.375, -0.125, 0.5)] == found
    low, high = ask("SELECT estimated_low, estimated_high FROM estimated_errors WHERE experiment = 'tent'")[0]
    chance = 1.96 * (0.5 * 0.5 / 80) ** 0.5  # all 80 images are in the bin of confidence one half
    assert pytest.approx((0.375 - chance, 0.375 + chance)) == (low, high)


def test_an_open_stream_stands_beside_its_closed_one(locations: Locations, ask: Ask):
    """Of the same seed, cell and settings; other settings are another stream, and clean images do not count."""
    kept = {"fingerprint_parts": json.dumps({"method": {"lr": 1}})}
    is_open = {"protocol": "reset_each_shift_open", "num_unknown": 20, **kept}
    found = {"auroc": 0.8, "fpr95": 0.5, "aupr": 0.9, "h_score": 0.6}
    for corruption, error, closed in (("fog", 0.5, 0.25), ("frost", 0.25, 0.2), ("clean", 0.1, 0.1)):
        cell = {"corruption": corruption, "severity": 0 if corruption == "clean" else 5}
        record(locations, experiment="tent", error=closed, **kept, **cell)
        record(locations, experiment="fast", error=0.1, fingerprint_parts=json.dumps({"method": {"lr": 2}}), **cell)
        record(locations, experiment="open", error=error, **is_open, **found, **cell)

    (row,) = ask(
        "SELECT experiment, closed_experiment, num_cells, error, closed_error, error_change, auroc FROM open_set"
    )

    assert ("open", "tent", 2) == row[:3]
    assert pytest.approx((0.375, 0.225, 0.15, 0.8)) == row[3:]
    assert ask("SELECT unknown_share FROM open_set") == [(0.2,)]


def test_the_closed_stream_has_the_order_of_the_open_one(locations: Locations, ask: Ask):
    """Protocols of one name can have different orders; only the unknown images may differ, and nothing else set."""

    def parts(order: str, **more: object) -> str:
        settings = {"batch_size": 8, "protocol": {"order": order, "shift": "continual", **more}, "seed": 0}
        return json.dumps({"method": {"lr": 1}, "settings": settings})

    for name, order in (("a_sorted", "by_class"), ("b_drawn", "dirichlet")):
        record(locations, experiment=name, error=0.2, protocol="correlated", fingerprint_parts=parts(order))
    unknown = parts("dirichlet", unknown={"share": 0.2, "source": "other"})
    record(locations, experiment="open", error=0.5, protocol="correlated_open", num_unknown=20, auroc=0.8, fpr95=0.5,
           aupr=0.9, fingerprint_parts=unknown)  # fmt: skip
    plain = json.dumps({"method": {"lr": 1}, "settings": {"batch_size": 8, "seed": 0}})
    usual = json.loads(plain)
    usual["settings"]["protocol"] = {"unknown": {"share": 0.2, "source": "other"}}
    record(locations, experiment="c_plain", error=0.2, corruption="frost", fingerprint_parts=plain)
    record(locations, experiment="plain_open", error=0.5, corruption="frost", num_unknown=20, auroc=0.8, fpr95=0.5,
           aupr=0.9, protocol="reset_each_shift_open", fingerprint_parts=json.dumps(usual))  # fmt: skip

    found = ask("SELECT experiment, closed_experiment FROM open_set ORDER BY experiment")
    assert [("open", "b_drawn"), ("plain_open", "c_plain")] == found


def test_calibration_of_a_union_is_exact(locations: Locations, ask: Ask):
    """The sums of two cells' bins give the error of all their samples together."""
    rng = np.random.default_rng(5)
    confidences, correct = rng.random(300), rng.random(300) < 0.6
    for severity, part in ((1, slice(100)), (5, slice(100, None))):
        bins = calibration_bins(confidences[part], correct[part])
        record(
            locations,
            severity=severity,
            bins={name: getattr(bins, name) for name in ("counts", "confidence_sums", "correct_counts")},
        )

    ((ece,),) = ask(
        "SELECT sum(abs(c)) / sum(n) FROM (SELECT sum(num_correct - confidence_sum) AS c, sum(num_samples) AS n "
        "FROM calibration_bins GROUP BY bin)"
    )
    assert calibration_bins(confidences, correct).ece == pytest.approx(ece)


def test_every_class_has_its_error(locations: Locations, ask: Ask):
    """Label by label."""
    counts = {"num_samples": [10, 0, 30], "num_correct": [9, 0, 15]}
    record(locations, num_samples=40, error=0.4, class_counts=counts)

    assert [(0, 10, 9), (1, 0, 0), (2, 30, 15)] == ask("SELECT label, num_samples, num_correct FROM class_errors")


OTHER_CONDITIONS: dict[str, dict[str, Any]] = {
    "device": {"device": "NVIDIA H200"},
    "cpu_model": {"cpu_model": "a faster one"},
    "num_cores": {"num_cores": 64},
    "decode_threads": {"decode_threads": 16},
    "compute_threads": {"compute_threads": 16},
    "streams_per_device": {"streams_per_device": 4},
    "batch_size": {"batch_size": 80},
    "precision": {"precision": "bf16"},
    "compile": {"compile": "default"},
    "from_features": {"from_features": True},
}


def test_every_condition_of_speed_is_tried():
    """A column that is declared to decide speed has its line above."""
    assert set(OTHER_CONDITIONS) == set(SPEED_CONDITIONS)


def test_the_history_of_speed_compares_only_alike_ones(locations: Locations, ask: Ask):
    """What was faster under other conditions is no history, whichever condition it is."""
    for name, other in OTHER_CONDITIONS.items():
        for speed, under in ((38.0, {}), (1189.0, other), (40.0, {}), (1200.0, other)):
            record(locations, experiment=name, images_per_s=speed, **under)

    found: dict[str, list[tuple[Any, ...]]] = {name: [] for name in OTHER_CONDITIONS}
    for name, *compared in ask("SELECT experiment, speed_ratio, num_earlier_alike FROM throughput_history"):
        found[name].append(tuple(compared))

    alike = [(None, 0), (None, 0), (pytest.approx(40 / 38), 1), (pytest.approx(1200 / 1189), 1)]
    assert dict.fromkeys(OTHER_CONDITIONS, alike) == found


def test_two_runs_side_by_side(locations: Locations, ask: Ask):
    """Only cells that both have, each once."""
    record(locations, run_id="a", error=0.5)
    record(locations, run_id="b", error=0.25, predictions_sha256="q" * 64)
    record(locations, run_id="b", severity=1)

    assert [(5, -0.25, True, False)] == ask(
        "SELECT severity, error_change, same_settings, same_predictions FROM run_comparison "
        "WHERE run_a = 'a' AND run_b = 'b'"
    )
    assert [("b", 2), ("a", 1)] == ask("SELECT run_id, num_evaluations FROM runs ORDER BY 2 DESC")


def test_the_stages_make_up_the_whole(locations: Locations, ask: Ask):
    """Scan, set-up, waiting, computing and the rest are the seconds there were, and their shares are one."""
    record(locations)

    rows = ask("SELECT stage, total_s, share FROM stage_timings WHERE experiment = 'tent'")
    assert ["scan metadata", "set up", "wait for data", "compute", "other"] == [row[0] for row in rows]
    assert 1.25 + 0.1 + 0.2 == pytest.approx(sum(row[1] for row in rows))
    assert 1 == pytest.approx(sum(row[2] for row in rows))


def test_shifts_have_the_order_and_the_families_of_their_set(locations: Locations, ask: Ask):
    """Those of ImageNet-C, whatever was evaluated first."""
    for corruption in reversed(CORRUPTIONS):
        record(locations, corruption=corruption)

    rows = ask("SELECT corruption, counts_in_mean FROM evaluations ORDER BY shift_position")

    assert CORRUPTIONS == tuple(name for name, _ in rows)
    assert COMMON_CORRUPTIONS == tuple(name for name, counts_in_mean in rows if counts_in_mean)
    assert [("weather",)] == ask("SELECT shift_family FROM evaluations WHERE corruption = 'fog'")


OWN = {"dataset": "light", "shift_family": "time", "counts_in_mean": True}


def test_a_set_of_ones_own_has_order_means_and_no_mce(locations: Locations, ask: Ask):
    """Its shifts are known from the plan; one that is kept for tuning does not enter the mean; 0 is a severity."""
    for position, (name, error) in enumerate({"dusk": 0.25, "dawn": 0.5, "night": 0.75}.items(), start=1):
        changes = {**OWN, "counts_in_mean": name != "night", "shift_position": position}
        record(locations, benchmark="mine", corruption=name, severity=0, error=error, **changes)
    clean = {**OWN, "counts_in_mean": False, "shift_position": 0, "shift_family": None}
    record(locations, benchmark="mine", corruption="clean", severity=0, error=0.125, **clean)

    assert [("night", 3, False), ("dusk", 1, True), ("dawn", 2, True)] == ask(
        "SELECT corruption, shift_position, counts_in_mean FROM evaluations WHERE corruption <> 'clean' "
        "ORDER BY ALL DESC"
    )
    assert [(2, 0.375, None, 0.125)] == ask("SELECT num_cells, mean_error, mce, clean_error FROM leaderboard")


def test_the_mean_of_a_set_is_over_seeds_with_all_cells(locations: Locations, ask: Ask):
    """And over the shifts that each record says enter it: another benchmark's set of the same name has its own."""
    for seed, severities in ((0, (1, 5)), (1, (5,))):
        for severity in severities:
            record(locations, seed=seed, severity=severity, error=0.25 if seed == 0 else 0.75)
    for benchmark, counts in (("one", True), ("other", False)):
        changes = {**OWN, "counts_in_mean": counts, "shift_position": 1}
        record(locations, benchmark=benchmark, corruption="dusk", error=0.5, **changes)

    assert [("made", 2, 1, 0.25), ("one", 1, 1, 0.5)] == ask(
        "SELECT benchmark, num_cells, num_runs, mean_error FROM leaderboard WHERE mean_error IS NOT NULL ORDER BY 1"
    )


def test_sets_of_one_benchmark_are_kept_apart(locations: Locations, ask: Ask):
    """Cells of one name in two sets are two cells: neither is the newer evaluation of the other."""
    record(locations, error=0.5)
    record_of_part(locations, "light", error=0.25, shift_family="time", counts_in_mean=True, shift_position=1)

    rows = ask("SELECT dataset, experiment, num_cells, mean_error FROM leaderboard ORDER BY 1")

    assert [("imagenet_c", "tent", 1, 0.5), ("light", "tent", 1, 0.25)] == rows


def test_a_group_is_the_mean_over_its_sets(locations: Locations, ask: Ask):
    """Each set weighs the same however many cells it has; the interval is that of independent sets."""
    for part, cells in (("one", (0.25,)), ("two", (0.5, 1.0))):
        for severity, error in enumerate(cells):
            record_of_part(
                locations,
                part,
                severity=severity,
                error=error,
                num_samples=100,
                counts_in_mean=True,
                shift_group="mine",
            )
    record_of_part(locations, "other", error=0.0, counts_in_mean=True, shift_group=None)
    record_of_part(locations, "one", corruption="kept", error=1.0, counts_in_mean=False, shift_group="mine")
    chances = (math.sqrt(0.25 * 0.75 / 100), math.sqrt(0.5 * 0.5 / 100) / 2)

    [(group, sets, num_cells, mean, low, high, published)] = ask(
        "SELECT shift_group, datasets, num_cells, mean_error, error_low, error_high, published_error FROM group_means"
    )

    assert ("mine", "one, two", 3, 0.5, None) == (group, sets, num_cells, mean, published)
    assert high - mean == pytest.approx(mean - low) == pytest.approx(1.96 * math.hypot(*chances) / 2)


def test_published_means_stand_beside_the_same_sets(locations: Locations, ask: Ask):
    """Weights, method, sets and severity are those of the table; another severity has none."""
    clip = {"weights": "open_clip ViT-B-16-quickgelu openai", "method": "zero_shot", "counts_in_mean": True}
    for name in ("imagenet_a", "imagenet_r", "imagenet_v2", "imagenet_sketch"):
        record_of_part(locations, name, severity=0, error=0.5, shift_group="natural", **clip)
    for corruption in COMMON_CORRUPTIONS:
        for severity in (3, 5):
            facts = {**clip, "experiment": f"at_{severity}", "shift_group": "corruption"}
            record_of_part(locations, "imagenet_c", corruption=corruption, severity=severity, error=0.5, **facts)

    found = ask("SELECT shift_group, experiment, published_error, published_in FROM group_means ORDER BY ALL")

    ttabc = "TTABC (arXiv:2606.14299), ViT-B/16"
    assert [
        ("corruption", "at_3", None, None), ("corruption", "at_5", 0.7854, ttabc), ("natural", "tent", 0.428, ttabc)
    ] == found  # fmt: skip
    assert [("corruption", 8), ("fine_grained", 3), ("natural", 8)] == ask(
        "SELECT shift_group, count(*) FROM published_means GROUP BY 1 ORDER BY 1"
    )


def test_the_first_systems_log_is_one_row(locations: Locations, ask: Ask):
    """By hand: 1,000 images of 10 classes in 16 shards are 1,011 objects by 17."""
    batches = {"num_samples": [600, 400], "data_wait_s": [0.3, 0.1], "host_to_device_s": [0.05, 0.01],
               "compute_s": [2.0, 1.0]}  # fmt: skip
    record(
        locations, num_samples=1000, batches=batches, data_wait_s=0.4, compute_s=3.0, first_batch_compute_s=2.0,
        time_to_first_batch_s=0.3, wall_s=4.0, metadata_scan_s=0.25, pipeline_setup_s=0.125, peak_cuda_gib=1.5,
        decode_threads=4, device="NVIDIA H200", batch_size=600,
    )  # fmt: skip
    record_shard_set(
        locations, num_samples=1000, num_classes_found=10, num_shards=16, payload_bytes=3 * 2**29, shard_bytes=2 * 2**30
    )

    (found,) = ask("SELECT to_json(first_system_log) FROM first_system_log")

    assert {
        "classes": 10, "archive_shards": 16, "images_indexed": 1000, "raw_payload_gib": 1.5, "archive_gib": 2.0,
        "inode_objects": 17, "projected_loose_objects": 1011, "inode_factor": pytest.approx(1011 / 17),
        "metadata_scan_s": 0.25, "datapipe_init_s": 0.125, "first_batch_fetch_s": 0.3,
        "first_batch_compute_s": pytest.approx(2.05), "pass_total_s": 4.0, "images_per_s": 250.0, "num_batches": 2,
        "images_processed": 1000, "peak_cuda_gib": 1.5, "batch_size": 600, "num_workers": 4, "pin_memory": True,
        "shuffle": "permuted, seed 0, read as stored",
    }.items() <= json.loads(found[0]).items()  # fmt: skip


def test_trainings_are_compared_by_loader(locations: Locations, ask: Ask):
    """Where models differ in their loader alone: the same recipe, images and machine."""
    for model, loader, changes in (
        ("cnn", "indexed", {}),
        ("loose", "imagefolder", {"num_inodes": 1000, "weights_sha256": "b" * 64}),
        ("fewer_cores", "webdataset", {"num_cores": 1}),
        ("other_recipe", "webdataset", {"settings": json.dumps({"kind": "trained", "loader": "webdataset", "ema": 1})}),
    ):
        settings = json.dumps({"kind": "trained", "loader": loader})
        run = training_run(**{"model": model, "loader": loader, "settings": settings, **changes})
        record_training(locations, run)

    rows = ask("SELECT model, loader, num_samples, images_per_s, time_to_first_batch_s, data_wait_s, "
               "data_wait_share, num_inodes, validation_error, same_weights FROM loader_comparison")  # fmt: skip

    times = (3000, 100.0, 0.2, 1.5, pytest.approx(1.5 / 30))
    assert [
        ("cnn", "indexed", *times, 4, 0.375, True),
        ("loose", "imagefolder", *times, 1000, 0.375, False),
    ] == rows
