"""The tour: every verb, option, choice of an option and asset, as commands that a user types.

If a verb or an option is renamed, only this file of the net changes. Steps run in this order, in the project folder.
`@web` is the URL of a server of the folder `../web`, `@root` is the folder around the project, and `@run1` and `@run2`
are the runs that evaluated a cell of the benchmark `first`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

BUCKET = "results"
LOG = """--config-json '{"loggers": {"console": {}}}'"""
FOG = "data/first/shards/fog/5"
CNN = "data/first/source_models/cnn.safetensors"
EVALUATE = f"tta-pipeline evaluate {FOG} --model {CNN}"
BENCH = f"tta-pipeline shards bench {FOG} --loader indexed --threads 1 --repeats 1"
ONE = "tta-pipeline shards make ../sources/one out/one@n --group-depth 0"
TWO = "--num-shards 2"
QUIET = ("-q", "--quiet", "--json")
_QUICK = '{"config": {"loaders": ["indexed"], "num_threads": [1], "repeats": 1}}'
FORMATS = ("table", "csv", "latex", "markdown")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command, and its expected exit status."""

    name: str
    command: str
    status: int | None = 0
    """Exit status; None: the present status is a fault, named beside the step, and may change."""
    environment: Mapping[str, str] = field(default_factory=dict)
    stays: bool = False
    """Whether the command runs in the background until the end of the tour."""
    until_s: float = 0.0
    """Seconds for which it is repeated until it succeeds."""


_numbers = count(1)


def step(command: str, status: int | None = 0, name: str = "", **environment: str) -> Step:
    """Return a step that is named after its verb and its options; `@n` in it becomes a number unique to the step."""
    words = [
        word for word in command.split() if word.startswith("-") or word.isidentifier() or word == command.split()[1]
    ]
    command = command.replace("@n", str(next(_numbers)))
    return Step(name=name or " ".join(words)[:60], command=command, status=status, environment=environment)


def launch(assets: str, partitions: str = "") -> Step:
    """Return a step that materializes *assets*."""
    return step(f"dg launch --assets '{assets}' {partitions} {LOG}", name=f"launch {assets}")


def remeasure(asset: str, op: str, settings: str = "{}", **environment: str) -> Step:
    """Return a step that evaluates one cell of *asset* again, with *settings* of the resource `compute`."""
    config = (
        f'{{"ops": {{"{op}": {{"config": {{"remeasure": true}}}}}}, "loggers": {{"console": {{}}}}, '
        f'"resources": {{"compute": {{"config": {settings}}}}}}}'
    )
    command = f"dg launch --assets '{asset}' --partition 'fog|5' --config-json '{config}'"
    return replace(step(command, name=f"remeasure {asset}"), environment=environment)


PROJECT = (
    step("tta-pipeline init project"),
    step("make demo"),
    step("tta-pipeline doctor"),
    step("tta-pipeline doctor --json"),
    step("tta-pipeline results list own"),
    *(step(f"tta-pipeline results list first --format {form}", name=f"results list {form}") for form in FORMATS),
    step("tta-pipeline results list first --json"),
    step("tta-pipeline results list first --wide"),
    step("dg list defs --json"),
)

OWN = (
    launch('key:"own/*source_split" and not key:"own/held_out/*"', "--partition-range 'gaussian_noise|3...fog|5'"),
    step("dg launch --job own__shard_everything --partition-range 'gaussian_noise|3...fog|5'"),
    launch("group:own_held_out", "--partition-range 'speckle_noise|3...saturate|3'"),
    launch('key:"own/source_model/*"'),
    step("tta-pipeline tune own tent --compare"),
    step("tta-pipeline tune own tent --grid lr=0.001,0.01 --grid momentum=0.8,0.9 --budget 3 --device cpu --json"),
    launch("group:own or group:own_clean or group:own_report", "--partition-range 'gaussian_noise|3...fog|5'"),
    launch("group:own_methods or group:own_methods_clean or group:own_protocols", "--partition-range 'fog|5...fog|5'"),
    launch("group:own_streams or group:own_protocols_streams", "--partition 5"),
    step(
        "dg launch --assets 'first/loader_benchmark,own/loader_benchmark' --partition 'fog|5' "
        f"""--config-json '{{"ops": {{"first__loader_benchmark": {_QUICK}, "own__loader_benchmark": {_QUICK}}}}}'""",
        name="launch loader benchmarks",
    ),
    step("dagster asset materialize -m tta_pipeline.definitions --select own/robustness_report"),
)

EMBEDDED = (
    step("tta-pipeline new-benchmark digits_methods --like digits_methods"),
    launch(
        "+group:digits_c or +group:digits_methods or group:digits_methods_clean or group:digits_c_report",
        "--partition 'gaussian_noise|5'",
    ),
)

