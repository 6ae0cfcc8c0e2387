"""The backend ``kubernetes``: runs what a `Tuner` is given as a TuneExperiment in a cluster, and follows it.

Invariants: what cannot run in a cluster is refused before anything is written or created. This process decides
nothing: when it ends, the experiment continues; the same script, run again, follows it again. The Trainable is in the
experiment's storage before the resource names it. Nothing is kept on this machine.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trialpod import variables
from trialpod.errors import InvalidInputError, TrialpodError
from trialpod.protocol.packed import read_packed
from trialpod.protocol.pickle_digest import pickle_digest
from trialpod.protocol.values import ParamsEncoder
from trialpod.storage.base import Storage
from trialpod.storage.layout import EXPERIMENT_FILE, EXPERIMENT_KEY, TRIALPOD_DIR, WRITER_KEY
from trialpod.storage.options import StorageOptions
from trialpod.storage.registry import open_storage, scheme_of, storage_class
from trialpod.storage.s3 import routes
from trialpod.storage.s3.routes import endpoint_of
from trialpod.storage.s3.storage import parse_uri
from trialpod.tune.backends import ExperimentRequest
from trialpod.tune.callback_list import CallbackError
from trialpod.tune.outcomes import ExperimentOutcome
from trialpod.tune.shipping.package import own_modules, stored_objects
from trialpod.tune.shipping.stored_objects import FOLDER, ValueFiles
from trialpod_operator.api.api_errors import AlreadyExistsError
from trialpod_operator.cluster import names
from trialpod_operator.cluster.annotations import next_retry
from trialpod_operator.decider.code import checksum, pack_code
from trialpod_operator.kube_client import pod_dry_run
from trialpod_operator.kube_client.callbacks import RemoteCallbacks
from trialpod_operator.kube_client.client import Experiments
from trialpod_operator.kube_client.manifest import (
    NAME,
    ClusterSettings,
    build_manifest,
    ignored,
    needs_decider,
    resource_name,
)
from trialpod_operator.kube_client.script_draws import draw_here_too, draws_from_script, without_generator
from trialpod_operator.kube_client.service_address import service_address
from trialpod_operator.kube_client.storage import StorageLocation, default_storage, own_endpoint, reach
from trialpod_operator.kube_client.version_skew import skew
from trialpod_operator.kube_client.view import is_true, view_of

logger = logging.getLogger(__name__)

Json = dict[str, Any]


UPLOAD_TIMEOUT_S, UPLOAD_POLL_INTERVAL_S = 60.0, 0.25
"""Maximum time to wait for the last files, which follow the end of an experiment."""

_TUNER_FILE = "tuner.pkl"
_BUDGET = (
    "numSamples", "maxConcurrentTrials", "timeBudget", "maxTrialHours", "maxGpuHours", "stopWhenNotWorth",
    "repeats",
    "failurePolicy",
)  # fmt: skip


class Submitted(SystemExit):
    """Ends a script whose experiment was submitted; a SystemExit, so that scripts let it pass."""


@dataclass
class Submission:
    """What `trialpod submit SCRIPT` tells this backend inside the script, and what it learns from it.

    Attributes:
        dry_run: only make the manifest; then the script ends.
        wait: run the experiment as a script does; else the script ends when it is created.
        items: the manifests, or the experiments as they were created.
        before: the experiment before, None when it was not there.
        status: exit status of the command.
    """

    dry_run: bool = False
    wait: bool = False
    items: list[Json] = field(default_factory=list)
    before: Json | None = None
    status: int = 0


submission: Submission | None = None
"""Set while a script is run by `trialpod submit`."""


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
        context: of the kubeconfig; None takes TRIALPOD_CONTEXT, or its current one.
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
        self._namespace = namespace or environ.get(variables.NAMESPACE) or None
        self._image = image if image is not None else environ.get(variables.IMAGE, "")
        self._secret = (
            credentials_secret if credentials_secret is not None else environ.get(variables.CREDENTIALS_SECRET)
        )
        self._endpoint = endpoint if endpoint is not None else environ.get(variables.CLUSTER_ENDPOINT)
        self._template = dict(template or {})
        self._labels = dict(labels or {})
        self._context = context or environ.get(variables.CONTEXT) or None
        self._deletion_policy = deletion_policy
        self._environ = environ
        self._clock, self._sleep = clock, sleep

    def default_name(self, trainable: str, now: float) -> str:
        """Return the name of an experiment that was given none."""
        stamp = time.strftime("%m%d-%H%M%S", time.localtime(now))
        ending = f"-{stamp}-{secrets.token_hex(2)}"
        return resource_name(trainable)[: names.MAX_EXPERIMENT_NAME - len(ending)].rstrip("-") + ending

    @staticmethod
    def nearest_name(name: str) -> str:
        """Return the name that an experiment of a script written for Ray has here: any is good there."""
        valid = len(name) <= names.MAX_EXPERIMENT_NAME and NAME.fullmatch(name)
        return name if valid else resource_name(name)

    def prepare_storage(self, path: str) -> None:
        """Register how this process reaches the server of a bucket that is inside the cluster.

        Nothing is asked before something in that bucket is opened.
        """
        if scheme_of(path) != "s3" or own_endpoint(self._environ):
            return
        address = service_address(endpoint_of(path), self._namespace or "default")
        if endpoint_of(path) and (address is None or not address.certain):
            return
        bucket = parse_uri(path)[0]
        if not routes.registered(bucket):
            routes.register(bucket, lambda: self._route(path))

    def _route(self, path: str) -> routes.Route | None:
        """Return the way to the server of a bucket in the cluster; None where the environment says how."""
        try:
            api = Experiments.connect(self._namespace, context=self._context)
        except InvalidInputError:
            return None  # no cluster is known: only stored results are read, perhaps
        with api:
            location = self._storage_location(api, path)
            if not location.endpoint:
                return None
            if self._secret is None and location.secret:
                self._secret = location.secret  # the pods need it, too
            return reach(api, location, self._environ)[1]

    def _storage_location(self, api: Experiments, path: str) -> StorageLocation:
        """Return where a path is: as this backend was configured, or as the operator's default storage says."""
        default = default_storage(api.operator_facts())
        same = _bucket(str(default.get("uri") or "")) == _bucket(path)
        published = str(default.get("endpoint") or "") * same
        endpoint = self._endpoint if self._endpoint is not None else endpoint_of(path) or published
        secret = self._secret if self._secret is not None else str(default.get("credentialsSecret") or "") * same
        return StorageLocation(path, endpoint, secret)

    def attaches(self, path: str) -> bool:
        """Return whether there is a TuneExperiment for what is kept at `path`, which `run` would follow."""
        with Experiments.connect(self._namespace, context=self._context) as api:
            return api.find(path.rpartition("/")[2]) is not None

    def can_restore(self, path: str) -> bool:
        """Return whether the storage at `path` holds an experiment."""
        if not storage_class(path).is_shared or (submission is not None and submission.dry_run):
            return False
        self.prepare_storage(path)
        return open_storage(path).exists(EXPERIMENT_KEY)

    def load(self, path: str) -> ExperimentOutcome:
        """Read what is known of the experiment in the directory or at the URI `path`."""
        from trialpod_operator.local.backend import LocalBackend

        self.prepare_storage(path)
        return LocalBackend().load(path)

    def run(self, request: ExperimentRequest) -> ExperimentOutcome:
        """Start the experiment, or find the one that runs, and follow it to its end.

        Raises:
            InvalidInputError: it cannot run in a cluster, or another one has its name. Nothing was created.
            KeyboardInterrupt: the user does not want to wait; the experiment continues.
            CallbackError: a callback raised an exception; the experiment continues.
            ClusterUnreachableError: the cluster cannot be reached at the start.
            TrialpodError: it has stalled, or was deleted while this waited.
            Submitted: `trialpod submit` runs the script, and does not wait.
        """
        try:
            if submission is not None and submission.dry_run:
                submission.items.append(self._made(request))
                raise Submitted(0)
            self.prepare_storage(request.storage_uri)
            with Experiments.connect(self._namespace, context=self._context) as api:
                code = Path(request.trainable.pickle or "").read_bytes()
                tuner = Path(request.directory, _TUNER_FILE)
                if problem := skew(api.operator_facts()):
                    logger.warning("%s", problem)
                item = self._start(api, request, code, tuner.read_bytes() if tuner.exists() else b"")
                if submission is not None:
                    submission.items.append(item)
                    if not submission.wait:
                        raise Submitted(0)
                _remove_directory(Path(request.directory))
                self._show(api, request, item)
        finally:
            _remove_directory(Path(request.directory))
        self._wait_for_files(request.storage_uri)
        return self.load(request.storage_uri)

    def _show(self, api: Experiments, request: ExperimentRequest, item: Json) -> None:
        """Show the experiment until it has ended, and what came of it."""
        from trialpod_operator.display.base import write_closing
        from trialpod_operator.display.choose import choose_display, level_of
        from trialpod_operator.display.summary import summarize
        from trialpod_operator.kube_client.following import follow

        verbose = level_of(request.verbose)
        callbacks = self._callbacks(request)
        display = choose_display(sys.stdout, json=False, verbose=verbose)
        try:
            item = follow(api, item, display, clock=self._clock, sleep=self._sleep, each=callbacks.refresh)
            if submission is not None and is_true(item, "Failed"):
                submission.status = 1
        except (KeyboardInterrupt, CallbackError):
            write_closing(sys.stdout, _farewell(api, request))
            callbacks.end()
            raise
        finally:
            display.close()
        if request.callbacks:
            self._wait_for_files(request.storage_uri)
            callbacks.refresh(item, api.trials(request.name), final=True)
            callbacks.end()
        if verbose >= 0:
            trials = api.trials(request.name)
            write_closing(sys.stdout, summarize(view_of(item, trials, now=self._clock(), rows=None)))

    def _callbacks(self, request: ExperimentRequest) -> RemoteCallbacks:
        return RemoteCallbacks(
            request.callbacks,
            lambda: open_storage(request.storage_uri),
            request.storage_uri,
            stop=request.stop,
            num_samples=request.num_samples,
            time_budget_s=request.time_budget_s,
            clock=self._clock,
        )

    # -- the start --

    def _made(self, request: ExperimentRequest) -> Json:
        """Return the manifest, without any request."""
        try:
            namespace = Experiments.connect(self._namespace, context=self._context).namespace
        except InvalidInputError:
            namespace = self._namespace or "default"
        return self._manifest(request, namespace)[0]

    def _manifest(self, request: ExperimentRequest, namespace: str) -> tuple[Json, ValueFiles, bytes]:
        """Return the manifest, the large values that it refers to, and the deciding code where that is the user's."""
        store = ValueFiles(Path(request.directory, TRIALPOD_DIR))
        with own_modules():
            store.keep(request.param_space)
        # It takes the user's own modules along by itself.
        code = pack_code(request, store) if needs_decider(request) else b""
        decider = None
        if code:
            digest = checksum(code)
            decider = {"uri": f"{request.storage_uri}/{_decider_key(digest)}", "sha256": digest}
        with own_modules():
            settings = self._settings(namespace, request)
            encoder = ParamsEncoder(store)
            return build_manifest(request, settings, _code_uri(request), encoder, decider), store, code

    def _start(self, api: Experiments, request: ExperimentRequest, code: bytes, state: bytes) -> Json:
        file = _code_uri(request).removeprefix(f"{request.storage_uri}/")
        manifest, values, deciding = self._manifest(request, api.namespace)
        for difference in ignored(request):
            logger.warning("%s", difference)
        item = api.find(request.name)
        if submission is not None:
            submission.before = item
        if item is not None:
            return self._retried(api, self._attach(api, item, manifest, code), request)
        if request.resume_errored or request.restart_errored:
            value = next_retry(manifest, [], secrets.token_hex(4), from_scratch=request.restart_errored)
            manifest["metadata"].setdefault("annotations", {})[names.RETRY_ANNOTATION] = value
        pod_dry_run.check(api, manifest, logger.warning)
        storage = open_storage(request.storage_uri)
        if storage.exists(EXPERIMENT_KEY):
            _continue_stored(manifest["spec"], storage)
        _put_objects(storage, Path(request.trainable.pickle or ""), values.files)
        storage.write(file, code)
        if deciding:
            storage.write(_decider_key(manifest["spec"]["decider"]["pickle"]["sha256"]), deciding)
        if state and not storage.exists(_TUNER_FILE):
            storage.write(_TUNER_FILE, state)
        try:
            created = api.create(manifest)
            if not deciding and draws_from_script(request):
                draw_here_too(request)
            return created
        except AlreadyExistsError:
            return self._attach(api, api.get(request.name), manifest, code)  # started elsewhere in this moment

    def _settings(self, namespace: str, request: ExperimentRequest) -> ClusterSettings:
        endpoint = self._endpoint
        route = None
        if endpoint is None and (submission is None or not submission.dry_run):
            route = routes.route_to(_bucket(request.storage_uri))
        if endpoint is None and route is not None:
            endpoint = route.endpoint
        if endpoint is None:
            own = StorageOptions(endpoint=endpoint_of(request.storage_uri)).resolved(self._environ)
            endpoint = "" if own.addressing == "virtual" else own.endpoint
        if self._secret is None and self._environ.get("AWS_ACCESS_KEY_ID"):
            raise InvalidInputError(
                "the keys of this process (AWS_ACCESS_KEY_ID) are not sent to the cluster; name a Secret there that "
                f"has keys for the trials: the variable {variables.CREDENTIALS_SECRET}=NAME, or "
                "KubernetesBackend(credentials_secret=...). "
                f"To make one: kubectl -n {namespace} create secret generic NAME "
                "--from-literal=AWS_ACCESS_KEY_ID=... "
                '--from-literal=AWS_SECRET_ACCESS_KEY=...; give "" if the pods need no keys'
            )
        return ClusterSettings(
            namespace=namespace,
            endpoint=endpoint,
            credentials_secret=self._secret or "",
            image=self._image,
            template=self._template,
            labels=self._labels,
            deletion_policy=self._deletion_policy,
        )

    def _attach(self, api: Experiments, item: Json, manifest: Json, code: bytes) -> Json:
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
        if "spec.trainable" in differences and not _is_same_code(item, code):
            logger.warning(
                "%s continues with the code that it was started with; this script's differs. For the new code start "
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

    def _retried(self, api: Experiments, item: Json, request: ExperimentRequest) -> Json:
        """Have its failed trials retried, where that is wanted."""
        if not (request.resume_errored or request.restart_errored):
            return item
        value = next_retry(item, [], secrets.token_hex(4), from_scratch=request.restart_errored)
        return api.annotate(request.name, {names.RETRY_ANNOTATION: value, names.STOP_ANNOTATION: None})

    # -- until the end --

    def _wait_for_files(self, uri: str) -> None:
        """Return when the operator has released the experiment: then the last files have been copied."""
        storage = open_storage(uri)
        deadline = self._clock() + UPLOAD_TIMEOUT_S
        while storage.exists(WRITER_KEY) and self._clock() < deadline:
            self._sleep(UPLOAD_POLL_INTERVAL_S)


def _bucket(uri: str) -> str:
    return uri.partition("://")[2].partition("/")[0]


def _code_uri(request: ExperimentRequest) -> str:
    digest = request.trainable.sha256 or ""
    return f"{request.storage_uri}/{TRIALPOD_DIR}/trainable-{digest[:16]}.pkl"


def _decider_key(digest: str) -> str:
    return f"{TRIALPOD_DIR}/decider-{digest[:16]}.pkl"


def _comparable(item: Mapping[str, Any]) -> Json:
    """Return the parts of a spec that make an experiment what it is, in one form."""
    import msgspec

    from trialpod_operator.api.document import Document
    from trialpod_operator.api.inspection import changeable
    from trialpod_operator.api.models import TuneExperimentSpec
    from trialpod_operator.api.validation import check_document

    # A cluster with a newer version adds the defaults of fields that are not known here.
    known = {key: item["spec"][key] for key in TuneExperimentSpec.__struct_encode_fields__ if key in item["spec"]}
    own = {"apiVersion": item["apiVersion"], "kind": item["kind"], "spec": known}
    own["metadata"] = {"name": item["metadata"]["name"]}
    checked = check_document(Document(own))
    spec: Json = known if checked.experiment is None else msgspec.to_builtins(checked.experiment.spec)
    kept = {key: value for key, value in spec.items() if key in _BUDGET or key not in changeable("any time")}
    kept["searchAlgorithm"] = without_generator(kept).get("searchAlgorithm")
    kept["searchSpace"] = _without_data(kept.get("searchSpace"))
    kept["storage"] = {"uri": (spec.get("storage") or {}).get("uri")}
    return kept


def _without_data(space: Any) -> Any:
    """Return a search space with only the readable forms of Python values: pickles of equal values may differ."""
    from trialpod_operator.api.search_space import READABLE, VALUE

    if isinstance(space, list):
        return [_without_data(item) for item in space]
    if not isinstance(space, dict):
        return space
    if VALUE in space:
        return {READABLE: space.get(READABLE)}
    return {key: _without_data(item) for key, item in space.items()}


def _is_same_code(item: Mapping[str, Any], code: bytes) -> bool:
    """Return whether an experiment's pickled Trainable is another process's pickle of this script's."""
    spec = item["spec"]
    uri = ((spec["trainable"].get("pickle") or {}).get("uri") or "").rpartition("/")
    try:
        stored = open_storage(uri[0]).read(uri[2]) if uri[0] else b""
        return bool(stored) and _meaning(stored) == _meaning(code)
    except (TrialpodError, ValueError):
        return False


def _meaning(code: bytes) -> str:
    return pickle_digest(read_packed(code)[1])


def _continue_stored(spec: Json, storage: Storage) -> None:
    """Take the Trainable, and where random draws begin, from an experiment whose resource is gone."""
    import json

    document = json.loads(storage.read(EXPERIMENT_KEY))
    stored: Json = (document.get("manifest") or {}).get("spec") or {}
    spec["trainable"] = stored.get("trainable") or spec["trainable"]
    if without_generator(stored).get("searchAlgorithm") == without_generator(spec).get("searchAlgorithm"):
        spec["searchAlgorithm"] = stored.get("searchAlgorithm")


def _put_objects(storage: Storage, trainable: Path, values: Mapping[str, Path]) -> None:
    """Copy the objects that a Trainable and configs refer to into the storage, except those that are there."""
    objects = {digest: trainable.parent / FOLDER / digest for digest in stored_objects(trainable)}
    for name, file in {**objects, **values}.items():
        key = f"{TRIALPOD_DIR}/{FOLDER}/{name}"
        if not storage.exists(key):
            storage.put_file(file, key)


def _farewell(api: Experiments, request: ExperimentRequest) -> str:
    where = f"{request.name} -n {api.namespace}"
    return (
        f"the experiment {request.name} continues in the cluster.\n"
        f"  to follow it:   run this script again, or: trialpod status {where} --watch\n"
        f"  its results:    trialpod results {where}\n"
        f"  to hold it:     trialpod suspend {where}\n"
        f"  to end it:      trialpod stop {where}\n"
        f"  to delete it:   trialpod delete {where}"
    )


def _remove_directory(directory: Path) -> None:
    """Remove what a `Tuner` has put down for this backend; whatever else is there stays."""
    ours = directory / TRIALPOD_DIR
    if (ours / EXPERIMENT_FILE).exists():
        return  # a local run of the same experiment
    for path in [directory / _TUNER_FILE, *ours.glob("trainable*.pkl"), *ours.glob(f"{FOLDER}/*")]:
        path.unlink(missing_ok=True)
    for folder in (ours / FOLDER, ours, directory):
        with contextlib.suppress(OSError):  # it is not empty: not ours
            folder.rmdir()
