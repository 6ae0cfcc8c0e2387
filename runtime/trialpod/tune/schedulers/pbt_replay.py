"""Replays the schedule of configs that Population Based Training found, on one trial.

Source: the policy files of `PopulationBasedTraining` (see `pbt_policy`). Read from its end, a file names for each
change the trial whose state was taken over; changes before that trial joined the chain do not belong to it.

Invariants: one trial; it resumes from its own checkpoint at each change; the schedule is part of the state, so that
the file is needed only at the start. No message shows a line of the file, which may be any.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import EVERY_RESULT, Horizon
from trialpod.protocol.values import real_number
from trialpod.tune.plugins.catalogue import algorithm
from trialpod.tune.plugins.file_parameters import read_lines
from trialpod.tune.plugins.phrases import time_text
from trialpod.tune.schedulers.fifo import FIFOScheduler
from trialpod.tune.schedulers.trial_scheduler import ControllerView, Exploit, TrialScheduler, TrialView
from trialpod.tune.search.basic_variant import format_tag

TIME_ATTR = "training_iteration"


@algorithm("pbt_replay")
class PopulationBasedTrainingReplay(TrialScheduler):
    """Changes the config of its only trial at the iterations that a policy file names."""

    ABOUT = ("changed by a schedule", "a schedule found by PBT should train one model")

    NAME = "pbt_replay"
    needs_metric = False
    saves_at_horizon = True
    changes_configs = True
    FILE_PARAMETERS: ClassVar = {"policy_file": "policy"}

    def __init__(self, policy_file: str | None = None, policy: Sequence[Any] | None = None) -> None:
        """Make a scheduler.

        Args:
            policy_file: path of a `pbt_policy_{trial_id}.txt` on the user's machine; an operator opens no file.
            policy: in place of it, its lines: as text, or as the lists that they are.

        Raises:
            InvalidInputError: neither or both are given, or they are not a policy.
        """
        if (policy_file is None) == (policy is None):
            raise InvalidInputError(
                "pbt_replay takes either policy_file or policy, the lines of such a file", parameter="policy_file"
            )
        where = f"policy_file {policy_file}" if policy is None else "policy"
        lines = read_lines(str(policy_file), "policy_file") if policy is None else policy
        self._initial, self._changes = _schedule(lines, where)
        name = os.path.basename(str(policy_file)) if policy is None else "policy"
        self._tag = f"replay_{name}"
        self._trial: str | None = None
        self._done = 0
        self._reason: dict[str, Any] = {}

    @property
    def config(self) -> dict[str, Any]:
        """The config that the trial begins with."""
        return dict(self._initial)

    def set_search_properties(self, metric: str | None, mode: str | None, **_spec: Any) -> bool:
        """Accept any metric: a replay looks at none."""
        return True

    def on_trial_add(self, tune_controller: ControllerView, trial: TrialView) -> None:
        """Give the trial the first config of the schedule.

        Raises:
            InvalidInputError: there is a second trial.
        """
        if self._trial == trial.trial_id:
            self._set_back(trial)
            return
        if self._trial is not None:
            raise InvalidInputError(
                "pbt_replay runs one trial, but there is a second one; set the number of samples to 1"
            )
        self._trial = trial.trial_id
        if all(trial.config.get(key) == value for key, value in self._initial.items()):
            return
        self._reason = {"scheduler": self.NAME, "rule": "first config"}
        tune_controller.set_config(trial, {**trial.config, **self._initial})

    def on_trial_result(
        self, tune_controller: ControllerView, trial: TrialView, result: dict[str, Any]
    ) -> str | Exploit:
        """Return an `Exploit` of the trial itself at each change, else CONTINUE."""
        step = real_number(result.get(TIME_ATTR))
        if self._done >= len(self._changes) or step is None:
            return self.CONTINUE
        change_at, config = self._changes[self._done]
        if not step >= change_at or trial.checkpoint is None:
            return self.CONTINUE
        self._done += 1
        self._reason = {
            "scheduler": self.NAME,
            "rule": "replay",
            "time_attr": TIME_ATTR,
            "time": step,
            "change": self._done,
            "changes": len(self._changes),
            "change_at": change_at,
        }
        tag = f"{self._tag}@perturbed[{format_tag({(key,): value for key, value in config.items()})}]"
        return Exploit(trial.trial_id, {**trial.config, **config}, tag)

    def choose_trial_to_run(self, tune_controller: ControllerView) -> TrialView | None:
        """Return the trial."""
        return FIFOScheduler.choose_trial_to_run(_FIFO, tune_controller)

    @classmethod
    def describe_reason(cls, reason: Mapping[str, Any]) -> str:  # noqa: D102
        name = reason.get("scheduler")
        match reason.get("rule"):
            case "first config":
                return f"{name}: it starts with the first config of the schedule"
            case "replay":
                return f"{name}: change {reason.get('change')} of {reason.get('changes')}{time_text(reason)}"
        return super().describe_reason(reason)

    def horizons(self, trial: TrialView) -> list[Horizon]:
        """Return the next change."""
        if trial.trial_id != self._trial:
            return [Horizon(TIME_ATTR, EVERY_RESULT)]
        if self._done >= len(self._changes):
            return []
        return [Horizon(TIME_ATTR, float(self._changes[self._done][0]))]

    def reason(self) -> dict[str, Any]:
        """Return which change the latest decision was."""
        return dict(self._reason)

    def debug_string(self) -> str:
        """Return how far the schedule is."""
        return f"{self.NAME}: {self._done} of {len(self._changes)} changes made"

    def get_state(self) -> dict[str, Any]:
        """Return the schedule and how far it is."""
        return {
            "version": 1,
            "trial": self._trial,
            "done": self._done,
            "initial": self._initial,
            "changes": [list(change) for change in self._changes],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the schedule and how far it is."""
        self._trial, self._done, self._initial = state["trial"], state["done"], state["initial"]
        self._changes = [(change_at, config) for change_at, config in state["changes"]]

    def _set_back(self, trial: TrialView) -> None:
        """Make changes again that come after the checkpoint from which a retry starts."""
        reached = trial.checkpoint.iteration if trial.checkpoint is not None else 0
        while self._done and self._changes[self._done - 1][0] > reached:
            self._done -= 1