RUN = (
    step("tta-pipeline run first --decoded-folder kept"),
    step("tta-pipeline run own --experiment submitted --cell 'fog|5' --dry-run"),
    step("tta-pipeline run own --experiment tent --corruption fog --severity 5 --device cpu"),
)


_KINDS = ("tree", "archive", "parquet", "dataset", "generated", "shards", "web")
KINDS = tuple(
    launch(f'key:"{name}/*" and not key:"{name}/loader_benchmark"', "--partition 'fog|5'")
    for name in ("arrays", *(f"kinds/{kind}" for kind in _KINDS))
)

SHARDS = (
    step(
        "tta-pipeline shards make ../sources/tree ../web/shards --samples-per-shard 6 --jobs 2 "
        "--resize 36 --center-crop 32"
    ),
    step("tta-pipeline shards make ../sources/deep out/deep --group-depth 3 --num-shards 2"),
    step("tta-pipeline shards make ../sources/shifts out/shifts --group-depth 1 --shift-set styles --num-shards 2"),
    step(
        "tta-pipeline shards make ../sources/shifts out/refused --group-depth 1 --shift-set imagenet_r --num-shards 2",
        1,
    ),
    step("tta-pipeline shards make ../sources/tree out/prefix --group-prefix fog/5 --num-shards 2"),
    step("tta-pipeline shards make --config shard_options.yaml"),
    step(f"{ONE} --num-shards 3 --shard-name images-%06d.tar --suffix jpg --order permuted --storage raw -q"),
    step(f"{ONE} --samples-per-shard 5 --max-shard-bytes 20480 --order by_class --seed 3 --quiet"),
    step(f"{ONE} {TWO} --order source --storage tensor --resize 36 --center-crop 32 --json"),
    step(f"{ONE} {TWO} --order dirichlet --delta 0.5 --resize 32 --quality 80 --labels --decode-all"),
    step("tta-pipeline shards make ../sources/damaged out/damaged --group-depth 0 --num-shards 2 --skip-damaged"),
    step(
        "tta-pipeline shards make ../sources/other_classes out/foreign --group-depth 0 --num-shards 2 "
        "--class-map ../sources/classes.json --skip-foreign-classes"
    ),
    step(
        "tta-pipeline shards make ../sources/weather.tar ../sources/noise.tar out/archives --layout corruptions "
        "--num-shards 2 --expect-md5 noise.tar=@md5"
    ),
    step("tta-pipeline shards make ../sources/classes.tar out/classes --layout classes --num-shards 2"),
    step("tta-pipeline shards make ../sources/nested.tar out/nested --layout nested --num-shards 2"),
    step(
        "tta-pipeline shards make ../sources/flat.tar out/flat --layout flat --num-shards 2 "
        "--ground-truth ../sources/truth.txt --ground-truth-name ILSVRC2012_val_%08d.JPEG",
    ),
    step(
        "tta-pipeline shards make ../sources/files out/files --group-depth 0 --num-shards 2 "
        "--ground-truth ../sources/truth.json"
    ),
    step(
        "tta-pipeline shards make ../sources/one out/pattern --group-depth 0 --num-shards 2 "
        "--class-pattern '^(n[0-9]+)/'"
    ),
    step(
        "tta-pipeline shards make ../sources/arrays out/arrays --shift-set cifar_10_c --num-shards 2 "
        "--class-map cifar_10"
    ),
    *(step(f"tta-pipeline shards verify data/first/shards ../web/shards {option}") for option in ("", *QUIET)),
    step("tta-pipeline shards adopt ../sources/adopt/plain"),
    step("tta-pipeline shards adopt ../sources/adopt/plain -q"),
    step("tta-pipeline shards adopt ../sources/adopt/named --files 'val-*.tar' --class-map ../sources/classes.json"),
    step("tta-pipeline shards adopt ../sources/adopt/devkit --devkit ../sources/meta.mat --quiet"),
    step("tta-pipeline shards adopt ../sources/adopt/packed --unpack --json"),
    step("tta-pipeline shards adopt file://@root/web/shards/fog/3 --into adopted", status=1),
    step("tta-pipeline shards fetch '@web/shards/{fog,gaussian_noise}/5' fetched"),
    *(step(f"tta-pipeline shards fetch file://@root/web/shards/fog/3 fetched@n {option}") for option in QUIET),
    step("tta-pipeline download our downloaded"),
    step("tta-pipeline download our downloaded@n --archive weather.tar -q"),
    step("tta-pipeline download our downloaded@n --shift fog --quiet"),
    step("tta-pipeline download our downloaded --json"),
    *(step(f"tta-pipeline shards split {FOG} parts@n --parts 2 {option}") for option in ("", *QUIET)),
    step(
        "tta-pipeline shards transform ../web/shards small --function own_images:grey --resize 36 "
        "--center-crop 32 --jobs 2"
    ),
    step("tta-pipeline shards transform ../web/shards small@n --resize 32 --storage tensor -q"),
    step("tta-pipeline shards transform ../web/shards small@n --resize 32 --storage raw --quality 80 --labels --quiet"),
    step("tta-pipeline shards transform ../web/shards/fog/5 small@n --storage tensor --json"),
)

