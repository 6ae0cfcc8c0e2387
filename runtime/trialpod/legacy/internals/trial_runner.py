"""`TrialRunner`: trials that a script has put together itself, run as one experiment, and followed step by step.

The first `step` starts the experiment, in a thread of this process and with the backend that a `Tuner` would use.
Each step returns when one more event has been processed: the start, a result, a checkpoint, the end of a trial. The
experiment does not wait for the script between its steps, so several events may have been processed by then. What is
added while an experiment runs is run by the next one.

Invariants: trials say what is happening to them now; their state is the experiment's journal, so there is nothing to
be checkpointed besides. An error of the experiment is raised by `step`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trialpod.errors import InvalidInputError, TrainableError
from trialpod.legacy.experiment_analysis import ExperimentAnalysis
from trialpod.legacy.internals.steering import SteeredScheduler, StepWatch
from trialpod.legacy.internals.trial import Trial
from trialpod.tune.placement_groups import PlacementGroupFactory, Resources, to_resources
from trialpod.tune.search.search_algorithm import SearchAlgorithm, Suggestion
from trialpod.tune.trial import Trial as TrialView
from trialpod.tune.trial_config import CheckpointConfig

logger = logging.getLogger(__name__)


class GivenTrials(SearchAlgorithm):
    """Proposes trials that are there already, in their order."""

    def __init__(self, trials: Sequence[tuple[str, dict[str, Any], str]]) -> None:
        self._trials = list(trials)
        self._next = 0

    @property
    def total(self) -> int | None:
        """How many there are."""
        return len(self._trials)

    def set_num_samples(self, num_samples: int) -> None:
        """Do nothing: it is always all of them."""

    def next_suggestion(self) -> Suggestion | None:
        """Return the next one."""
        if self.finished:
            return None
        trial_id, config, tag = self._trials[self._next]
        self._next += 1
        return Suggestion(trial_id, config, tag)

    @property
    def finished(self) -> bool:
        """Whether all have been proposed."""
        return self._next >= len(self._trials)

    def get_state(self) -> dict[str, Any]:
        """Return how many have been proposed."""
        return {"next": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self._next = int(state["next"])


class TrialRunner:
    """Runs trials.

    Args:
        search_alg: proposes trials of the experiments given to `setup_experiments`.
        scheduler: decides on them.
        local_checkpoint_dir: the experiment's directory, ``{storage}/{name}``.
        sync_config: as for `RunConfig`.
        experiment_dir_name: the experiment's name, if `local_checkpoint_dir` is the storage.
        stopper: ends trials and the experiment.
        resume: whether the first step continues with what is in the directory, as for `tune.run`.
        server_port: accepted for compatibility, unused: there is no server.
        fail_fast: as for `FailureConfig`.
        checkpoint_period: accepted for compatibility, unused: everything is journaled at once.
        trial_executor: accepted for compatibility, unused: processes run the trials.
        callbacks: as for `RunConfig`.
        metric: the metric that is tuned.
        trial_checkpoint_config: which checkpoints are made.
        driver_sync_trial_checkpoints: accepted for compatibility, unused.
    """

    CKPT_FILE_TMPL = "experiment_state-{}.json"

    def __init__(
        self,
        search_alg: Any = None,
        scheduler: Any = None,
        local_checkpoint_dir: str | None = None,
        sync_config: Any = None,
        experiment_dir_name: str | None = None,
        stopper: Any = None,
        resume: str | bool = False,
        server_port: int | None = None,
        fail_fast: Any = False,
        checkpoint_period: Any = None,
        trial_executor: Any = None,
        callbacks: Any = None,
        metric: str | None = None,
        trial_checkpoint_config: CheckpointConfig | None = None,
        driver_sync_trial_checkpoints: bool = False,
    ) -> None:
        self._search_alg, self._scheduler, self._stopper = search_alg, scheduler, stopper
        self._running: _Running | None = None
        directory = local_checkpoint_dir or os.path.join("~/trialpod-results", f"trials_{Trial.generate_id()}")
        if experiment_dir_name:
            directory = os.path.join(directory, experiment_dir_name)
        self._directory = os.path.abspath(os.path.expanduser(directory))
        self._settings = {
            "sync_config": sync_config,
            "metric": metric,
            "fail_fast": fail_fast,
            "checkpoint_config": trial_checkpoint_config,
        }
        self._callbacks = list(callbacks or ())
        self._resume: str | bool = resume
        self._resumed = False
        self._trials: list[Trial] = []
        self._experiments: list[Any] = []
        self._steps = 0
        self._stored_resources: dict[str, float] | None = None
        self._ends = False
        if resume and not (isinstance(resume, str) and resume.upper().startswith("AUTO") and not self._exists()):
            self._load()

    @property
    def resumed(self) -> bool:
        """Whether it continues with an experiment of an earlier runner."""
        return self._resumed

    @property
    def search_alg(self) -> Any:
        """What proposes trials of the experiments given to `setup_experiments`."""
        return self._search_alg

    @property
    def scheduler_alg(self) -> Any:
        """What decides on the trials."""
        return self._scheduler

    @classmethod
    def checkpoint_exists(cls, directory: str) -> bool:
        """Return whether a directory holds an experiment to continue with."""
        from trialpod.tune.tuner import Tuner

        return Tuner.can_restore(os.path.expanduser(directory))

    def _exists(self) -> bool:
        return self.checkpoint_exists(self._directory)

    def _load(self) -> None:
        """Know the trials of the experiment in the directory."""
        from trialpod.legacy.experiment_analysis import ExperimentAnalysis

        if not self._exists():
            raise InvalidInputError(
                f"TrialRunner: there is no experiment to resume in {self._directory}; give the "
                "local_checkpoint_dir of the earlier runner, or resume=False"
            )
        self._stored_resources = _stored_resources(self._directory)
        self._follow(ExperimentAnalysis(self._directory).trials)
        self._resumed = True

    def add_trial(self, trial: Trial) -> None:
        """Add a trial, to be run by the next step.

        Raises:
            InvalidInputError: it is none, or its id is taken.
        """
        if not isinstance(trial, Trial):
            raise InvalidInputError(f"TrialRunner.add_trial needs a Trial, not {type(trial).__name__}")
        if any(other.trial_id == trial.trial_id for other in self._trials):
            raise InvalidInputError(f"TrialRunner.add_trial: there is a trial {trial.trial_id} already")
        self._trials.append(trial)

    def setup_experiments(self, experiments: Sequence[Any], total_num_samples: int) -> None:
        """Add experiments, to be run by the next step with the search algorithm."""
        self._experiments = list(experiments)

    def step(self) -> None:
        """Start what has been added, if nothing runs; return when one more event has been processed.

        Raises:
            InvalidInputError: the trials are of several Trainables, or an argument cannot be used.
            TrialpodError: the experiment could not continue.
        """
        if self._running is None:
            self._running = self._started()
        if self._running is None:
            return
        try:
            self._running.watch.wait()
        except KeyboardInterrupt:
            self.cleanup()
            raise
        self._follow(self._running.watch.trials)
        if self._running.thread.is_alive() and not self._running.done:
            return
        ended, self._running = self._running, None
        ended.thread.join()
        if ended.error is not None:
            raise ended.error
        self._follow(ended.analysis.trials)

    def _started(self) -> _Running | None:
        """Start the next experiment; None if there is nothing to run."""
        from trialpod.legacy.run import run
        from trialpod.tune.schedulers import create_scheduler

        waiting = [trial for trial in self._trials if trial.status in (Trial.PENDING, Trial.PAUSED)]
        if self._ends or (not waiting and not self._experiments and not self._resume):
            return None
        scheduler = create_scheduler(self._scheduler) if isinstance(self._scheduler, str) else self._scheduler
        if self._resume and not self._experiments and self._exists():
            return self._resumed_experiment(scheduler)
        running = _Running(SteeredScheduler(scheduler))
        common = {**self._settings, **self._place(), "raise_on_failed_trial": False, "verbose": 0}
        common |= {"callbacks": [*self._callbacks, running.watch], "scheduler": running.scheduler}
        if self._resume:
            common["resume"] = self._resume
        experiment = self._experiments.pop(0) if self._experiments else None
        self._resume = False
        self._steps += 1
        if experiment is not None:
            running.start(lambda: run(experiment, search_alg=self._search_alg, **common))
        else:
            call = self._call(waiting, common)
            running.start(call)
        return running

    def _resumed_experiment(self, scheduler: Any) -> _Running:
        """Continue with the experiment in the directory, with what is stored of it."""
        from trialpod.legacy.run import resume_choice
        from trialpod.tune.registry import is_registered
        from trialpod.tune.tuner import Tuner

        names = {trial.trainable_name for trial in self._trials if trial.stub}
        missing = sorted(name for name in names if not is_registered(name))
        if missing:
            raise InvalidInputError(
                f"TrialRunner.resume: the trials in {self._directory} are of the Trainable {missing[0]!r}; register "
                "it with tune.register_trainable before the first step"
            )
        unfinished, errored, restart = resume_choice("TrialRunner", self._resume)
        tuner = Tuner.restore(
            self._directory,
            self._registered(names.pop()) if names else None,  # without trials, the stored one
            resume_unfinished=unfinished,
            resume_errored=errored,
            restart_errored=restart,
        )
        kept: Any = tuner.tune_config.scheduler
        steered = kept if isinstance(kept, SteeredScheduler) else SteeredScheduler(scheduler or kept)
        running = _Running(steered)
        tuner.tune_config.scheduler = steered
        tuner.run_config.callbacks = [*self._callbacks, running.watch]
        self._resume = False
        self._steps += 1
        running.start(lambda: ExperimentAnalysis(tuner.fit().outcome))
        return running

    def _registered(self, name: str) -> Any:
        from trialpod.tune.registry import resolve_trainable
        from trialpod.tune.resources import with_resources

        found = resolve_trainable(name)
        return with_resources(found, self._stored_resources or Trial(name).placement_group_factory)

    def _call(self, trials: list[Trial], common: dict[str, Any]) -> Callable[[], Any]:
        """Return what runs these trials."""
        from trialpod.legacy.run import run
        from trialpod.tune.registry import resolve_trainable
        from trialpod.tune.resources import with_resources

        first = trials[0]
        stops = {tuple(sorted(trial.stopping_criterion.items())) for trial in trials}
        if len({trial.trainable_name for trial in trials}) > 1 or len(stops) > 1:
            raise InvalidInputError(
                "TrialRunner.step: the trials that were added are of several Trainables, or end by different "
                "criteria; run each kind by a TrialRunner of its own"
            )
        bundles = {trial.trial_id: trial.placement_group_factory for trial in trials}
        resources = first.placement_group_factory
        if len(set(bundles.values())) > 1:
            raise InvalidInputError(
                "TrialRunner.step: the trials that were added need different resources; give the Trainable a "
                "function of the config with tune.with_resources"
            )
        rules = {repr(trial.checkpoint_config) for trial in trials}
        starts = {(trial.restore_path, tuple(trial.export_formats), trial.max_failures) for trial in trials}
        if len(rules) > 1 or len(starts) > 1:
            raise InvalidInputError(
                "TrialRunner.step: the trials that were added have different checkpoint_config, export_formats, "
                "restore_path or max_failures; run each kind by a TrialRunner of its own"
            )
        own = {trial.trial_id: trial for trial in trials}
        if common["checkpoint_config"] is None:
            common["checkpoint_config"] = first.checkpoint_config
        common |= {"export_formats": first.export_formats or None, "restore": first.restore_path}
        if any(trial.trial_name_creator for trial in trials):
            common["trial_name_creator"] = lambda new: own[new.trial_id].name
        if any(trial.trial_dirname_creator or trial.trial_name_creator for trial in trials):
            common["trial_dirname_creator"] = lambda new: own[new.trial_id].relative_logdir
        given = GivenTrials([(trial.trial_id, trial.config, trial.experiment_tag or "given") for trial in trials])
        return lambda: run(
            with_resources(resolve_trainable(first.trainable_name), resources),
            search_alg=given,
            stop=self._stopper or first.stopping_criterion or None,
            num_samples=len(trials),
            max_failures=first.max_failures,
            **common,
        )

    def _follow(self, views: Sequence[TrialView]) -> None:
        own = {trial.trial_id: trial for trial in self._trials}
        for view in views:
            trial = own.get(view.trial_id)
            if trial is None:
                trial = Trial(view.trainable_name, config=view.config, trial_id=view.trial_id, stub=True)
                if self._stored_resources and self._running is None:
                    trial.update_resources(self._stored_resources)
                self._trials.append(trial)
            trial.follow(view)

    def _place(self) -> dict[str, Any]:
        name = os.path.basename(self._directory)
        # Each step is an experiment of its own.
        return {
            "storage_path": os.path.dirname(self._directory),
            "name": f"{name}_{self._steps + 1}" if self._steps else name,
        }

    def is_finished(self) -> bool:
        """Return whether there is nothing to run."""
        live = any(not trial.is_finished() for trial in self._trials) and not self._ends
        return self._running is None and not live and not self._experiments and not self._resume

    def get_trials(self) -> list[Trial]:
        """Return all trials."""
        return list(self._trials)

    def get_live_trials(self) -> set[Trial]:
        """Return the trials that have not ended."""
        return {trial for trial in self._trials if not trial.is_finished()}

    def get_trial(self, tid: str) -> Trial | None:
        """Return the trial of an id, None if there is none."""
        return next((trial for trial in self._trials if trial.trial_id == tid), None)

    def resume(
        self, resume_unfinished: bool = True, resume_errored: bool = False, restart_errored: bool = False
    ) -> None:
        """Let the next step continue with the experiment in the directory.

        Args:
            resume_unfinished: whether trials that had not ended continue.
            resume_errored: whether failed trials resume from their checkpoints.
            restart_errored: whether failed trials start again.

        Raises:
            InvalidInputError: two of them exclude each other, or there is no experiment.
        """
        if resume_errored and restart_errored:
            raise InvalidInputError(
                "TrialRunner.resume: failed trials can resume from their checkpoints or start again, not both"
            )
        ending = "+ERRORED" if resume_errored else "+RESTART_ERRORED" if restart_errored else ""
        if not resume_unfinished:
            ending = f"{ending}_ONLY" if ending else ""
            if not ending:
                raise InvalidInputError("TrialRunner.resume: nothing is to continue; set one of the arguments")
        self._load()
        self._resume = f"LOCAL{ending}" if ending else True

    def request_stop_trial(self, trial: Trial) -> None:
        """As `stop_trial`."""
        self.stop_trial(trial)

    def request_stop_experiment(self) -> None:
        """End the experiment that runs; nothing more is started."""
        self.cleanup()
        self._ends = True
        for trial in self._trials:
            if trial.status in (Trial.PENDING, Trial.PAUSED):
                trial.set_status(Trial.TERMINATED)

    def has_resources_for_trial(self, trial: Trial) -> bool:
        """Return whether this machine has the CPUs that a trial needs."""
        return to_resources(trial.placement_group_factory).get("cpu", 0.0) <= len(os.sched_getaffinity(0))

    def update_pending_trial_resources(
        self, resources: Mapping[str, Any] | Resources | PlacementGroupFactory
    ) -> None:
        """Change what the trials need that no experiment has been given yet."""
        to_resources(resources, "TrialRunner.update_pending_trial_resources")
        for trial in self._trials:
            if trial.status == Trial.PENDING:
                trial.update_resources(resources)

    def stop_trial(self, trial: Trial) -> None:
        """End a trial: at its next result if it runs, else when the experiment's next result comes, or at once."""
        if trial.is_finished():
            return
        if self._running is not None:
            self._running.scheduler.orders[trial.trial_id] = SteeredScheduler.STOP
        else:
            trial.set_status(Trial.TERMINATED)

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        """Pause a trial at its next result; it continues when the scheduler chooses it again.

        Args:
            trial: the trial.
            should_checkpoint: accepted for compatibility: a class Trainable that can save always does.
        """
        if trial.is_finished():
            return
        if self._running is not None:
            self._running.scheduler.orders[trial.trial_id] = SteeredScheduler.PAUSE
        else:
            trial.set_status(Trial.PAUSED)

    def checkpoint(self, force: bool = False) -> None:
        """Do nothing: whatever happens is in the experiment's journal before anything follows from it."""

    def end_experiment_callbacks(self) -> None:
        """Do nothing: an experiment calls `on_experiment_end` itself."""

    def cleanup(self) -> None:
        """End the experiment that runs, with its next event; a later runner with `resume` continues with it."""
        if self._running is not None:
            self._running.watch.cancel()
            self._running.thread.join()
            self._running = None

    cleanup_trials = cleanup

    def debug_string(self, delim: str = "\n") -> str:
        """Return how many trials are in which state."""
        states = [trial.status for trial in self._trials]
        return delim.join(f"{state}: {states.count(state)}" for state in sorted(set(states)))


