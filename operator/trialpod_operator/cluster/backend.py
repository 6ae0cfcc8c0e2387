"""The backend ``kubernetes``: runs what a `Tuner` is given as a TuneExperiment in a cluster, and follows it.

Invariants: what cannot run in a cluster is refused before anything is written or created. This process decides
nothing: when it goes away, the experiment goes on; the same script, run again, follows it again. The Trainable is in
the experiment's storage before the resource names it. Nothing is kept on this machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.storage.base import Storage, open_storage
from trialpod.storage.endpoints import endpoint_of
from trialpod.storage.layout import EXPERIMENT_FILE, TRIALPOD_DIR
from trialpod.storage.options import StorageOptions
from trialpod.tune.backends import ExperimentOutcome, ExperimentRequest
from trialpod_operator.cluster import names
from trialpod_operator.cluster.client import ApiError, ClusterUnreachableError, Experiments
from trialpod_operator.cluster.remote_view import changes, condition, finished, is_true, view_of
from trialpod_operator.cluster.request_manifest import ClusterSettings, build_manifest, resource_name

if TYPE_CHECKING:
    from trialpod_operator.local.display.base import Display
    from trialpod_operator.local.view import TrialRow

logger = logging.getLogger(__name__)

Json = dict[str, Any]

NAMESPACE = "TRIALPOD_NAMESPACE"
IMAGE = "TRIALPOD_IMAGE"
SECRET = "TRIALPOD_CREDENTIALS_SECRET"
ENDPOINT = "TRIALPOD_CLUSTER_ENDPOINT"

POLL_S = 1.0
MANY_TRIALS, MANY_POLL_S = 300, 10.0
"""From so many trials on they are listed only this often."""

START_S = 3.0
"""How long to wait for the first status before anything is shown."""

UNNOTICED_S = 20.0
"""After so long without a status something is wrong with the operator."""

STALLED_S = 120.0
"""How long `fit` waits for somebody to put right what has stalled the experiment."""

COPIED_S = 60.0
"""How long to wait for the last files, which follow the end of an experiment."""

_WRITER = f"{TRIALPOD_DIR}/writer.json"
_TUNER_FILE = "tuner.pkl"
_BUDGET = ("numSamples", "maxConcurrentTrials", "timeBudget", "failurePolicy")


class KubernetesBackend:
    """Runs experiments in a cluster and reads them from their storage.

    Args:
        namespace: of the experiments; None takes the variable TRIALPOD_NAMESPACE, or the kubeconfig's.
        image: of the trials; None takes TRIALPOD_IMAGE, or the operator's default.
        credentials_secret: Secret with the storage's keys, in that namespace; None takes
            TRIALPOD_CREDENTIALS_SECRET; "" = the pods need none (workload identity).
        endpoint: URL of the S3 service as the pods reach it; None takes TRIALPOD_CLUSTER_ENDPOINT, or the one that
            this process uses.
        template: a PodTemplateSpec for the trials: volumes, tolerations, node selectors and so on.
        labels: of the experiment, its trials and their pods.
        context: of the kubeconfig; None takes its current one.
        deletion_policy: "Retain", or "Delete" to delete the stored data together with the resource.
    """

    ships_code = True

    def __init__(
        self,
        *,
        namespace: str | None = None,
        image: str | None = None,
        credentials_secret: str | None = None,
        endpoint: str | None = None,
        template: Mapping[str, Any] | None = None,
        labels: Mapping[str, str] | None = None,
        context: str | None = None,
        deletion_policy: str = "Retain",
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._namespace = namespace or environ.get(NAMESPACE) or None
        self._image = image if image is not None else environ.get(IMAGE, "")
        self._secret = credentials_secret if credentials_secret is not None else environ.get(SECRET)
        self._endpoint = endpoint if endpoint is not None else environ.get(ENDPOINT)
        self._template = dict(template or {})
        self._labels = dict(labels or {})
        self._context = context
        self._deletion_policy = deletion_policy
        self._environ = environ
        self._clock, self._sleep = clock, sleep

    def default_name(self, trainable: str, now: float) -> str:
        """Return the name of an experiment that was given none."""
        stamp = time.strftime("%m%d-%H%M%S", time.localtime(now))
        ending = f"-{stamp}-{secrets.token_hex(2)}"
        return resource_name(trainable)[: names.MAX_EXPERIMENT_NAME - len(ending)].rstrip("-") + ending

    def attaches(self, path: str) -> bool:
        """Return whether there is a TuneExperiment for what is kept at `path`, which `run` would follow."""
        with Experiments.connect(self._namespace, context=self._context) as api:
            return api.find(path.rpartition("/")[2]) is not None

    def can_restore(self, path: str) -> bool:
        """Return whether the storage at `path` holds an experiment."""
        if not path.startswith("s3://"):
            return False
        return open_storage(path).exists(f"{TRIALPOD_DIR}/{EXPERIMENT_FILE}")

    def load(self, path: str) -> ExperimentOutcome:
        """Read what is known of the experiment in the directory or at the URI `path`."""
        from trialpod_operator.local.backend import LocalBackend

        return LocalBackend().load(path)

    def run(self, request: ExperimentRequest) -> ExperimentOutcome:
        """Start the experiment, or find the one that runs, and follow it to its end.

        Raises:
            InvalidInputError: it cannot run in a cluster, or another one has its name. Nothing was created.
            KeyboardInterrupt: the user does not want to wait; the experiment goes on.
            ClusterUnreachableError: the cluster cannot be reached at the start.
            TrialpodError: it has stalled, or was deleted while this waited.
        """
        try:
            with Experiments.connect(self._namespace, context=self._context) as api:
                code = Path(request.trainable.pickle or "").read_bytes()
                tuner = Path(request.directory, _TUNER_FILE)
                item = self._start(api, request, code, tuner.read_bytes() if tuner.exists() else b"")
                _forget_directory(Path(request.directory))
                self._show(api, request, item)
        finally:
            _forget_directory(Path(request.directory))
        self._wait_for_files(request.storage_uri)
        return self.load(request.storage_uri)

    def _show(self, api: Experiments, request: ExperimentRequest, item: Json) -> None:
        """Show the experiment until it has ended, and what came of it."""
        from trialpod_operator.local.display.base import write_closing
        from trialpod_operator.local.display.choose import choose_display
        from trialpod_operator.local.summary import summarize

        verbose = request.verbose - 1
        display = choose_display(sys.stdout, json=False, verbose=verbose)
        try:
            item = self._follow(api, item, display)
        except KeyboardInterrupt:
            write_closing(sys.stdout, _parting_words(api, request))
            raise
        finally:
            display.close()
        if verbose >= 0:
            trials = api.trials(request.name)
            write_closing(sys.stdout, summarize(view_of(item, trials, now=self._clock(), rows=None)))

    # -- the start --

    def _start(self, api: Experiments, request: ExperimentRequest, code: bytes, state: bytes) -> Json:
        digest = request.trainable.sha256 or ""
        file = f"{TRIALPOD_DIR}/trainable-{digest[:16]}.pkl"
        manifest = build_manifest(request, self._settings(api, request), f"{request.storage_uri}/{file}")
        item = api.find(request.name)
        if item is not None:
            return self._attach(api, item, manifest)
        storage = open_storage(request.storage_uri)
        if storage.exists(f"{TRIALPOD_DIR}/{EXPERIMENT_FILE}"):
            manifest["spec"]["trainable"] = _stored_trainable(storage) or manifest["spec"]["trainable"]
        storage.write(file, code)
        if state and not storage.exists(_TUNER_FILE):
            storage.write(_TUNER_FILE, state)
        try:
            return api.create(manifest)
        except ApiError as error:
            if error.status != 409:
                raise
            return self._attach(api, api.get(request.name), manifest)  # started elsewhere in this moment

    def _settings(self, api: Experiments, request: ExperimentRequest) -> ClusterSettings:
        endpoint = self._endpoint
        if endpoint is None:
            own = StorageOptions(endpoint=endpoint_of(request.storage_uri)).resolved(self._environ)
            endpoint = "" if own.addressing == "virtual" else own.endpoint
        if self._secret is None and self._environ.get("AWS_ACCESS_KEY_ID"):
            raise InvalidInputError(
                "the keys of this process (AWS_ACCESS_KEY_ID) are not sent to the cluster; name a Secret there that "
                f"has keys for the trials: the variable {SECRET}=NAME, or KubernetesBackend(credentials_secret=...). "
                f"To make one: kubectl -n {api.namespace} create secret generic NAME "
                "--from-literal=AWS_ACCESS_KEY_ID=... "
                '--from-literal=AWS_SECRET_ACCESS_KEY=...; give "" if the pods need no keys'
            )
        return ClusterSettings(
            namespace=api.namespace,
            endpoint=endpoint,
            credentials_secret=self._secret or "",
            image=self._image,
            template=self._template,
            labels=self._labels,
            deletion_policy=self._deletion_policy,
        )

    def _attach(self, api: Experiments, item: Json, manifest: Json) -> Json:
        """Return the experiment of that name, if it is the same one, with the budget that is wanted now."""
        name = str(item["metadata"]["name"])
        if item["metadata"].get("deletionTimestamp"):
            raise InvalidInputError(
                f"the TuneExperiment {name} is being deleted; wait for `kubectl -n {api.namespace} wait --for=delete "
                f"te/{name}`, or choose another RunConfig(name=...)"
            )
        before, after = _comparable(item), _comparable(manifest)
        differences = [f"spec.{key}" for key in sorted({*before, *after}) if before.get(key) != after.get(key)]
        fixed = [path for path in differences if path.removeprefix("spec.") not in (*_BUDGET, "trainable")]
        if fixed:
            raise InvalidInputError(
                f"the namespace {api.namespace} has a TuneExperiment {name} whose {', '.join(fixed)} "
                f"{'are' if len(fixed) > 1 else 'is'} different; choose another RunConfig(name=...), or delete it: "
                f"kubectl -n {api.namespace} delete te {name}"
            )
        if "spec.trainable" in differences:
            logger.warning(
                "%s goes on with the code that it was started with; this script's differs. For the new code start "
                "it under another name",
                name,
            )
        wanted = {key: manifest["spec"].get(key) for key in _BUDGET if f"spec.{key}" in differences}
        if wanted:
            logger.warning(
                "%s: changing %s", name, ", ".join(f"spec.{key} to {value}" for key, value in wanted.items())
            )
            return api.change(name, wanted)
        return item

    # -- until the end --

    def _follow(self, api: Experiments, item: Json, display: Display) -> Json:
        from trialpod_operator.local.display import events

        name, uid = str(item["metadata"]["name"]), item["metadata"].get("uid")
        generation = int(item["metadata"].get("generation") or 1)
        begun = self._clock()
        stalled_at: float | None = None
        listed_at = 0.0
        trials: list[Json] = []
        rows: dict[str, TrialRow] = {}
        told = ""
        started = False
        while True:
            now = self._clock()
            status = item.get("status") or {}
            seen = int(status.get("observedGeneration", -1)) >= generation
            over = seen and finished(item)
            # How many trials there will be, the operator has to say first.
            if not started and ("trials" in status or now - begun >= START_S):
                display.start(view_of(item, trials, now=now, rows=display.rows))
                started = True
            if started and (over or now - listed_at >= (MANY_POLL_S if len(trials) >= MANY_TRIALS else POLL_S)):
                trials, listed_at = api.trials(name), now
                view = view_of(item, trials, now=now, rows=None)
                fresh = {row.name: row for row in view.rows}
                for event in changes(rows, fresh, view.metric):
                    display.event(event)
                rows = fresh
            view = view_of(item, trials, now=now, rows=display.rows)
            if over and started:
                display.finish(view)
                return item
            if started:
                display.update(view)
            why = _hindrance(item, api, waited=now - begun, seen=seen)
            # The words change with every node that comes and goes; the reason is worth telling once.
            if why and why[0] != told:
                display.event(events.warning(why[1]))
            told = why[0] if why else ""
            if not is_true(item, "Stalled"):
                stalled_at = None
            else:
                stalled_at = stalled_at or now
                fatal = condition(item, "Stalled").get("reason") == "InvalidSpec"
                if seen and (fatal or now - stalled_at > STALLED_S):
                    raise TrialpodError(
                        f"the experiment {name} has stalled: {condition(item, 'Stalled').get('message')}. Put it "
                        f"right and run this again, or delete it: kubectl -n {api.namespace} delete te {name}"
                    )
            self._sleep(POLL_S)
            with contextlib.suppress(ClusterUnreachableError):  # it is asked again; the view stands still meanwhile
                found = api.find(name)
                if found is None or found["metadata"].get("uid") != uid:
                    raise TrialpodError(
                        f"the TuneExperiment {name} was deleted while this waited for it; what was stored until then "
                        "stays, unless its deletionPolicy is Delete"
                    )
                item = found

    def _wait_for_files(self, uri: str) -> None:
        """Return when the operator has let go of the experiment: then the last files have been copied."""
        storage = open_storage(uri)
        deadline = self._clock() + COPIED_S
        while storage.exists(_WRITER) and self._clock() < deadline:
            self._sleep(POLL_S / 4)


def _comparable(item: Mapping[str, Any]) -> Json:
    """Return the parts of a spec that make an experiment what it is, in one form whoever wrote them down."""
    import msgspec

    from trialpod_operator.api.cel import BUDGET_FIELDS
    from trialpod_operator.api.document import Document
    from trialpod_operator.api.models import TuneExperimentSpec
    from trialpod_operator.api.validation import check_document

    # A cluster with a newer version adds the defaults of fields that are not known here.
    known = {key: item["spec"][key] for key in TuneExperimentSpec.__struct_encode_fields__ if key in item["spec"]}
    own = {"apiVersion": item["apiVersion"], "kind": item["kind"], "spec": known}
    own["metadata"] = {"name": item["metadata"]["name"]}
    checked = check_document(Document(own))
    spec: Json = known if checked.experiment is None else msgspec.to_builtins(checked.experiment.spec)
    kept = {key: value for key, value in spec.items() if key in _BUDGET or key not in BUDGET_FIELDS}
    kept["storage"] = {"uri": (spec.get("storage") or {}).get("uri")}
    return kept


def _stored_trainable(storage: Storage) -> Json | None:
    """Return the Trainable of an experiment whose resource is gone and whose data is there."""
    import json

    stored = json.loads(storage.read(f"{TRIALPOD_DIR}/{EXPERIMENT_FILE}"))
    found: Json | None = ((stored.get("manifest") or {}).get("spec") or {}).get("trainable")
    return found


def _hindrance(item: Mapping[str, Any], api: Experiments, *, waited: float, seen: bool) -> tuple[str, str] | None:
    """Return why the experiment, or some of its trials, do not go on: the reason, and a sentence."""
    if not seen:
        if waited < UNNOTICED_S:
            return None
        text = (
            "no operator has looked at it yet: is one running that serves this namespace? "
            f"`kubectl get pods -A -l app.kubernetes.io/part-of=trialpod`; namespace: {api.namespace}"
        )
        return "Unnoticed", text
    for kind, bad in (("Stalled", "True"), ("Ready", "False"), ("Suspended", "True")):
        found = condition(item, kind)
        if found.get("status") == bad and found.get("reason") != "Starting":
            return str(found.get("reason")), f"{found.get('reason')}: {found.get('message')}"
    waiting = (item.get("status") or {}).get("waiting")
    return (str(waiting.get("reason")), f"{waiting.get('reason')}: {waiting.get('message')}") if waiting else None


def _parting_words(api: Experiments, request: ExperimentRequest) -> str:
    where = f"-n {api.namespace}"
    hold = '{"spec":{"suspend":true}}'
    return (
        f"the experiment {request.name} goes on in the cluster.\n"
        f"  to follow it:   run this script again, or: trialpod status {request.name} {where}\n"
        f"  its results:    trialpod results {request.storage_uri}\n"
        f"  to hold it:     kubectl {where} patch te {request.name} --type=merge -p '{hold}'\n"
        f"  to delete it:   kubectl {where} delete te {request.name}"
    )


def _forget_directory(directory: Path) -> None:
    """Remove what a `Tuner` has put down for this backend; whatever else is there stays."""
    ours = directory / TRIALPOD_DIR
    if (ours / EXPERIMENT_FILE).exists():
        return  # a local run of the same experiment
    for path in [directory / _TUNER_FILE, *ours.glob("trainable*.pkl")]:
        path.unlink(missing_ok=True)
    for folder in (ours, directory):
        with contextlib.suppress(OSError):  # it is not empty: not ours
            folder.rmdir()
