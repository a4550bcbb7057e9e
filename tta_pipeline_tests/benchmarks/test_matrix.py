"""A matrix in a benchmark file stands for named experiments, beside those that the file names."""

from pathlib import Path

import pytest

from tta_pipeline.benchmarks.benchmark import Benchmark
from tta_pipeline.benchmarks.load_files import LoadedBenchmarks, load_benchmark, load_benchmarks
from tta_pipeline_tests.conftest import SMALL

TWO_MODELS = SMALL.replace("experiments:", '  tv: {kind: torchvision, architecture: "resnet18"}\nexperiments:')


def loaded(folder: Path, matrix: str, *, text: str = SMALL) -> LoadedBenchmarks:
    """Return what is read of the small benchmark with *matrix*."""
    (folder / "mine.yaml").write_text(f"{text}matrix: {matrix}\n")
    return load_benchmarks(folder)


def sentences(found: LoadedBenchmarks) -> dict[str | None, str]:
    """Return the sentence of each fault by its experiment."""
    return {fault.experiment: fault.sentence for fault in found.faults}


def test_a_matrix_has_each_model_with_each_method_under_each_protocol(tmp_path: Path):
    """Named after what differs: no only model, and no default protocol; in the order of the file."""
    some = "methods: [sar, {eata: {lr: 0.5}}], protocols: [reset_each_shift, continual], preset: cifar, batch_size: 16"

    one = loaded(tmp_path, f"{{models: [cnn], {some}}}").benchmark("mine")
    two = loaded(tmp_path, f"{{models: [cnn, tv], {some}}}", text=TWO_MODELS).benchmark("mine")

    named = ("sar", "sar_continual", "eata", "eata_continual")
    assert ("source", "norm", "tent", *named) == tuple(one.experiments)
    assert (*(f"cnn_{name}" for name in named), *(f"tv_{name}" for name in named)) == tuple(two.experiments)[3:]
    eata = two.experiments["tv_eata_continual"]
    assert ("tv", "eata", {"lr": 0.5}, "continual") == (
        eata.model, eata.method, eata.hyperparameters, eata.protocol.name,
    )  # fmt: skip
    assert {("cifar", 16)} == {(each.preset, each.batch_size) for each in tuple(two.experiments.values())[3:]}


def test_an_experiment_of_a_matrix_is_the_same_as_one_that_is_written_out(tmp_path: Path):
    """So that a file can be shortened without evaluating anything again."""
    short = loaded(tmp_path, "{models: [cnn], methods: [{sar: {lr: 0.5}}], protocols: [mixed], seeds: [0, 1]}")
    (tmp_path / "mine.yaml").write_text(
        f"{SMALL}  long: {{model: cnn, method: sar, hyperparameters: {{lr: 0.5}}, protocol: mixed, seeds: [0, 1]}}\n"
    )

    long = load_benchmark(tmp_path / "mine.yaml")

    assert long.experiments["long"] == short.experiment("mine", "sar_mixed")


def test_several_matrices_and_variants_share_a_file(tmp_path: Path):
    """A second variant of a method has a name of its own, and each matrix its own settings."""
    found = loaded(
        tmp_path,
        "[{models: [cnn], methods: [sar, {sar: {lr: 0.5}, name: sar_fast}]}, "
        "{models: [cnn], methods: [{sar: {}, name: sar_few}], subset: {first: 10}, group: few}]",
    ).benchmark("mine")

    assert [0.5, None] == [found.experiments[name].hyperparameters.get("lr") for name in ("sar_fast", "sar")]
    assert [("few", "first 10")] == [(one.group, one.subset.name) for one in (found.experiments["sar_few"],)]


