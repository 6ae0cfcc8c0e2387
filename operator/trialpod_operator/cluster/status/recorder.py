"""Collects the Kubernetes events about one experiment, and posts them after its status."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping
from typing import Any

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods.reading import condition
from trialpod_operator.cluster.pods.terminated import Termination
from trialpod_operator.cluster.services import Services
from trialpod_operator.cluster.status.conditions import cut
from trialpod_operator.cluster.status.events import MAX_NOTE, KubernetesEvent, TrialEvents, transition_events
from trialpod_operator.engine.actions import Action, TrialEnded, TrialRequeued, Warned
from trialpod_operator.engine.trial import ERROR, Trial

logger = logging.getLogger(__name__)


class EventRecorder:
    """The events of one experiment. Owned by the event loop.

    Args:
        key: "namespace/name".
        services: what all experiments share.
    """

    def __init__(self, key: str, services: Services) -> None:
        self._key = key
        self._namespace, self._name = key.split("/")
        self._services = services
        self._events: list[KubernetesEvent] = []
        self._trial_events = TrialEvents()
        self._endings: dict[str, Termination] = {}  # by trial_id, until the engine has applied them

    def record_action(self, action: Action) -> None:
        """Take in a committed action, for the events."""
        if isinstance(action, TrialRequeued | TrialEnded):
            ending = self._endings.pop(action.trial.trial_id, None)
            if isinstance(action, TrialRequeued) and action.why == "disrupted":
                self._disrupted(action.trial, action.message, ending)
        if isinstance(action, Warned) and action.trial is not None and action.trial.current.silence_warned:
            self._add(KubernetesEvent("Warning", Reason.NO_PROGRESS, cut(action.message, MAX_NOTE)))
        if isinstance(action, TrialEnded) and action.trial.status == ERROR:
            name = names.trial_name(self._name, action.trial.trial_id)
            self._add(self._trial_events.failed(name, action.trial.error))
        if isinstance(action, Warned) and action.trial is None:
            self._add(KubernetesEvent("Warning", Reason.NOTICE, cut(action.message, MAX_NOTE)))

    def record_change(self, message: str) -> None:
        """Take in what was changed of the spec, "" for nothing, for the events."""
        if message:
            self._add(KubernetesEvent("Normal", Reason.SPEC_CHANGED, cut(message, MAX_NOTE)))

    def record_code(self, message: str) -> None:
        """Take in that the code in a ConfigMap was changed, for the events."""
        self._add(KubernetesEvent("Warning", Reason.CODE_CHANGED, cut(message, MAX_NOTE)))

    def record_outage(self, seconds: float) -> None:
        """Take in how long the API server did not answer, for the events."""
        message = (
            f"the API server did not answer the operator for {seconds:.0f} s; running trials continued, and no pod "
            "was created meanwhile"
        )
        self._add(KubernetesEvent("Warning", Reason.API_SERVER_UNAVAILABLE, message))

    def record_retry(self, count: int, *, has_failed: bool) -> None:
        """Take in that failed trials were to be retried, for the events.

        Args:
            count: how many are.
            has_failed: there are failed ones that are not.
        """
        if count:
            trials = "1 failed trial is" if count == 1 else f"{count} failed trials are"
            self._add(KubernetesEvent("Normal", Reason.RETRYING, f"{trials} retried, as asked for"))
            return
        why = "the budget is used up, or the trials named have not failed" if has_failed else "no trial has failed"
        self._add(KubernetesEvent("Warning", Reason.NOTHING_TO_RETRY, f"nothing is retried: {why}"))

    def record_ending(self, trial: Trial, ending: Termination) -> None:
        """Take in how a pod ended, for the events."""
        self._endings[trial.trial_id] = ending

    def _disrupted(self, trial: Trial, message: str, ending: Termination | None) -> None:
        """The cluster ended an attempt: by the attempt's own word, or as its pod tells."""
        name = names.trial_name(self._name, trial.trial_id)
        reason = ending.reason if ending is not None else Reason.PREEMPTED
        target = self._disruption_target(trial)
        if ending is None and target:
            reason = str(target.get("reason") or reason)
            message = f"{target.get('message') or reason}: {message}"
        self._add(self._trial_events.disrupted(name, reason, message, self._services.clock()))

    def _disruption_target(self, trial: Trial) -> Mapping[str, Any]:
        """Return why the cluster ends a pod of the trial, empty when it does not."""
        for pod in self._services.cache.pods_of_trial(self._key, trial.trial_id):
            target = condition(pod, "DisruptionTarget") or {}
            if target.get("status") == "True":
                return target
        return {}

    def record_transition(self, before: Mapping[str, Any], after: Mapping[str, Any], *, resumed: bool) -> None:
        """Take in a change of the experiment's status; `resumed`: the storage held it when it was opened."""
        self._events += transition_events(before, after, resumed=resumed)

    def _add(self, event: KubernetesEvent | None) -> None:
        if event is not None:
            self._events.append(event)

    async def post(self, item: Mapping[str, Any]) -> None:
        """Post the events about the TuneExperiment `item`; one that the API server refuses is dropped."""
        events, self._events = self._events, []
        for event in events:
            try:
                await self._services.kube.create(paths.events(self._namespace), self._event(event, item))
            except ApiError as error:
                logger.info("the event %s of %s could not be posted: %s", event.reason, self._key, error)

    def _event(self, event: KubernetesEvent, item: Mapping[str, Any]) -> dict[str, Any]:
        metadata = item["metadata"]
        now = dt.datetime.fromtimestamp(self._services.clock(), dt.UTC)
        stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
        reference = {
            "apiVersion": names.API_VERSION,
            "kind": names.EXPERIMENT_KIND,
            "namespace": self._namespace,
            "name": self._name,
            "uid": metadata.get("uid"),
            "resourceVersion": metadata.get("resourceVersion"),
        }
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self._name}.", "namespace": self._namespace},
            "involvedObject": reference,
            "type": event.type,
            "reason": str(event.reason),
            "message": event.message,
            "source": {"component": "trialpod"},
            "reportingComponent": "trialpod.dev/operator",
            "reportingInstance": self._services.options.identity,
            "action": str(event.reason),
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "count": 1,
        }