EVALUATIONS = (
    step(EVALUATE),
    step(f"{EVALUATE} --method tent --preset cifar --limit 100 --set lr=0.01 --batch-size 50 --seed 1 --device cpu -q"),
    step(f"{EVALUATE} --method own_method:SHARPENED --preset imagenet --limit 50 --set temperature=0.5 --quiet"),
    step(f"{EVALUATE} --method tent --preset imagenet_vit --limit 20 --json"),
    step(f"{EVALUATE} --method tent --limit 20 --wide"),
    step(
        f"tta-pipeline evaluate {FOG} --model torchvision:shufflenet_v2_x0_5 --weights shufflenet.safetensors "
        "--mean 0.5 0.5 0.5 --std 0.5 0.5 0.5 --limit 20"
    ),
    step(f"tta-pipeline evaluate {FOG} --model torchvision:shufflenet_v2_x0_5 --weights none --seed 1 --limit 20"),
    step(f"{EVALUATE} --method norm --record tried"),
    *(
        step(f"tta-pipeline models check first cnn --limit 60 --format {form} {option}")
        for form, option in zip(FORMATS, ("-q", "--quiet", "--seed 1", "--device cpu"), strict=True)
    ),
    step("tta-pipeline models check first cnn --limit 60 --json"),
    step("tta-pipeline models check first cnn --limit 60 --wide"),
    *(step(f"tta-pipeline why first tent 'fog|5' {options}") for options in ("", "--all", "--json", "--device cpu")),
    step("tta-pipeline why own submitted 'fog|5'", 1),
    remeasure("first/evaluation/norm", "first__evaluation__norm", TTA_RESULTS_URL=f"s3://{BUCKET}"),
    remeasure(
        "first/evaluation/source",
        "first__evaluation__source",
        '{"decoded_folder": "../decoded", "stage_folder": "../staged", "decode_threads": 1}',
    ),
    remeasure("first/evaluation/tent", "first__evaluation__tent", '{"launch": "torchrun --nproc-per-node 1"}'),
)

RESULTS = (
    step("tta-pipeline metrics"),
    step("tta-pipeline metrics --by corruption"),
    step("tta-pipeline compare --runs @run1 @run2"),
    step("tta-pipeline metrics --benchmark own --wide"),
    step("tta-pipeline compare tent norm"),
    step("tta-pipeline compare tent norm --corruption fog --cells --wide"),
    step("tta-pipeline compare tent norm --benchmark digits_c --classes"),
    *(step(f"tta-pipeline compare tent norm --format {form} --output out/compared.{form} --rows 3")
      for form in (*FORMATS, "parquet")),
    step("tta-pipeline compare tent norm --json"),
    step("tta-pipeline metrics --sql 'FROM corruption_errors ORDER BY ALL' --rows 5"),
    *(step(f"tta-pipeline metrics --format {form} --output out/leaderboard.{form}") for form in (*FORMATS, "parquet")),
    step("tta-pipeline metrics --json"),
    step("tta-pipeline metrics --published published.csv --line tent"),
    step("tta-pipeline metrics --sql \"FROM mce_against('source') ORDER BY ALL\""),
    step("tta-pipeline metrics --sql 'FROM progress_by(20) ORDER BY ALL' --format csv"),
    *(step(f"tta-pipeline results rebuild {option}") for option in ("", *QUIET)),
    step(f"tta-pipeline results fetch s3://{BUCKET}", TTA_DATA_ROOT="@root/other"),
    *(step(f"tta-pipeline results fetch {option}", TTA_DATA_ROOT="@root/another", TTA_RESULTS_URL=f"s3://{BUCKET}")
      for option in QUIET),
    step("tta-pipeline shards publish first out/published"),
    step("tta-pipeline shards publish first out/published@n --cell 'fog|5' --cell 'fog|3' --title Fog "
         "--licence MIT -q"),
    step("tta-pipeline shards publish --shards ../web/shards out/published@n --shift-set imagenet_c --quiet"),
    step("tta-pipeline shards publish own out/published@n --json"),
    step("tta-pipeline shards publish first out/dated --cell 'fog|5' --published-on 2026-02-03 -q"),
    step("tta-pipeline results label first ../sources/classes.json", 2),
    step("tta-pipeline results label first ../sources/classes.json --cell 'fog|5' -q", 2),
    *(step(f"tta-pipeline results label first ../sources/classes.json {option}", 2) for option in QUIET[1:]),
    step("tta-pipeline results publish first published"),
    step("tta-pipeline results publish first published@n --experiment tent --robustbench -q"),
    step("tta-pipeline results publish first published@n --experiment norm --quiet"),
    step("tta-pipeline results publish own published@n --json", status=1),
    step("tta-pipeline results reproduce published/tent"),
    step("tta-pipeline results reproduce published/tent --cell 'fog|5' --device cpu --within 0.01 --json"),
    step("tta-pipeline results publish first published@n --experiment source --predictions --quiet"),
    step("tta-pipeline gate first --max mean_error=1 --max ece=1 --min mean_confidence=0 --device cpu"),
    step("tta-pipeline gate first --experiment norm --no-worse-than published --margin 0.5 --junit out/gate.xml "
         "--markdown out/gate.md --json"),
    step("tta-pipeline gate first --experiment tent --no-worse-than nowhere", 1),
    step(f"{BENCH}"),
    step(f"{BENCH} --processes 2 --batch-size 32 --normalization own --stage -q"),
    step(f"{BENCH} --normalization host --quiet"),
    step(f"{BENCH} --normalization device --device cpu --json"),
    *(step(f"tta-pipeline shards bench --generate 40 --image-size 32 --storage {form} --loader indexed --threads 0 "
           "--repeats 1") for form in ("raw", "tensor")),
    step("tta-pipeline shards bench @web/shards/fog/5 --loader indexed --threads 1 --repeats 1"),
)  # fmt: skip