_FIFO = FIFOScheduler()


def _schedule(lines: Any, where: str) -> tuple[dict[str, Any], list[tuple[float, dict[str, Any]]]]:
    """Return the first config and the changes of a policy, each with the iteration at which it is made."""
    if isinstance(lines, (str, bytes)) or not isinstance(lines, (list, tuple)):
        raise InvalidInputError(f"{where} must be a list of lines, got {lines!r:.80}", parameter="policy")
    rows = [_row(line, f"{where}, line {number}") for number, line in enumerate(lines, 1) if line != ""]
    if not rows:
        raise InvalidInputError(
            f"{where} has no lines: that trial was never changed, so there is nothing to replay", parameter="policy"
        )
    changes: list[tuple[float, dict[str, Any]]] = []
    initial: dict[str, Any] = {}
    source: str | None = None
    for old_tag, new_tag, _, new_step, old_config, new_config in reversed(rows):
        if source is not None and old_tag != source:
            break  # what was before belongs to a state that was given up
        source, initial = new_tag, old_config
        changes.append((new_step, new_config))
    return initial, changes[::-1]


def _row(line: Any, where: str) -> list[Any]:
    row = line
    if isinstance(line, str):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
    if (
        not isinstance(row, (list, tuple))
        or len(row) != 6
        or not all(isinstance(config, dict) for config in row[4:])
        or isinstance(row[3], bool)
        or not isinstance(row[3], (int, float))
    ):
        raise InvalidInputError(
            f"{where} is not a policy: each line must be a JSON list [tag, source tag, iteration, source iteration, "
            "source config, new config]",
            parameter="policy",
        )
    return list(row)
