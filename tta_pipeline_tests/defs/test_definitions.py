"""The surface in Dagster: which assets there are, and how light it is to load them."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from graphlib import TopologicalSorter

import dagster as dg

from tta_pipeline.definitions import assets_only, build_definitions, defs
from tta_pipeline.methods.catalogue import METHODS
from tta_pipeline_tests.conftest import SMALL, Project, write_tree
from tta_pipeline_tests.defs.in_process import execute, what_failed

SURFACE = {
    "images", "tar_shards", "shard_manifest", "source_model", "robustness_report", "loader_benchmark",
    "evaluation/source", "evaluation/norm", "evaluation/tent",
    "clean/images", "clean/tar_shards", "clean/shard_manifest",
    "clean/evaluation/source", "clean/evaluation/norm", "clean/evaluation/tent",
    "train/images", "train/tar_shards", "train/shard_manifest",
}  # fmt: skip


EXPERIMENTS = {
    "source", "norm", "tent", "tent_continual", "tent_mixed", "tent_correlated", "tent_high_lr",
}  # fmt: skip


def groups_of_assets() -> dict[str, str]:
    """Return the group of each asset of our code location, by key."""
    graph = defs.resolve_asset_graph()
    return {key: graph.get(dg.AssetKey(key.split("/"))).group_name for key in keys(defs)}


def keys(definitions: dg.Definitions) -> set[str]:
    """Return the asset keys of *definitions*."""
    return {key.to_user_string() for key in definitions.resolve_asset_graph().get_all_asset_keys()}


def test_the_surface_is_what_users_rely_on():
    """All but the streams, the held-out images and the tuning are exactly these assets."""
    groups = groups_of_assets()
    others = {"digits_c_streams", "digits_c_collapse_streams", "digits_c_held_out", "digits_c_tuning"}

    assert {f"digits_c/{name}" for name in SURFACE} == {key for key, group in groups.items() if group not in others}
    assert {
        "digits_c", "digits_c_images", "digits_c_clean", "digits_c_clean_images", "digits_c_training",
        "digits_c_loaders", "digits_c_report",
    } == set(groups.values()) - others  # fmt: skip


def test_no_group_has_two_assets_that_the_lineage_calls_by_one_name():
    """Dagster's lineage shows the last part of a key, and three evaluations below each other on a screen."""
    names = defaultdict(list)
    for key, group in groups_of_assets().items():
        names[group].append(key.rpartition("/")[2])

    assert {} == {group: found for group, found in names.items() if len(set(found)) < len(found)}
    assert 3 == max(sum(name in EXPERIMENTS for name in found) for found in names.values())


def test_groups_go_from_left_to_right():
    """No group needs, over others, its own assets: the lineage of groups has no arrow back."""
    graph, groups = defs.resolve_asset_graph(), groups_of_assets()
    needs = {group: set[str]() for group in groups.values()}
    for key, group in groups.items():
        parents = graph.get(dg.AssetKey(key.split("/"))).parent_keys
        needs[group] |= {groups[parent.to_user_string()] for parent in parents} - {group}

    assert set(needs) == set(TopologicalSorter(needs).static_order())  # raises CycleError


def test_definitions_load():
    """Everything resolves: dependencies, partitions, resources, and checks, each of which the web UI can start."""
    dg.Definitions.validate_loadable(defs)
    assert all(each.can_subset for each in defs.asset_checks)


def test_loading_imports_nothing_heavy_and_sharding_no_torch():
    """The code location imports neither torch nor what only computing needs, so sharding starts at once, too."""
    heavy = ("torch", "torchvision", "webdataset", "pyarrow", "duckdb", "matplotlib", "sklearn", "scipy")
    program = f"""import sys; from tta_pipeline.definitions import defs
print([name for name in {heavy} if name in sys.modules])
import tta_pipeline.cli.shard_everything; print("torch" in sys.modules)"""

    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert ["[]", "False"] == finished.stdout.splitlines()


def test_every_asset_tells_people_what_it_is():
    """Each asset has a kind, the group of its benchmark, and a first sentence that fits into the list of assets."""
    graph = defs.resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        assert 0 < (node.description or "").find(". ") < 55, key
        assert node.kinds, key
        assert node.group_name.startswith(key.path[0]), key