class _Running:
    """An experiment in a thread of its own."""

    def __init__(self, scheduler: SteeredScheduler) -> None:
        self.scheduler = scheduler
        self.watch = StepWatch()
        self.done = False
        self.error: BaseException | None = None
        self.analysis: Any = None

    def start(self, run: Callable[[], Any]) -> None:
        """Start it."""

        def call() -> None:
            try:
                self.analysis = run()
            # The script's thread raises it.
            except BaseException as error:  # noqa: BLE001
                self.error = error
            self.done = True
            self.watch.over()

        # It must not keep a script alive that ends without `cleanup`: then its processes end, too.
        self.thread = threading.Thread(target=call, name="trialpod-experiment", daemon=True)
        self.thread.start()


def _stored_resources(directory: str) -> dict[str, float] | None:
    """Return what each trial of an earlier runner asked for; None where that depends on the config, or is lost."""
    from trialpod.tune.location.locations import experiment_location
    from trialpod.tune.resources import resources_of
    from trialpod.tune.tuner import stored_trainable

    try:
        fixed, ask = resources_of(stored_trainable(experiment_location(directory), "TrialRunner.resume"))
    except TrainableError as error:
        logger.warning("what the trials in %s asked for is not known; they get the default: %s", directory, error)
        return None
    return fixed if ask is None else None