BENCHMARK_FILES = (
    step("tta-pipeline new-benchmark tree ../sources/tree --output drafts/tree.yaml"),
    step("tta-pipeline new-benchmark archive ../sources/weather.tar ../sources/noise.tar --output -"),
    step("tta-pipeline new-benchmark modelled ../sources/tree --model torchvision:resnet18 --weights none --output -"),
    step("tta-pipeline new-benchmark arrays ../sources/arrays", TTA_DATA_ROOT="@root/other"),
    *(step(f"tta-pipeline new-benchmark later --like {name} --output -")
      for name in ("imagenet_c", "tiny_imagenet_c", "cifar10_c", "cifar100_c")),
    step("tta-pipeline new-benchmark sets ../sources --like ttabc --output -"),
)  # fmt: skip

_SUBMIT = "tta-pipeline submit own --experiment submitted"
_ON = "-w workspace.yaml"

CLUSTER = (
    *(step(f"{_SUBMIT} --piece {piece} --dry-run") for piece in ("corruption", "cell", "stream")),
    *(step(f"{_SUBMIT} --engine {engine} --dry-run") for engine in ("local", "ray", "slurm")),
    step(f"{_SUBMIT} --engine slurm --engine-config slurm.yaml --dry-run"),
    step(f"{_SUBMIT} --devices 1 --device cpu --compute decode_threads=1"),
    step("tta-pipeline submit own --status"),
    step("tta-pipeline submit own --cancel --number 1"),
    step("tta-pipeline submit own --status"),
    Step(name="daemon", command=f"dagster-daemon run {_ON}", stays=True),
    Step(name="daemon is alive", command="dagster-daemon liveness-check", until_s=60.0),
    step(f"dagster sensor start submissions {_ON}"),
    step(f"{_SUBMIT} --watch"),
)

CLEANING = (
    step("tta-pipeline models stop-training first", 1),
    step("tta-pipeline models stop-training own cnn", 1),
    step("tta-pipeline clean --dry-run"),
    *(step(f"tta-pipeline clean {kind} --dry-run --json", name=f"clean {kind}")
      for kind in ("superseded", "gone", "predictions", "states")),
    step("tta-pipeline clean unfinished --beside out --dry-run --json"),
    step("tta-pipeline clean decoded --decoded ../decoded --dry-run --json"),
    step("tta-pipeline clean gone", 2),
    step("tta-pipeline clean --yes --decoded ../decoded"),
    step("tta-pipeline metrics", name="metrics at the end"),
    step("tta-pipeline doctor", name="doctor at the end"),
)  # fmt: skip

STEPS = (
    *PROJECT, *OWN, *RUN, *EMBEDDED, *SHARDS, *KINDS, *EVALUATIONS, *RESULTS, *BENCHMARK_FILES, *CLUSTER, *CLEANING,
)  # fmt: skip


def help_steps(known: Mapping[str, Any]) -> Iterator[Step]:
    """Yield a step for each spelling of help of the command line and of each verb, and for its version.

    Args:
        known: Parameters by verb; the command line's own are those of the verb "".
    """
    for verb, parameters in known.items():
        for name in ("-h", "--help", "--version"):
            if any(name in parameter["names"] for parameter in parameters):
                yield step(f"tta-pipeline {verb} {name}", name=f"{verb or 'all'} {name}")
