"""Finds the trial that somebody means: by the name of its TuneTrial, its id, or its number in the experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.cluster import names

if TYPE_CHECKING:
    from trialpod_operator.kube_client.client import Experiments

Json = dict[str, Any]


def find_trial(api: Experiments, name: str, trial: str = "") -> tuple[Json, Json]:
    """Return the TuneExperiment and the TuneTrial.

    Args:
        api: the namespace.
        name: of the experiment; without `trial` that of a TuneTrial, or "experiment/number", will do.
        trial: the trial's id, its number, or the name of its TuneTrial.

    Raises:
        InvalidInputError: there is none, or it is not clear which.
    """
    if not trial and "/" in name:
        name, _, trial = name.partition("/")
    if not trial:
        return _by_itself(api, name)
    item = api.get(name)
    return item, chosen(api.trials(name), trial, name)


def chosen(trials: list[Json], wanted: str, experiment: str) -> Json:
    """Return the one of an experiment's trials that is meant.

    Raises:
        InvalidInputError: none is.
    """
    for each in trials:
        if wanted in (each["metadata"]["name"], each["spec"].get("trialId")):
            return each
    digits = wanted.lstrip("0") or "0"
    if wanted.isdecimal():
        for each in trials:
            number = str(each["spec"].get("trialId", "")).rpartition("_")[2]
            if (number.lstrip("0") or "0") == digits:
                return each
    known = [str(each["spec"].get("trialId")) for each in trials]
    guess = nearest(wanted, [*known, *(str(each["metadata"]["name"]) for each in trials)])
    shown = ", ".join(known[:6]) + (f", ... ({len(known)} in all)" if len(known) > 6 else "")
    hint = f"did you mean {guess}?" if guess else f"there are: {shown}" if known else "it has none yet"
    raise InvalidInputError(f"the experiment {experiment} has no trial {wanted}; {hint}")


def _by_itself(api: Experiments, name: str) -> tuple[Json, Json]:
    found = api.find(name)
    if found is not None:
        trials = api.trials(name)
        if len(trials) == 1:
            return found, trials[0]
        if not trials:
            raise InvalidInputError(
                f"the experiment {name} has no trials yet; why: trialpod why {name} -n {api.namespace}"
            )
        raise InvalidInputError(
            f"the experiment {name} has {len(trials)} trials; name one by its number or id, such as: "
            f"trialpod logs {name} {trials[0]['spec'].get('trialId')}"
        )
    trial = api.find_trial(name)
    if trial is None:
        known = [item["metadata"]["name"] for item in api.all()]
        guess = nearest(name, known)
        there = f"there are the experiments {', '.join(known[:8])}" if known else "there is nothing"
        hint = f"did you mean {guess}?" if guess else there
        raise InvalidInputError(
            f"there is no TuneTrial and no TuneExperiment {name} in the namespace {api.namespace}; {hint}"
        )
    return api.get(str(trial["spec"]["experiment"])), trial


def state_of_trial(trial: Json) -> str:
    """Return the state of a TuneTrial."""
    return str((trial.get("status") or {}).get("state") or "PENDING")


def attempt_of(pod: Json) -> int:
    """Return the attempt that a pod was made for."""
    text = str((pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, ""))
    return int(text) if text.isdecimal() else 0
