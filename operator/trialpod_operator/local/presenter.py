"""What a person sees of a run: its view, its announcements, what its trials print, and hints."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from pathlib import Path

from trialpod.runner.fork_server.protocol import Preloaded
from trialpod.storage.layout import LOG_FILE
from trialpod_operator.display import events
from trialpod_operator.display.base import Display
from trialpod_operator.display.engine_view import TrialDetails, announce, build_row, build_view
from trialpod_operator.display.summary import Remedies
from trialpod_operator.display.view import ExperimentView, TrialRow
from trialpod_operator.display.words import plural
from trialpod_operator.engine.actions import Action, ResultsApplied, TrialEnded
from trialpod_operator.engine.events import AnyEvent, AttemptStarted, CheckpointsChanged, ResultsReceived
from trialpod_operator.engine.reasons import explain
from trialpod_operator.engine.trial import Trial
from trialpod_operator.experiment.durable import DurableExperiment
from trialpod_operator.experiment.plan import ExperimentPlan
from trialpod_operator.local.loading import Loading
from trialpod_operator.local.machine_resources import MachineResources
from trialpod_operator.local.trial_output import POLL_INTERVAL_S, OutputFollower

SHOW_INTERVAL_S = 1.0
WAITING_S = 1.0
"""How long an experiment that is being ended waits for its trials before it says so."""


class RunPresenter:
    """Tells a display what happens in a run.

    Args:
        plan: what is run.
        directory: the experiment's directory.
        display: shows it.
        output: follows what trials print; None leaves it in their files.
        ways: what the user can do about results that are there already.

    Attributes:
        experiment: set once it is open, before anything but the import is shown.
    """

    experiment: DurableExperiment

    def __init__(
        self,
        plan: ExperimentPlan,
        directory: Path,
        display: Display,
        output: OutputFollower | None,
        ways: Remedies,
    ) -> None:
        self._plan = plan
        self._directory = directory
        self._display = display
        self._output = output
        self._ways = ways
        self._details = TrialDetails(display, str(directory), self._trial_name) if display.detail > 0 else None
        self._loading = Loading(plan.trainable, display.event)
        self._stopping_since: float | None = None
        self.poll_interval_s = SHOW_INTERVAL_S if output is None else POLL_INTERVAL_S

    async def follow_import(self, preload: asyncio.Future[Preloaded]) -> None:
        """Say what is being imported when that takes long."""
        await self._loading.follow(preload)

    def view(self, rows: int | None = 0) -> ExperimentView:
        """Return the experiment for the display, with at most `rows` trials (None = all)."""
        journaled = self.experiment.journaled
        engine = journaled.engine
        settings = engine.state.settings or self._plan.settings
        view = build_view(engine, settings, path=str(self._directory), now=journaled.now(), rows=rows, row=self._row)
        loading = self._loading.message if not engine.finished else ""
        return view if view.message or not loading else dataclasses.replace(view, message=loading)

    def give_hints(self, machine_resources: MachineResources) -> None:
        """Say what of the plan this machine does otherwise."""
        if self._plan.resources_of is None and (hint := machine_resources.hint(self._plan.resources)):
            fact, _, remedy = hint.partition("; ")
            self._display.event(events.warning(fact, remedy))
        workers = self._plan.document.get("manifest", {}).get("spec", {}).get("workers")
        if workers:
            fact = f"spec.workers: here each trial is one process, rank 0 of 1, not of {1 + workers['replicas']}"
            self._display.event(events.warning(fact, "worker pods are made in a cluster only"))

    def compare_budget(self, before: int) -> None:
        """Say that more trials follow, or what a budget that was not raised leaves undone."""
        engine, now = self.experiment.engine, self._plan.settings.num_samples
        count = len(engine.state.trials)
        name = self._plan.settings.vocabulary.field("numSamples")
        if 0 < before < now or now == -1 != before:
            message = f"{name} was raised from {before:,} to {f'{now:,}' if now > 0 else 'no limit'}"
            self._display.event(events.Event("extended", message=message, data={"from": before, "to": now}))
        elif 0 < now < before:
            message = f"{name} is {now} and was {before}: no trial is added, and the {plural(count, 'trial')} that "
            message += "exist are kept" if count > 1 else "exists is kept"
            self._display.event(events.warning(message, f"for a new experiment: {self._ways.fresh}"))
        elif engine.finished and not engine.state.flags.stopping:
            message = f"nothing to run: {f'all {count} trials are' if count > 1 else 'the trial is'} done"
            remedy = f"more trials: raise {name}; all of it again: {self._ways.fresh}"
            self._display.event(events.warning(message, remedy))

    def recovered(self, trials: list[Trial]) -> None:
        """Say in one line which trials an earlier run left."""
        if not trials:
            return
        kept = sum(trial.checkpoint is not None for trial in trials)
        starts = [f"{kept:,} from the latest checkpoint"] if kept else []
        starts += [f"{len(trials) - kept:,} from the beginning"] if kept < len(trials) else []
        were = f"{plural(len(trials), 'trial')} {'were' if len(trials) > 1 else 'was'} running"
        message = f"resuming after an interruption: {were} and will be restarted, {', '.join(starts)}"
        data = {"trials": [trial.trial_id for trial in trials], "with_checkpoint": kept}
        self._display.event(events.Event("recovered", message=message, data=data))

    def attempt_starts(self, trial: Trial) -> None:
        """Follow what a trial prints."""
        if self._output is not None:
            log = str(self.experiment.files.path(trial) / LOG_FILE)
            self._output.trial_started(trial.trial_id, self._trial_name(trial), log)

    def action(self, action: Action) -> None:
        """Show an action: what its trial printed before, what single results say, and a line about it."""
        if self._output is not None:
            match action:
                case TrialEnded(trial=trial):
                    self._output.trial_ended(trial.trial_id)
                case ResultsApplied(trial=trial) if self._details is not None:
                    self._output.refresh(trial.trial_id)
        if self._details is not None:
            self._details.action(action)
        announcement = announce(action, self._row, self._plan.settings.metric)
        if announcement is not None:
            self._display.event(announcement)

    def applied(self, event: AnyEvent) -> None:
        """Show an event."""
        match event:
            case AttemptStarted() if self._output is not None:
                self._output.trial_running(event.trial_id, event.pid)
            case ResultsReceived() | CheckpointsChanged() if event.committed and self._details is not None:
                trial = self.experiment.engine.state.trials.get(event.trial_id)
                if trial is not None:
                    self._details.committed(trial, event.committed)

    def poll(self, *, last: bool = False) -> None:
        """Show what trials printed since the last call, and notices of what is not shown."""
        if self._output is not None:
            if last:
                self._output.finish()
            else:
                self._output.poll()
        if self._details is not None:
            self._details.poll(last=last)
        if not last:
            self._warn_of_waiting()

    def _warn_of_waiting(self) -> None:
        """Say what is waited for when the experiment is being ended and trials do not hear of it."""
        engine = self.experiment.engine
        stopping = engine.state.flags.stopping
        if not stopping or engine.finished:
            self._stopping_since = None
            return
        now = asyncio.get_running_loop().time()
        if self._stopping_since is None:
            self._stopping_since = now
        elif now - self._stopping_since >= WAITING_S:
            self._stopping_since = math.inf  # once
            why = explain(stopping) or "the experiment is being ended"
            message = f"{why}; waiting for {plural(len(engine.state.running), 'trial')} to report"
            remedy = f"what does not report within the grace period of {self._plan.grace_s:g} s is ended"
            self._display.event(events.warning(message, remedy))

    def _row(self, trial: Trial) -> TrialRow:
        journaled = self.experiment.journaled
        return build_row(
            trial,
            path=str(journaled.files.path(trial)),
            name=journaled.trial_name(trial),
            now=journaled.now(),
            checkpoints=journaled.checkpoint_uri(trial),
        )

    def _trial_name(self, trial: Trial) -> str:
        return self.experiment.journaled.trial_name(trial)
