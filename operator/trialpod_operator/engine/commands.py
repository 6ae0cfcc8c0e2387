"""Carries out what a scheduler decides about other trials than the one that reported.

Each such decision is recorded with the step at which it was carried out, so that a replay does the same there.
"""

from __future__ import annotations

from typing import Any

from trialpod_operator.engine import exploits
from trialpod_operator.engine.actions import ActionList
from trialpod_operator.engine.algorithms import Algorithms
from trialpod_operator.engine.choices import Command
from trialpod_operator.engine.chooser import Chooser
from trialpod_operator.engine.endings import Endings
from trialpod_operator.engine.state import State
from trialpod_operator.engine.trial import Trial


class Commands:
    """Carries out a scheduler's commands."""

    def __init__(self, state: State, algorithms: Algorithms, actions: ActionList, endings: Endings) -> None:
        self._state = state
        self._algorithms = algorithms
        self._actions = actions
        self._endings = endings

    def carry_out(self, chooser: Chooser, now: float, *, rest: bool = False) -> None:
        """Carry out what was commanded by this step; `rest`: all that is recorded, as this is the last step."""
        for command in chooser.commands(rest=rest):
            chooser.carried_out(command, changed=self._apply(command, now))

    def _apply(self, command: Command, now: float) -> bool:
        """Do it, and return whether it changed anything."""
        trial = self._state.trials[command.trial_id]
        if trial.ended or trial.completion_reported:
            return False
        match command.kind:
            case "stop":
                return self._stop(trial, command.reason, now)
            case "exploit":
                return self._exploit(trial, command, now)
            case "resources":
                return self._resize(trial, command, now)
            case "config":
                return self._configure(trial, command, now)

    def _stop(self, trial: Trial, reason: dict[str, Any], now: float) -> bool:
        if trial.running:
            if trial.current.decision == "stop":
                return False
            self._endings.decide(trial, "stop", reason, now)
        trial.take_completion_report()
        self._algorithms.stop_by_command(trial)
        if not trial.running:
            self._endings.end_stopped(trial, reason, now)
        return True

    def _exploit(self, trial: Trial, command: Command, now: float) -> bool:
        if not trial.pauses or command.change is None:
            return False
        self._state.plan_exploit(trial, command.change)
        trial.log_decision(now, "exploit", exploits.evidence(command.change, command.reason))
        if not trial.running:
            exploits.apply(self._state, self._actions, trial)
        return True

    def _configure(self, trial: Trial, command: Command, now: float) -> bool:
        if command.change is None or trial.attempt:
            return False
        trial.set_config(command.change.params, command.change.tag)
        trial.log_decision(now, "config", command.reason)
        return True

    def _resize(self, trial: Trial, command: Command, now: float) -> bool:
        if trial.resources == command.resources:
            return False
        trial.set_resources(command.resources)
        reason = {**command.reason, "source": "resources", "resources": command.resources}
        if trial.running and trial.current.decision is None:
            self._endings.decide(trial, "pause", reason, now)
        else:
            trial.log_decision(now, "resources", reason)
        return True
