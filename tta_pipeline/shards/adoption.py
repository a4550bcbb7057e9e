"""Adopt third-party shards: read every byte and build a manifest, without rewriting a shard."""

import hashlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tta_pipeline.data.images.class_folders import WRAPPERS
from tta_pipeline.data.images.existing_shards import (
    ONE_BASED_ADVICE,
    classes_in_label_order,
    find_wrapper_folders,
    name_of_class,
    replace_number_by_name,
    version_with_ids,
)
from tta_pipeline.data.images.shard_files import find_shard_files, shards_version, unpacked_path
from tta_pipeline.data.labels.class_map import ClassMap
from tta_pipeline.domain.cells import Cell
from tta_pipeline.errors import ClassMapError, ManifestError
from tta_pipeline.shards.backfill_checksums import backfill_checksums
from tta_pipeline.shards.expected_shard_set import ExpectedShardSet
from tta_pipeline.shards.manifest import MANIFEST_FILE, WRITER_FILE, read_manifest
from tta_pipeline.shards.sample_index import keys_sha256
from tta_pipeline.shards.set_contents import (
    PublishedShardSet,
    SetContents,
    find_described_set,
    find_duplicate_keys,
    publish_contents,
    read_contents,
    refuse_problems,
    shard_differences,
)
from tta_pipeline.shards.set_facts import (
    Manifest,
    ShardFacts,
    SourceFacts,
    StoredEncoding,
    StoredOrder,
)
from tta_pipeline.shards.shard_reading import Sample, ShardContents
from tta_pipeline.shards.shard_set import SAMPLES_FILE
from tta_pipeline.shards.stated_totals import require_stated_totals
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.processes import Workers
from tta_pipeline.util.progress import Progress
from tta_pipeline.util.short_lists import abbreviate_list

ADOPTION_REFUSED_ADVICE = (
    "Nothing was changed: run `tta-pipeline shards verify` on this folder to see what is wrong, then make or fetch "
    "these shards again. If they were replaced on purpose, or indexed by another version of tta_pipeline, first remove "
    f"{MANIFEST_FILE} and {SAMPLES_FILE} (for a benchmark of `kind: shards`, rematerialize tar_shards, then "
    "shard_manifest)"
)


def adopt(
    folder: Path,
    cell: Cell,
    progress: Progress,
    *,
    benchmark_name: str,
    class_map: ClassMap | None,
    files: tuple[str, ...] = (),
    names_by_id: Mapping[int, str] | None = None,
    version: str | None = None,
    workers: Workers | None = None,
) -> PublishedShardSet:
    """Build the manifest of third-party shards, reading every byte and rewriting nothing.

    A sample consists of the members with one key: an image, and its class. The class is the folder in the image's name,
    the text of the `.cls` member, or a field of the `.json` member. A whole number in one of these members is a label.
    See `shard_members` for the types of members. If keys start again in every shard, the shard's name is put in front.

    Args:
        folder: Folder of the shards.
        cell: Cell of the shards.
        progress: Counts samples and bytes done.
        benchmark_name: Name of the dataset in the manifest.
        class_map: Labels; None: the sorted classes that are found.
        files: Patterns of the shards' names if the folder contains other tars too; if empty, all tars.
        names_by_id: Class of each number in the shards, if the numbers are not labels but, for example, the devkit's
            `ILSVRC2012_ID`.
        version: Version of the shards; None: a digest of their hashes. With *names_by_id*, the manifest has a digest of
            both, so that a set that was adopted without these names is adopted again.
        workers: Processes that each read one shard at a time, if that is faster; None: this process reads.

    Raises:
        ImagesError: there are no shards.
        ManifestError: a shard is damaged or compressed, a key appears twice, or the folder has a writer's record or a
            manifest of other shards, which only the user may remove.
        ClassMapError: a sample's class is not in the class map, or its label is not the label of its class.
    """
    started = time.perf_counter()
    stated = _read_existing_manifest(
        folder, ExpectedShardSet(cell=cell, class_map_sha256=class_map.sha256 if class_map else None)
    )
    shard_set = find_described_set(folder, class_map) if stated else None
    is_of_these = shard_set is not None and files in ((), shard_set.manifest.files)
    if shard_set is not None and is_of_these and _is_version(shard_set.manifest, version, names_by_id):
        return PublishedShardSet(
            shard_set=backfill_checksums(shard_set), was_built=False, wall_s=time.perf_counter() - started
        )
    if stated is not None and (folder / WRITER_FILE).exists():
        raise ManifestError(
            f"{folder} has shards or an index that {MANIFEST_FILE} does not describe; expected only what the manifest "
            f"lists. {ADOPTION_REFUSED_ADVICE}"
        )
    files = files or (stated.files if stated else ())
    shards = _require_uncompressed(find_shard_files(folder, files))
    before = shards_version(shards)
    contents = read_contents(shards, progress, workers, is_foreign=True)
    if shards_version(_require_uncompressed(find_shard_files(folder, files))) != before:
        raise ManifestError(
            f"{folder}: shards changed while they were being indexed; expected no changes: wait until all shards are "
            "written, then index them again"
        )
    if stated is not None and (other := [*shard_differences(stated.shards, contents)]):
        raise ManifestError(f"{folder}: {abbreviate_list(other, '; ')}. {ADOPTION_REFUSED_ADVICE}")
    require_stated_totals(shards, len(contents.samples))
    if names_by_id is not None:
        contents = _replace_numbers(folder, contents, names_by_id)
    return publish_adopted(
        folder, cell, contents.shards, benchmark_name=benchmark_name, class_map=class_map,
        version=_version(version, names_by_id, contents.facts), files=files, started=started, like=stated,
    )  # fmt: skip


