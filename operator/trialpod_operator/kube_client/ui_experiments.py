"""The experiments of a namespace for the page, on a user's machine: all is done with the user's own permissions.

State and reason come from the resources, everything else from the experiment's storage, which is reached as by
`trialpod results NAME`. Nothing listens in the cluster for it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.tune.plugins.auto import samples_by_default
from trialpod_operator.api.api_errors import ApiError, ConflictError
from trialpod_operator.cluster import names
from trialpod_operator.kube_client.client import ExperimentNotFoundError, Experiments, MissingRightError
from trialpod_operator.kube_client.storage import opened
from trialpod_operator.kube_client.view import condition, seconds, state_of, view_of
from trialpod_operator.ui.access import ActionDeniedError, NoSuchExperimentError, User
from trialpod_operator.ui.actions import UNLIMITED, Plan, plan
from trialpod_operator.view.location import Location
from trialpod_operator.view.model import ExperimentModel

Json = dict[str, Any]

RESOURCE_INTERVAL_S = 5.0
"""Minimum interval between two reads of a TuneExperiment for its state."""

MAX_TRIES = 5
MAX_MODELS = 20
"""Models that are kept; of more experiments, the least recently viewed are dropped, with their connections."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A model that is kept, of the experiment with this uid, and what it is read through."""

    uid: str
    model: ExperimentModel
    _open: contextlib.ExitStack

    def close(self) -> None:
        """Drop it; what still uses the model learns it at its next refresh."""
        self._open.close()