def test_cells_are_partitions_in_canonical_order():
    """The grid is corruption x severity, and a key is <corruption>|<severity>."""
    partitions = defs.resolve_asset_graph().get(dg.AssetKey(["digits_c", "tar_shards"])).partitions_def

    assert ["corruption", "severity"] == [dimension.name for dimension in partitions.partitions_defs]
    assert 75 == len(partitions.get_partition_keys())
    assert "gaussian_noise|1" == partitions.get_partition_keys()[0]


def test_an_experiment_is_a_line_in_a_file(project: Project):
    """A line under experiments makes an asset, and a file makes a benchmark, without any Python."""
    project.add_benchmark("mine", SMALL + "  tent_slow: {model: cnn, method: tent, hyperparameters: {lr: 0.0001}}\n")

    assert {"mine/evaluation/tent_slow", "mine/clean/evaluation/tent_slow"} <= keys(
        build_definitions(project.locations)
    )


def test_the_embedded_benchmark_is_shown_until_others_are_there_and_if_it_has_data(project: Project):
    """Its many assets are not among those of another project, whose commands know it all the same."""

    def shown(**named: Sequence[str]) -> set[str]:
        return {key.partition("/")[0] for key in keys(assets_only(project.locations.root, **named))}

    assert {"digits_c"} == shown()
    project.add_benchmark("mine", SMALL)
    assert {"mine"} == shown()
    assert {"digits_c"} == shown(benchmarks=["digits_c"])
    assert "digits_c/images" in keys(build_definitions(project.locations))
    (project.locations.root / "digits_c").mkdir()
    assert {"digits_c", "mine"} == shown()


def test_images_that_lie_there_are_observed(project: Project):
    """The version of a folder source changes with its files, cell by cell."""
    text = SMALL.replace(
        "{kind: digits, seed: 0, num_test: 150, severity_table: imagenet_c}", "{kind: folder, root: %s}"
    )
    text = text.replace("kind: trained, epochs: 4, width: 8", "kind: torchvision, architecture: resnet18")
    root = project.locations.root / "tree"
    for cell in ("contrast/3", "contrast/5"):
        write_tree(root / cell, classes={"n01": 2})
    project.add_benchmark("lying", text % root)
    source = build_definitions(project.locations).resolve_asset_graph().get(dg.AssetKey(["lying", "images"]))
    assert source.is_observable

    def observed() -> dict[str, str]:
        with dg.DagsterInstance.ephemeral() as instance:
            assert execute(project, ["lying/images"], ["contrast|3"], instance=instance).success
            records = instance.fetch_observations(source.key, limit=2).records
            return {r.partition_key: r.asset_observation.tags["dagster/data_version"] for r in records}

    before = observed()
    write_tree(root / "contrast/5", classes={"n02": 1})
    after = observed()

    assert {"contrast|3", "contrast|5"} == set(before)
    assert before["contrast|3"] == after["contrast|3"]
    assert before["contrast|5"] != after["contrast|5"]


def test_nothing_that_dagster_loads_for_users_benchmarks_warns(project: Project):
    """Jobs of sensors are resolved too; a warning is an error in these tests."""
    text = SMALL.replace(
        "{kind: digits, seed: 0, num_test: 150, severity_table: imagenet_c}", "{kind: folder, root: /x}"
    )
    text = text.replace("kind: trained, epochs: 4, width: 8", "kind: torchvision, architecture: resnet18")
    for name in ("one", "other"):
        project.add_benchmark(name, text)

    build_definitions(project.locations).get_repository_def().load_all_definitions()


def test_signatures_are_made_once_for_all_experiments(project: Project):
    """To make them takes longer than all else of an asset."""
    for name in ("one", "other"):
        project.add_benchmark(name, SMALL)

    repository = build_definitions(project.locations).get_repository_def()

    functions = [
        repository.asset_graph.get(dg.AssetKey([name, "evaluation", experiment])).assets_def.op.compute_fn.decorated_fn
        for name in ("one", "other")
        for experiment in ("norm", "tent")
    ]
    assert 1 == len({id(function.__signature__) for function in functions})


