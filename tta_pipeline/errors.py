"""The exceptions of this project in one tree: a caller can catch the base or a leaf.

    PipelineError                   any input this project rejects, or work it cannot finish
     ├── DataRootError              the data root has a name that the database or the logs cannot handle
     ├── SettingsError              an environment variable or dagster.yaml has an invalid value
     ├── BenchmarkFileError         a benchmark file is invalid
     ├── PartitionKeyError          a partition key is not one of the benchmark's cells
     ├── ImagesError                images to convert are missing, damaged or ambiguous
     │    └── ClassMapError         class folders and class map disagree
     ├── ShardError                 a shard set cannot be written or published
     │    └── ManifestError         shards and manifest disagree, or one of them is missing
     ├── StreamError                a stream delivered other samples than its manifest names
     ├── LoaderError                a loader cannot be measured
     ├── AdaptationError            a method cannot be built, or does not fit this model
     ├── EvaluationError            an evaluation cannot start or did not see every sample
     │    └── ClassCountError       a model has other outputs than the benchmark has classes
     ├── RecordError                a result record cannot be read or stored
     ├── ReportError                there is nothing to report on
     ├── QuestionError              a query of the database is invalid, or fails
     ├── WorkerError                a worker process was ended from outside
     └── SubmissionError            work cannot be submitted to a cluster, or the cluster does not respond

Every message has three parts: `<what is wrong, with value and place>; expected <what>: <what to do>`. Logs keep it in
one line, and terminals show it in three (`in_lines`).
"""

import re

_EXPECTED = "; expected "
_VALUE = re.compile(r"""`[^`]*`|'[^']*'|"[^"]*"|\{[^}]*\}|\([^)]*\)""")
_FIX = re.compile(r": (?=[a-z])")


class PipelineError(Exception):
    """Base of every error this project raises on purpose."""


def in_lines(message: str) -> str:
    """Return *message* in up to three lines: what is wrong; what was expected; what to do.

    Colons inside quotes, braces and parentheses belong to values, such as `{kind: digits}`.
    """
    wrong, _, rest = "; ".join(line.strip() for line in message.splitlines()).partition(_EXPECTED)
    if not rest:
        return wrong
    fixes = [*_FIX.finditer(_VALUE.sub(lambda value: "_" * len(value[0]), rest))]
    at = fixes[-1].start() if fixes else len(rest)
    return "\n".join([wrong, f"  expected: {rest[:at]}", *(f"  fix: {fix}" for fix in [rest[at + 2 :]] if fix)])


def on_one_line(error: object) -> str:
    """Return the message of *error* in one line."""
    return ", ".join(line.strip() for line in str(error).splitlines())


class DataRootError(PipelineError):
    """The data root has a name that the database or the logs cannot handle."""


class SettingsError(PipelineError):
    """A setting, such as an environment variable, has an invalid value."""


class BenchmarkFileError(PipelineError):
    """A benchmark file is invalid."""


class PartitionKeyError(PipelineError):
    """A partition key is not one of the benchmark's cells."""


class ImagesError(PipelineError):
    """Images to convert are missing, damaged or ambiguous."""


class ClassMapError(ImagesError):
    """Class folders and class map disagree."""


class ShardError(PipelineError):
    """A shard set cannot be written or published."""


class ManifestError(ShardError):
    """Shards and manifest disagree, or one of them is missing."""


class StreamError(PipelineError):
    """A stream delivered other samples than its manifest names."""


class LoaderError(PipelineError):
    """A loader cannot be measured."""


class AdaptationError(PipelineError):
    """A method cannot be built, or does not fit this model."""


class EvaluationError(PipelineError):
    """An evaluation cannot start or did not see every sample."""


class ClassCountError(EvaluationError):
    """A model has another number of outputs than the benchmark has classes."""


class RecordError(PipelineError):
    """A result record cannot be read or stored."""


class ReportError(PipelineError):
    """There is nothing to report on."""


class QuestionError(PipelineError):
    """A query of the database is invalid, or fails."""


class WorkerError(PipelineError):
    """A worker process was ended from outside."""


class SubmissionError(PipelineError):
    """Work cannot be submitted to a cluster, or the cluster does not respond."""
