"""Evaluation of a stream, segment by segment, from the state in which it was interrupted."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import islice

from tta_pipeline.benchmarks.experiment_specs import Experiment
from tta_pipeline.domain.streams import StreamPlan
from tta_pipeline.evaluation.build_records import build_records
from tta_pipeline.evaluation.evaluator import Checkpoint, Evaluator
from tta_pipeline.evaluation.fingerprint import Fingerprint
from tta_pipeline.evaluation.inputs import Inputs
from tta_pipeline.evaluation.measured_pass import MeasuredPass
from tta_pipeline.evaluation.prefetch import Prefetcher, Step
from tta_pipeline.evaluation.recorder import Recorder
from tta_pipeline.evaluation.stream_states import NUM_KEPT, StreamStates
from tta_pipeline.evaluation.subject import ModelFacts, StatedFacts, Subject
from tta_pipeline.results.records import utc_now
from tta_pipeline.util.graceful_stop import raise_if_stop_requested
from tta_pipeline.util.json_values import JsonObject
from tta_pipeline.util.plurals import count_of
from tta_pipeline.util.progress import Progress


class StreamRunner:
    """Evaluates and records the streams of an experiment.

    Args:
        inputs: What decides the predictions.
        make_evaluator: Makes the evaluator, which leases a device; called before the first stream.
        prefetcher: Opens the segments.
        recorder: Records the results.
        resumes: Whether an interrupted stream continues from its newest state.
        tell: Called with progress messages.
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        make_evaluator: Callable[[], Evaluator],
        prefetcher: Prefetcher,
        recorder: Recorder,
        resumes: bool,
        tell: Callable[[str], None],
    ) -> None:
        self._inputs = inputs
        self._make_evaluator = make_evaluator
        self._prefetcher = prefetcher
        self._recorder = recorder
        self._resumes = resumes
        self._tell = tell

    def run(self, plan: StreamPlan) -> None:
        """Evaluate and record the segments of *plan* that are left.

        An interrupted stream continues from its newest state: the last one inside the interrupted segment, or the one
        after the last recorded segment.

        Raises:
            ManifestError, StreamError, EvaluationError: see `Evaluator.evaluate`.
            StoppedError: this process was asked to end; the preceding segments are recorded.
        """
        position, done = self._restore_state(plan)
        fingerprints = self._inputs.fingerprints(plan)
        recent = deque((each.sha256 for each in islice(fingerprints, position)), maxlen=NUM_KEPT)
        for segment in plan.segments[position:]:
            raise_if_stop_requested()
            self._evaluate(Step(plan, segment), done, fingerprints, recent)
            done = []

    def _restore_state(self, plan: StreamPlan) -> tuple[int, list[MeasuredPass]]:
        """Restore the method to the state at which *plan* was interrupted, or to the source model.

        Returns:
            The position of the next segment, and its finished parts.
        """
        self._evaluator.start(self._inputs.manifest(plan.segments[0].cells[0]), seed=plan.seed)
        num_finished = self._recorder.num_finished(plan) if self._resumes else 0
        if not self._resumes or num_finished == len(plan.segments):
            return 0, []
        states, where = self._states(plan), f"position {{}} of {len(plan.segments)}"
        fingerprints = [each.sha256 for each in islice(self._inputs.fingerprints(plan), num_finished + 1)]
        if within := states.read_newest_within(fingerprints[num_finished], self._tell):
            state, done = within
            self._evaluator.load_state_dict(state)
            num_samples = sum(len(part.collected.samples.indices) for part in done)
            after = f"after {count_of(num_samples, 'image')}"
            self._tell(f"stream {plan.key.key} continues at {where.format(num_finished)}, {after}")
            return num_finished, done
        found = states.read_newest(fingerprints[:num_finished], self._tell)
        if found is None:
            return 0, []
        position, state = found
        self._evaluator.load_state_dict(state)
        self._tell(f"stream {plan.key.key} continues at {where.format(position)}")
        return position, []

    def _evaluate(
        self, step: Step, done: Sequence[MeasuredPass], fingerprints: Iterator[Fingerprint], recent: deque[str]
    ) -> None:
        """Evaluate *step*, whose parts *done* were evaluated before, and record it.

        Before that, the state of a continuing stream is saved, so that a kill loses one segment.

        Args:
            step: The segment to evaluate.
            done: Its finished parts.
            fingerprints: Fingerprints of this segment, as its shards are when they are opened, and of later ones.
            recent: Hashes of the newest fingerprints, whose states are kept; that of this segment is added.
        """
        started_at, segment = utc_now(), step.segment
        with self._prefetcher.opened(step) as opened:
            self._inputs.note_opened(segment.cells, opened)
            present = next(fingerprints)
            recent.append(present.sha256)
            what = ", ".join(dict.fromkeys(cell.key for cell in segment.cells[:3]))
            progress = Progress(self._tell, what=what, total=len(opened.order))
            measurement = self._evaluator.evaluate(
                opened,
                progress.advance,
                segment=(step.plan.key.key, segment.position),
                done=done,
                checkpoint=self._make_checkpoint(step.plan, present, len(done)),
            )
        if num_nonfinite := measurement.measured.counters["num_nonfinite_batches"]:
            batches = f"{num_nonfinite:,} of {count_of(len(measurement.measured.collected.batches), 'batch')}"
            self._tell(f"{what}: found NaN or infinite logits{self._evaluator.place} in {batches}")
        states, goes_on = self._states(step.plan), segment is not step.plan.segments[-1]
        results = tuple(build_records(self._subject(step, present), measurement))
        if goes_on:
            states.save(present.sha256, self._evaluator.state_dict())
        self._recorder.record(step, results, started_at=started_at)
        states.keep_only(recent if goes_on else [])

    def _make_checkpoint(self, plan: StreamPlan, present: Fingerprint, num_done: int) -> Checkpoint:
        """Return the checkpoint inside the segment of *plan* that is *present*, *num_done* parts of which are done."""
        states, fingerprint = self._states(plan), present.sha256
        states.remove_within(fingerprint, after=num_done)

        def save(number: int, part: MeasuredPass) -> None:
            states.save_within(fingerprint, number, self._evaluator.state_dict(), part)
            raise_if_stop_requested()

        return Checkpoint(every=self._inputs.machine.checkpoint_every, save=save)

    def _subject(self, step: Step, present: Fingerprint) -> Subject:
        """Return what is evaluated at *step*."""
        experiment, machine = self._inputs.experiment, self._inputs.machine
        spec = experiment.resolved.experiment
        return Subject(
            benchmark=experiment.benchmark.file,
            stated=StatedFacts.of(experiment),
            stream=step.plan.key.key,
            position=step.segment.position,
            visit=step.segment.visit,
            seed=step.plan.seed,
            fingerprint=present,
            code_sha256=self._inputs.code_sha256,
            model=ModelFacts.of(self._inputs.model),
            method=spec.method_name,
            protocol=spec.protocol.name,
            subset=spec.subset.name if spec.subset else "all",
            settings=_recorded_settings(spec),
            batch_size=spec.batch_size,
            precision=spec.precision,
            compile=spec.compile,
            num_threads=machine.num_threads,
            streams_per_device=machine.streams_per_device,
        )

    def _states(self, plan: StreamPlan) -> StreamStates:
        return StreamStates(folder=self._inputs.experiment.states_folder(plan))

    @cached_property
    def _evaluator(self) -> Evaluator:
        return self._make_evaluator()


def _recorded_settings(experiment: Experiment) -> JsonObject:
    hyperparameters = experiment.configured_hyperparameters().model_dump(mode="json")
    return {**experiment.model_dump(mode="json"), "hyperparameters": hyperparameters}