def publish_adopted(
    folder: Path,
    cell: Cell,
    shards: tuple[ShardContents, ...],
    *,
    benchmark_name: str,
    class_map: ClassMap | None,
    started: float,
    version: str,
    files: tuple[str, ...] = (),
    like: Manifest | None = None,
) -> PublishedShardSet:
    """Publish in *folder* the manifest of third-party *shards*, which were read in full or have their own manifest.

    Args:
        folder: Folder of the manifest.
        cell: Cell of the shards.
        shards: Contents of the shards.
        benchmark_name: Name of the dataset in the manifest.
        class_map: Labels; None: the sorted classes that are found.
        started: `time.perf_counter()` when the work began.
        version: Version of the source in the manifest.
        files: Patterns of the shards' names, if the folder has other tars.
        like: The shards' own manifest, if any; it describes how they were made.
    """
    contents = _prefix_numbered_keys(SetContents(shards=shards))
    no_samples = ["the shards have no samples; expected at least one .tar file with images"]
    refuse_problems(folder, [*find_duplicate_keys(contents)] if contents.samples else no_samples)
    stated = (sample.stated for sample in contents.samples)
    class_map = class_map or ClassMap(classes=classes_in_label_order(stated, where=folder))
    left_out, num_hidden = contents.left_out, sum(shard.num_hidden for shard in contents.shards)
    contents = _assign_classes(folder, contents, class_map)
    facts = {
        "benchmark": benchmark_name,
        "corruption": cell.corruption,
        "severity": cell.severity,
        "source": SourceFacts(
            kind="shards",
            generated=like is not None and like.source.generated,
            version=version,
            num_images=len(contents.samples),
            num_hidden=num_hidden,
            num_strays=left_out.total(),
        ),
        "class_map_sha256": class_map.sha256,
        "order": StoredOrder(name="adopted", seed=0, sha256=keys_sha256(contents.keys)),
        "encoding": like.encoding if like else StoredEncoding(),
        "shards": contents.facts,
        "num_samples": len(contents.samples),
        "files": files,
    }
    shard_set = publish_contents(folder, contents, class_map, facts)
    return PublishedShardSet(
        shard_set=shard_set, was_built=True, wall_s=time.perf_counter() - started, left_out=left_out
    )


def _is_version(manifest: Manifest, version: str | None, names_by_id: Mapping[int, str] | None) -> bool:
    """Return whether *manifest* has this version; without version and names, any manifest does."""
    if version is None and names_by_id is None:
        return True
    return manifest.source.version == _version(version, names_by_id, manifest.shards)


def _version(version: str | None, names_by_id: Mapping[int, str] | None, shards: Sequence[ShardFacts]) -> str:
    version = version or hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest()
    return version_with_ids(version, names_by_id)


def _require_uncompressed(shards: Sequence[Path]) -> Sequence[Path]:
    """Return *shards* unless one is compressed: samples in a compressed shard cannot be read by offset."""
    if compressed := [path.name for path in shards if unpacked_path(path) != path]:
        raise ManifestError(
            f"{shards[0].parent} has {count_of(len(compressed), 'compressed shard')} ({abbreviate_list(compressed)}); "
            "expected plain .tar files, since samples in a compressed shard cannot be read by offset: run "
            "`tta-pipeline shards index --unpack`, or name the shards in a benchmark of `kind: shards`, which unpacks "
            "them into the data root"
        )
    return shards