def test_what_is_wrong_in_benchmark_files_is_shown_where_it_would_be(project: Project):
    """A faulty experiment and a faulty file are assets whose description is the sentence; all else is there."""
    project.add_benchmark("mine", SMALL + "  wrong: {model: cnn, method: nrom}\n")
    project.add_benchmark("cut", "title: [")
    project.add_benchmark("a name", SMALL)
    project.add_benchmark("digits_c", SMALL)

    definitions = build_definitions(project.locations)

    graph = definitions.resolve_asset_graph()
    assert {f"{name}/{key}" for name in ("mine", "digits_c") for key in SURFACE} <= keys(definitions)
    shown = {key: graph.get(key) for key in graph.get_all_asset_keys() if graph.get(key).kinds == {"fault"}}
    found = {key.to_user_string(): (node.group_name, node.description) for key, node in shown.items()}
    expected = {
        "mine/evaluation/wrong": ("mine", "method is 'nrom'"),
        "cut/benchmark_file": ("cut", "is not valid YAML"),
        "faulty_a_name/benchmark_file": ("faulty_a_name", "name is 'a name'"),
        "digits_c/benchmark_file": ("digits_c_faulty", "have the same name"),
    }
    assert set(expected) == set(found)
    assert all(group == found[key][0] and said in found[key][1] for key, (group, said) in expected.items())
    job = definitions.get_repository_def().get_job("mine__evaluate_everything")
    assert dg.AssetKey(["mine", "evaluation", "wrong"]) in job.asset_layer.executable_asset_keys


def test_to_materialize_what_is_wrong_fails_with_the_sentence_and_stops_nothing_else(project: Project):
    """The run ends as a failure, and what else it was asked for is there."""
    project.add_benchmark("mine", SMALL + "  wrong: {model: cnn, method: nrom}\n")

    finished = execute(project, ["mine/evaluation/wrong", "mine/clean/images"])

    assert not finished.success
    assert f"method is 'nrom'; expected one of {len(METHODS)} names (did you mean norm" in what_failed(finished)
    assert (project.locations.generated_source("mine") / "clean" / "0").is_dir()


def test_a_foreign_partition_key_is_refused_on_the_command_line(project: Project):
    """Nothing runs and nothing is made."""
    finished = project.materialize("digits_c/tar_shards", "--partition", "../../x|1")

    assert finished.returncode != 0
    assert not (project.locations.root / "digits_c").exists()


def test_a_range_without_cells_is_refused(project: Project):
    """A range from a higher to a lower severity holds no cell, and a run over it fails and says so."""
    project.add_benchmark("small", SMALL)

    finished = execute(project, ["small/images"], ["gaussian_noise|5", "contrast|3"])

    assert not finished.success
    assert "The partition range has no cells" in what_failed(finished)


def test_an_open_stream_depends_on_the_shards_of_its_unknown_images(project: Project):
    """Of the same cells, of the clean images, and of all cells for a stream over several; everything still resolves."""
    is_open = "unknown: {benchmark: letters, share: 0.2}"
    project.add_benchmark("letters", SMALL.replace("kind: digits", "kind: digits, characters: letters"))
    project.add_benchmark(
        "open",
        f"{SMALL}  one: {{model: cnn, method: norm, protocol: {{shift: reset_each_shift, {is_open}}}}}\n"
        f"  all: {{model: cnn, method: norm, protocol: {{shift: continual, {is_open}}}}}\n",
    )
    definitions = build_definitions(project.locations)
    graph = definitions.resolve_asset_graph()

    dg.Definitions.validate_loadable(definitions)
    for own, other in (("evaluation/one", ""), ("clean/evaluation/one", "clean/"), ("evaluation/all", "")):
        parents = graph.get(dg.AssetKey(f"open/{own}".split("/"))).parent_keys
        assert dg.AssetKey(f"letters/{other}shard_manifest".split("/")) in parents
    assert not any("letters" in key.path for key in graph.get(dg.AssetKey(["open", "evaluation", "norm"])).parent_keys)
