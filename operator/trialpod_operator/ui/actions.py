"""What can be done to an experiment from the page, and the commands that do the same."""

from __future__ import annotations

import os
import shlex
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod.storage.registry import local_folder
from trialpod_operator.ui.access import ActionDeniedError, User
from trialpod_operator.view.model import ExperimentModel
from trialpod_operator.view.reading import activity

Json = dict[str, Any]

SAMPLES = "{samples}"
"""Stands for the new number of samples in a command: the page puts it there when the user has chosen."""

UNLIMITED = "it has no limit of samples"


@dataclass(frozen=True, slots=True)
class Plan:
    """One action on an experiment in a cluster.

    Attributes:
        name: as in the route.
        command: the shell command that it equals.
        resource: what has to be patched.
        done: what to say when it is.
        spec: the change of the TuneExperiment, where that needs no argument.
        impossible: why it makes no sense now; "" = it does.
        base: to which the user's number is added, for `SAMPLES` in the command.
    """

    name: str
    command: str
    resource: str
    done: str
    spec: Json = field(default_factory=dict)
    impossible: str = ""
    base: int | None = None

    def data(self, allowed: bool, why_not: str) -> Json:
        """Return it for the page."""
        possible = allowed and not self.impossible
        return {
            "name": self.name,
            "command": self.command,
            "allowed": possible,
            "why_not": None if possible else self.impossible or why_not,
            **({} if self.base is None else {"base": self.base}),
        }


def plan(model: ExperimentModel, trial: str, samples: int, flags: str) -> list[Plan]:
    """Return the actions on an experiment in a cluster.

    Args:
        model: the experiment.
        trial: that is to be stopped.
        samples: how many the experiment takes, as its manifest says now.
        flags: with which other commands find the namespace.
    """
    name = shlex.quote(model.location.name)
    state = model.summary()["state"]
    ended = f"it has ended ({state})" if state in ("Succeeded", "Failed", "Stopped") else ""
    suspended = state == "Suspended"
    patch = f'kubectl {flags} patch te {name} --type=merge -p \'{{"spec":{{"numSamples":{SAMPLES}}}}}\''
    return [
        Plan(
            "suspend",
            f"trialpod suspend {name} {flags}",
            "tuneexperiments",
            "it is being suspended: its trials checkpoint, and their pods go",
            {"suspend": True},
            ended or ("it is suspended already" if suspended else ""),
        ),
        Plan(
            "resume",
            f"trialpod resume {name} {flags}",
            "tuneexperiments",
            "it resumes, each trial from its newest checkpoint",
            {"suspend": False},
            ended or ("" if suspended else "it is not suspended"),
        ),
        Plan(
            "stop-trial",
            f"trialpod stop {name} --trial {trial} {flags}",
            "tunetrials",
            "the trial is being stopped; its results stay",
            impossible=ended,
        ),
        Plan(
            "more-samples",
            patch,
            "tuneexperiments",
            "it has more samples now",
            impossible=UNLIMITED if samples < 0 else "",
            base=samples,
        ),
    ]


class LocalActions:
    """What can be done to an experiment on this machine: what Ctrl-C does where it runs."""

    def listed(self, user: User, model: ExperimentModel) -> list[Json]:
        """Return the actions."""
        location = shlex.quote(model.location.uri)
        pid = _runner(model)
        suspend = {
            "name": "suspend",
            "command": f"trialpod suspend {location}",
            "allowed": pid is not None,
            "why_not": None if pid is not None else "no process of this machine runs it",
        }
        again = "run it again where it was started"
        return [
            suspend,
            *(
                {"name": name, "command": command, "allowed": False, "why_not": why}
                for name, command, why in (
                    ("resume", "trialpod run FILE.yaml", f"here it resumes when you {again}"),
                    ("stop-trial", "", "single trials are stopped in a cluster only"),
                    ("more-samples", "trialpod run FILE.yaml --set spec.numSamples=N", f"{again}, with more samples"),
                )
            ),
        ]

    def perform(self, user: User, model: ExperimentModel, action: str, arguments: Json) -> str:
        """Interrupt the process that runs the experiment."""
        if action != "suspend":
            why = next(str(each["why_not"]) for each in self.listed(user, model) if each["name"] == action)
            raise InvalidInputError(why)
        pid = _runner(model)
        if pid is None:
            raise InvalidInputError("no process of this machine runs it")
        try:
            os.kill(pid, signal.SIGINT)
        except ProcessLookupError:
            pass  # it ended in this moment
        except PermissionError as error:
            raise ActionDeniedError(f"process {pid} belongs to another user; ask them, or root") from error
        return "it is being suspended: its trials finish their step and checkpoint"


def _runner(model: ExperimentModel) -> int | None:
    folder = local_folder(model.location.uri)
    found = activity(Path(folder), orphans=False) if folder is not None else None
    return found.holder.pid if found is not None and found.holder is not None and found.runs else None
