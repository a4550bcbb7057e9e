"""The sections of the day in their order. The section `verdicts`, which the command adds, is made from their lines."""

from bench.gpu_day.run_sections import Section

MOST_S = 540
"""Largest number of seconds for the whole day, so that it fits into one command on a borrowed machine."""

SECTIONS = (
    Section(
        name="images", function="bench.gpu_day.images:images", limit_s=40,
        summary="makes the images and shards that the others read",
    ),
    Section(
        name="machine", function="bench.gpu_day.machine:machine", limit_s=12,
        summary="versions, clocks, copies to the device",
    ),
    Section(
        name="sanitizer", function="bench.gpu_day.correct:sanitizer", limit_s=18,
        summary="CUDA's stream sanitizer over one stream, whose bytes are compared",
    ),
    Section(
        name="methods", function="bench.gpu_day.correct:methods", limit_s=42,
        summary="predictions of all methods against the CPU's, and repeated",
    ),
    Section(
        name="precision", function="bench.gpu_day.precision:precision", limit_s=25,
        summary="bf16 and tf32 against fp32, and gradients of fp16",
    ),
    Section(
        name="waits", function="bench.gpu_day.waits:waits", limit_s=30,
        summary="waits of the host inside a batch of each method",
    ),
    Section(
        name="memory", function="bench.gpu_day.memory:memory", limit_s=15,
        summary="live memory over a pass, and the error of a batch that is too large",
    ),
    Section(
        name="speed", function="bench.gpu_day.speed:speed", limit_s=115,
        summary="shards to predictions against batches on the device; tent against a bare loop",
    ),
    Section(
        name="graphs", function="bench.gpu_day.graphs:graphs", limit_s=100,
        summary="compiled with CUDA graphs: the same predictions, nothing compiled again",
    ),
    Section(
        name="cells", function="bench.gpu_day.cells:cells", limit_s=53,
        summary="cells in a row, and a stream that is killed and resumed",
    ),
    Section(
        name="profile", function="bench.gpu_day.profiled:profile", limit_s=62,
        summary="longest kernels, and how busy the device is",
    ),
    Section(
        name="jpeg", function="bench.gpu_day.jpeg:jpeg", limit_s=20,
        summary="JPEG decoded by the GPU",
    ),
)  # fmt: skip