def _prefix_numbered_keys(contents: SetContents) -> SetContents:
    """Return *contents* with the shard's name in each key, if keys start again in every shard, as in CCC.

    Keys start again if each shard begins with the keys of the longest shard. If two shards have the same image under
    the same key, one shard is a copy of the other. Then keys are unchanged, so that the caller finds the duplicates.
    """
    by_shard = [[sample.key for sample in shard.samples] for shard in contents.shards]
    longest = max(by_shard, key=len, default=[])
    if len(by_shard) < 2 or any(keys != longest[: len(keys)] for keys in by_shard):
        return contents
    payloads = Counter((sample.key, sample.sha256) for sample in contents.samples)
    if len(payloads) < len(contents.samples):
        return contents
    return SetContents(
        shards=tuple(
            shard._replace(samples=[_prefix_key(Path(shard.name).stem, sample) for sample in shard.samples])
            for shard in contents.shards
        )
    )


def _prefix_key(shard_name: str, sample: Sample) -> Sample:
    folder, _, file_name = sample.source_name.rpartition("/")
    source_name = f"{folder}/{shard_name}_{file_name}" if folder else f"{shard_name}_{file_name}"
    return sample._replace(key=f"{shard_name}/{sample.key}", source_name=source_name)


def _read_existing_manifest(folder: Path, belonging: ExpectedShardSet) -> Manifest | None:
    """Return the manifest that *folder* already has, or None."""
    if not (folder / MANIFEST_FILE).exists():
        if (folder / WRITER_FILE).exists():
            raise ManifestError(
                f"{folder} has a {WRITER_FILE}, so tta_pipeline wrote these shards; expected third-party shards: make "
                "their manifest with `tta-pipeline shards make` or the asset shard_manifest, which compare the "
                f"shards with {WRITER_FILE}, or remove {WRITER_FILE} to adopt the shards as they are"
            )
        return None
    try:
        return read_manifest(folder, belonging)
    except ManifestError as error:
        raise ManifestError(f"{error}. {ADOPTION_REFUSED_ADVICE}") from None


def _replace_numbers(folder: Path, contents: SetContents, names_by_id: Mapping[int, str]) -> SetContents:
    """Return *contents* with class names instead of numbers."""

    def named(sample: Sample) -> Sample:
        stated = replace_number_by_name(sample.stated, names_by_id, where=folder)
        return sample._replace(label=stated.label, text=stated.text)

    return SetContents(
        shards=tuple(shard._replace(samples=[named(sample) for sample in shard.samples]) for shard in contents.shards)
    )


def _assign_classes(folder: Path, contents: SetContents, class_map: ClassMap) -> SetContents:
    wrappers = _find_wrappers(contents, class_map)
    shards = (
        shard._replace(samples=[_assign_class(folder, sample, class_map, wrappers) for sample in shard.samples])
        for shard in contents.shards
    )
    return SetContents(shards=tuple(shards))


def _find_wrappers(contents: SetContents, class_map: ClassMap) -> frozenset[str]:
    """Return the folders that are not classes.

    Such a folder is not in the class map, and its samples have several labels or the class map has only numbers.
    """
    stated = {sample.stated for sample in contents.samples}
    folders = {one.name for one in stated if one.label is not None or one.text} - class_map.labels.keys()
    has_labels_only = class_map.classes == tuple(str(label) for label in range(len(class_map.classes)))
    return frozenset(folders if has_labels_only else folders & find_wrapper_folders(stated))


def _assign_class(folder: Path, sample: Sample, class_map: ClassMap, wrappers: frozenset[str]) -> Sample:
    """Return *sample* with its class name, from its label if it has one."""
    name = name_of_class(sample.stated, wrappers)
    if sample.label is None:
        if not name:
            raise ManifestError(
                f"{folder}: sample {sample.key} has no class, since its folder {sample.class_name} has samples with "
                "different labels and is therefore not a class folder; expected a .cls member in every sample: add "
                "the missing .cls members"
            )
        if sample.text not in ("", name) and sample.text in class_map.labels:
            raise ClassMapError(
                f"{folder}: sample {sample.key} is in the class folder {name}, but its label member has "
                f"{sample.text}; expected the same class in both: repack the shards with the right class"
            )
        outer = sample.stated.around.rpartition("/")[2]
        if name in WRAPPERS and class_map.labels.keys() >= {name, outer} and outer != name and not sample.text:
            raise ClassMapError(
                f"{folder}: sample {sample.key} is in the folder {name} in {outer}, and both are classes of the class "
                "map; expected one class per sample: repack the shards with class folders only"
            )
        return sample._replace(class_name=name)
    named = class_map.classes[sample.label] if 0 <= sample.label < len(class_map.classes) else None
    if named is None or name not in ("", named):
        is_in = f"the class {name}" if name else "no class folder"
        raise ClassMapError(
            f"{folder}: sample {sample.key} has the label {sample.label} and {is_in}, but label {sample.label} is "
            f"{named or 'no class'} in the class map; expected labels of this class map: use the class map that these "
            f"shards were made with, or {ONE_BASED_ADVICE}"
        )
    return sample._replace(class_name=named)
