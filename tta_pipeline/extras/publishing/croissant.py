"""A data set in Croissant 1.1, which mlcroissant and data-set search engines read: http://mlcommons.org/croissant/1.1."""

from collections.abc import Iterator
from datetime import date

from tta_pipeline.extras.publishing.data_set import GENERATED, DataSet
from tta_pipeline.extras.publishing.published_cell import PublishedCell
from tta_pipeline.shards.shard_set import SAMPLES_FILE
from tta_pipeline.util.files import hash_file
from tta_pipeline.util.json_values import Json, JsonObject

_CONTEXT: JsonObject = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
_KEY_OF_MEMBER = r"^((?:.*/)?[^/.]+)"
"""webdataset's key: the member's name up to the first dot of its last part. Applied to a key, it returns the key, as
needed because mlcroissant applies it to both sides of a join."""
_MEDIA_TYPES = {
    "jpg": "image/jpeg", "jpeg": "image/jpeg", "png": "image/png", "webp": "image/webp", "bmp": "image/bmp",
}  # fmt: skip


def croissant_metadata(data_set: DataSet, published_on: date) -> JsonObject:
    """Return the content of `croissant.json`: each tar with its sha256, a record set for each cell, and the terms."""
    terms = data_set.terms
    content: JsonObject = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": data_set.name,
        "description": data_set.description,
        "version": "1.0.0",
        "datePublished": published_on.isoformat(),
        "isLiveDataset": False,
        "creator": {"@type": "sc:Organization", "name": f"made with tta_pipeline {data_set.code_version}"},
        "keywords": ["robustness", "image classification", "corruptions", "test-time adaptation"],
        **_rai_fields(data_set),
        "distribution": [each for cell in data_set.cells for each in _files(cell)],
        "recordSet": [_classes(data_set), *(each for cell in data_set.cells for each in _records(cell))],
    }
    stated: JsonObject = {"license": terms.address, "citeAs": terms.citation, "url": terms.homepage}
    return {**content, **{name: text for name, text in stated.items() if text}}


def _rai_fields(data_set: DataSet) -> JsonObject:
    manifests = [cell.shard_set.manifest for cell in data_set.cells]
    sources = ", ".join(sorted({f"{manifest.source.kind} {manifest.source.version[:12]}" for manifest in manifests}))
    encodings = {manifest.encoding.model_dump_json(exclude_none=True) for manifest in manifests}
    left_out = sum(manifest.source.num_images - manifest.source.num_taken for manifest in manifests)
    origin = GENERATED if data_set.is_generated else "The images are those of the source, byte for byte."
    if any(manifest.encoding.function or manifest.encoding.resize for manifest in manifests):
        origin = "The images were changed after they were read from the source."
    return {
        "rai:dataCollection": f"Read from the source ({sources}) and written as tar shards. {origin}",
        "rai:dataCollectionMissingData": f"{left_out:,} images of the source were left out as damaged or foreign.",
        "rai:dataPreprocessingProtocol": f"Encoding of the stored images: {', '.join(sorted(encodings))}.",
        "rai:dataAnnotationProtocol": "Labels are those of the source's classes; nothing was annotated anew.",
        "rai:dataUseCases": "Evaluation of image classifiers under distribution shift, with and without adaptation.",
        "rai:dataLimitations": "Corruptions of still images; errors under them need not carry over to other shifts.",
        "rai:dataBiases": "Those of the source: its choice of classes, places and photographers.",
        "rai:dataSocialImpact": "Not assessed by this project.",
        "rai:personalSensitiveInformation": "Not examined by this project; see the source.",
    }