def test_exclude_leaves_combinations_out(tmp_path: Path):
    """By any of model, method and protocol."""
    found = loaded(
        tmp_path,
        "{models: [cnn, tv], methods: [sar, eata], protocols: [continual, mixed], "
        "exclude: [{model: tv, method: sar}, {protocol: mixed, method: eata}]}",
        text=TWO_MODELS,
    ).benchmark("mine")

    assert ("cnn_sar_continual", "cnn_sar_mixed", "cnn_eata_continual", "tv_eata_continual") == (
        tuple(found.experiments)[3:]
    )


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ("{models: [cnn], methods: [tent]}", "experiment tent of matrix already exists in experiments"),
        (
            "[{models: [cnn], methods: [sar]}, {models: [cnn], methods: [sar]}]",
            "sar of matrix.1 already exists in matrix.0",
        ),
        ("{models: [cnn], methods: [sar, {sar: {lr: 1}}]}", "name: sar_2"),
        ("{models: [cnn], methods: [sar], exclude: [{method: eata}]}", "exclude.0 is {'method': 'eata'}"),
        ("{models: [cnn], methods: [sar], exclude: [{model: cnn}]}", "exclude removes every combination"),
        ("{models: [cnn], methods: []}", "expected at least one of each"),
        ("{models: [cnn], methods: [sar], batches: 3}", "matrix.0: unknown field batches; expected any of"),
        ("{models: [cnn], methods: [sar], hyperparameters: {lr: 1}}", "unknown field hyperparameters"),
        ("{models: [cnn], methods: ['mine:METHOD']}", "methods contains mine:METHOD"),
        ("{models: [cnn], methods: [{sar: {}, eata: {}}]}", "methods contains {'sar': {}, 'eata': {}}"),
        ("{models: [cnn], methods: [sar], protocols: [continu]}", "matrix.0.protocols.0.shift is 'continu'"),
        ("3", "matrix is 3"),
    ],
)
def test_a_matrix_that_says_nothing_or_too_much_is_refused(tmp_path: Path, matrix: str, said: str):
    """With the file, or experiments would be evaluated that the user wanted to leave out."""
    found = sentences(loaded(tmp_path, matrix))

    assert [None] == list(found)
    assert f"{tmp_path / 'mine.yaml'}: " in found[None]
    assert said in found[None]


def test_a_name_of_several_protocols_is_taken_too(tmp_path: Path):
    """What `protocols` of an experiment makes cannot be made by a matrix again."""
    text = SMALL.replace("preset: cifar", "preset: cifar, protocols: [mixed]")

    assert "tent_mixed of matrix already exists in experiments" in sentences(
        loaded(tmp_path, "{models: [cnn], methods: [tent], protocols: [mixed]}", text=text)
    )[None]  # fmt: skip


def test_faulty_experiments_of_a_matrix_leave_the_others_alive(tmp_path: Path):
    """Each is named, with the matrix as its place in the file."""
    found = loaded(tmp_path, "{models: [cnn, vit], methods: [sar, nrom], exclude: [{model: vit, method: nrom}]}")

    assert ["source", "norm", "tent", "cnn_sar"] == list(found.benchmark("mine").experiments)
    assert {"cnn_nrom": "matrix.cnn_nrom: method is 'nrom'", "vit_sar": "matrix.vit_sar.model is 'vit'"} == {
        name: next(
            part for part in (f"matrix.{name}: method is 'nrom'", f"matrix.{name}.model is 'vit'") if part in text
        )
        for name, text in sentences(found).items()
    }


def test_all_sets_of_a_file_have_the_matrix(tmp_path: Path):
    """As they have its experiments."""
    source = "images: {kind: digits, seed: 0, num_test: 150, severity_table: imagenet_c}\n"
    text = SMALL.replace(source, "").replace("corruptions: [gaussian_noise, contrast]\nseverities: [3, 5]\n", "")
    sets = f"sets: {{imagenet_c: {{{source.strip()}}}, cifar_10_c: {{{source.strip()}}}}}\n"

    found = loaded(tmp_path, "{models: [cnn], methods: [sar]}", text=text.replace("models:", f"{sets}models:"))

    assert [["source", "norm", "tent", "sar"]] * 2 == [list(each.experiments) for each in found.benchmarks.values()]


def test_a_benchmark_with_a_matrix_is_the_same_in_another_process(tmp_path: Path):
    """Launched trainings get the benchmark as JSON."""
    benchmark = loaded(tmp_path, "{models: [cnn], methods: [{sar: {lr: 0.5}}], batch_size: 8}").benchmark("mine")

    again = Benchmark.model_validate(benchmark.model_dump(mode="json"))

    assert again.experiments == benchmark.experiments