class DeskExperiments:
    """Experiments of a namespace.

    Args:
        api: the namespace.
        only: the name of the one that is shown; "" = all.
        clock: monotonic seconds.
    """

    def __init__(self, api: Experiments, only: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._only = only
        self._clock = clock
        self._lock = threading.RLock()
        self._known: dict[str, _Known] = {}  # by name, the one viewed last at the end
        self._items: dict[str, tuple[float, Json]] = {}

    def summaries(self, user: User, namespace: str = "") -> list[Json]:
        """Return what the resources say."""
        with self._lock:
            items = [self._item(self._only)] if self._only else self._api.all()
        return [summary_of(item) for item in items]

    def model(self, user: User, experiment_id: str) -> ExperimentModel:
        """Return the model of an experiment, whose storage is opened for it."""
        with self._lock:
            known = self._known.pop(experiment_id, None)
            try:
                item = self._item(experiment_id)
            except NoSuchExperimentError:
                if known is not None:
                    known.close()
                raise
            except TrialpodError:
                if known is None:
                    raise
            else:
                uid = str(item["metadata"].get("uid") or "")
                if known is not None and known.uid != uid:  # it was deleted, and created again
                    known.close()
                    known = None
                known = known or self._open(experiment_id, uid, item)
            self._known[experiment_id] = known
            for name in [name for name, each in self._known.items() if not each.model.used and each is not known]:
                if len(self._known) <= MAX_MODELS:
                    break
                self._known.pop(name).close()
            return known.model

    def _open(self, name: str, uid: str, item: Json) -> _Known:
        with contextlib.ExitStack() as stack:
            uri, storage = stack.enter_context(opened(self._api, item))
            model = ExperimentModel(Location(uri, storage, name=name), standing=lambda: self._standing(name))
            stack.callback(model.close)
            return _Known(uid, model, stack.pop_all())

    def reads_logs(self, user: User, experiment_id: str) -> bool:
        """Return True: a user that runs this may read the files."""
        return True

    def close(self) -> None:
        """Close the storages."""
        with self._lock:
            for known in self._known.values():
                known.close()
            self._known.clear()

    def _standing(self, name: str) -> Json:
        with self._lock:
            try:
                return standing_of(self._item(name))
            except TrialpodError:
                return {}  # the page shows what is stored

    def _item(self, name: str) -> Json:
        if self._only and name != self._only:
            raise NoSuchExperimentError(f"only {self._only} is shown here")
        read_at, item = self._items.get(name, (float("-inf"), {}))
        if self._clock() - read_at >= RESOURCE_INTERVAL_S:
            try:
                item = self._api.get(name)
            except ExperimentNotFoundError as error:
                raise NoSuchExperimentError(str(error)) from error
            self._items[name] = (self._clock(), item)
        return item


def summary_of(item: Mapping[str, Any]) -> Json:
    """Return what a list of experiments shows of a TuneExperiment."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    best = status.get("best") or {}
    counts = {state: number for state, number in view_of(item, [], now=0.0, rows=0).counts.items() if number}
    name = str(item["metadata"]["name"])
    found = standing_of(item)
    value = best.get("value")
    return {
        "id": name,
        "name": name,
        "namespace": item["metadata"].get("namespace"),
        "state": found["state"],
        "reason": found["reason"],
        "trials": sum(counts.values()),
        "counts": counts,
        "best": None if value is None else {"trial": best.get("trialId"), "value": _number(value)},
        "metric": spec.get("metric"),
        "mode": spec.get("mode") or "max",
        "started": seconds(item["metadata"].get("creationTimestamp")) or None,
        "updated": seconds(condition(item, "Ready").get("lastTransitionTime")) or None,
    }


def standing_of(item: Mapping[str, Any]) -> Json:
    """Return state, reason and the sentence that a TuneExperiment's conditions have for them."""
    state = state_of(item)
    kinds = ("Failed", "Succeeded", "Stalled", "Suspended", "Ready")
    condition_shown = next((found for kind in kinds if (found := condition(item, kind)).get("status") == "True"), {})
    condition_shown = condition_shown or condition(item, "Ready")
    return {
        "state": state,
        "reason": str(condition_shown.get("reason") or ""),
        "sentence": str(condition_shown.get("message") or ""),
    }


def _number(text: Any) -> Any:
    try:
        return float(text)
    except (TypeError, ValueError):
        return text


class DeskActions:
    """Changes experiments of a namespace with the user's own permissions.

    Args:
        api: the namespace.
        flags: what another command needs to find it.
    """

    def __init__(self, api: Experiments, flags: str) -> None:
        self._api = api
        self._flags = flags
        self._lock = threading.Lock()

    def listed(self, user: User, model: ExperimentModel) -> list[Json]:
        """Return the actions, as the API server allows them."""
        with self._lock:
            allowed = {resource: self._api.may("patch", resource) for resource in (names.EXPERIMENTS, names.TRIALS)}
            samples = samples_of(self._api.get(model.location.name))
        return [
            each.data(allowed[each.resource], f"you may not patch {each.resource}")
            for each in plan(model, "{trial}", samples, self._flags)
        ]

    def perform(self, user: User, model: ExperimentModel, action: str, arguments: Json) -> str:
        """Change the resource; the API server refuses what the user may not."""
        found = chosen(model, action, arguments, self._flags)
        try:
            with self._lock:
                return self._changed(model.location.name, found, arguments)
        except MissingRightError as error:
            raise ActionDeniedError(str(error)) from error
        except ApiError as error:
            raise InvalidInputError(str(error)) from error

    def _changed(self, name: str, found: Plan, arguments: Json) -> str:
        if found.resource == names.TRIALS:
            wanted = arguments["trial"]
            trial = next((each for each in self._api.trials(name) if each["spec"].get("trialId") == wanted), None)
            if trial is None:
                raise InvalidInputError(f"there is no trial {arguments['trial']} in {name}")
            self._api.stop_trial(str(trial["metadata"]["name"]))
        elif found.name == "more-samples":
            return f"it has {self._add_samples(name, arguments['samples'])} samples now"
        else:
            self._api.change(name, found.spec)
        return found.done

    def _add_samples(self, name: str, count: int) -> int:
        """Add to what the manifest says now, although others may change it; return the new number."""
        for _ in range(MAX_TRIES):
            item = self._api.get(name)
            present = samples_of(item)
            if present < 0:
                raise InvalidInputError(UNLIMITED)
            try:
                version = str(item["metadata"].get("resourceVersion") or "")
                self._api.change(name, {"numSamples": present + count}, version=version)
            except ConflictError:
                continue
            return present + count
        raise InvalidInputError(f"{name} changes faster than samples can be added; try again")


def samples_of(item: Mapping[str, Any]) -> int:
    """Return how many samples a TuneExperiment takes; -1 = no limit."""
    spec = item.get("spec") or {}
    budgets = [spec.get(key) for key in ("timeBudget", "maxTrialHours", "maxGpuHours")]
    given = spec.get("numSamples")
    return int(samples_by_default(spec.get("algorithm"), budgets) if given is None else given)


def chosen(model: ExperimentModel, action: str, arguments: Json, flags: str) -> Plan:
    """Return the change that an action with its arguments is.

    Raises:
        InvalidInputError: an argument is missing or wrong.
    """
    trial, samples = arguments.get("trial"), arguments.get("samples")
    if action == "stop-trial" and not isinstance(trial, str):
        raise InvalidInputError("trial is missing; give the trial's id")
    if action == "more-samples" and (not isinstance(samples, int) or isinstance(samples, bool) or samples < 1):
        raise InvalidInputError("samples is missing or no number; give how many samples to add, 1 or more")
    return next(each for each in plan(model, str(trial), 0, flags) if each.name == action)