def _files(cell: PublishedCell) -> Iterator[JsonObject]:
    for shard in cell.shard_set.manifest.shards:
        yield {
            "@type": "cr:FileObject",
            "@id": f"{cell.place}/{shard.name}",
            "name": shard.name,
            "contentUrl": f"{cell.place}/{shard.name}",
            "contentSize": f"{shard.shard_bytes} B",
            "encodingFormat": "application/x-tar",
            "sha256": shard.sha256,
        }
    index = cell.shard_set.folder / SAMPLES_FILE
    yield {
        "@type": "cr:FileObject",
        "@id": f"{cell.place}/{SAMPLES_FILE}",
        "name": f"{cell.name}/{SAMPLES_FILE}",
        "description": "Key, label, shard, offset, size in bytes and sha256 of each sample.",
        "contentUrl": f"{cell.place}/{SAMPLES_FILE}",
        "contentSize": f"{index.stat().st_size} B",
        "encodingFormat": "application/x-parquet",
        "sha256": hash_file(index),
    }
    yield {
        "@type": "cr:FileSet",
        "@id": f"{cell.name}-images",
        "name": f"{cell.name}-images",
        "containedIn": [{"@id": f"{cell.place}/{shard.name}"} for shard in cell.shard_set.manifest.shards],
        "encodingFormat": sorted(
            {_MEDIA_TYPES.get(each.lower(), f"image/{each.lower()}") for each in cell.image_types}
        ),
        "includes": [f"*.{each}" for each in cell.image_types],
    }


def _classes(data_set: DataSet) -> JsonObject:
    return {
        "@type": "cr:RecordSet",
        "@id": "classes",
        "name": "classes",
        "description": "The classes in the order of their labels.",
        "dataType": "sc:Enumeration",
        "key": {"@id": "classes/label"},
        "field": [_field("classes", "label", "sc:Integer"), _field("classes", "name", "sc:Text")],
        "data": [{"classes/label": label, "classes/name": name} for label, name in enumerate(data_set.classes)],
    }


def _records(cell: PublishedCell) -> Iterator[JsonObject]:
    """Yield two record sets of a cell: its labels by key, and its samples, which are joined with the labels by key."""
    manifest, labels = cell.shard_set.manifest, f"{cell.name}-labels"
    index = {"fileObject": {"@id": f"{cell.place}/{SAMPLES_FILE}"}}
    images = {"fileSet": {"@id": f"{cell.name}-images"}}
    of_member = {**images, "extract": {"fileProperty": "fullpath"}, "transform": {"regex": _KEY_OF_MEMBER}}
    yield {
        "@type": "cr:RecordSet",
        "@id": labels,
        "name": labels,
        "description": f"The label of each sample of {manifest.corruption} at severity {manifest.severity}.",
        "key": {"@id": f"{labels}/key"},
        "field": [
            _field(labels, "key", "sc:Text", source={**index, "extract": {"column": "key"}}),
            _field(labels, "label", "sc:Integer", source={**index, "extract": {"column": "label"}}),
        ],
    }
    yield {
        "@type": "cr:RecordSet",
        "@id": cell.name,
        "name": cell.name,
        "description": f"{manifest.num_samples:,} samples of {manifest.corruption} at severity {manifest.severity}.",
        "key": {"@id": f"{cell.name}/key"},
        "field": [
            _field(cell.name, "key", "sc:Text", source=of_member, references={"field": {"@id": f"{labels}/key"}}),
            _field(cell.name, "image", "sc:ImageObject", source={**images, "extract": {"fileProperty": "content"}}),
            _field(cell.name, "label", "sc:Integer", source={"field": {"@id": f"{labels}/label"}}),
            _field(cell.name, "corruption", "sc:Text", value=manifest.corruption),
            _field(cell.name, "severity", "sc:Integer", value=manifest.severity),
        ],
    }


def _field(record_set: str, name: str, data_type: str, **further: Json) -> JsonObject:
    return {
        "@type": "cr:Field",
        "@id": f"{record_set}/{name}",
        "name": name,
        "description": _DESCRIPTIONS[name],
        "dataType": data_type,
        **further,
    }


_DESCRIPTIONS = {
    "key": "webdataset's key of the sample, unique in its cell.",
    "image": "The image.",
    "label": "Number of the class, from 0.",
    "name": "Name of the class.",
    "corruption": "Name of the shift.",
    "severity": "Severity of the shift; 0 for clean images and for sets without severities.",
}
