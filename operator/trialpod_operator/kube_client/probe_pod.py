"""The pod of `trialpod check`: proves from inside the cluster what cannot be seen from outside.

That the image can be pulled and has trialpod in it, that the store takes, gives and removes an object with the
Secret's keys, that the report service can be reached, what time it is there, and that the experiment's Trainable can
be imported. It prints one line of JSON, and before it imports code of the user's what it knows until then.

Pure: builds the pod and reads what it printed. The program in it uses nothing that older images lack.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods import template

Json = dict[str, Any]

DEADLINE_S = 300
_VOLUME = "keys"
_CODE_VOLUME = "code"
_IMPORT_MEMORY = "1Gi"
"""Limit of a pod that imports code of an experiment which states none."""

_KEPT = (
    "imagePullSecrets", "nodeSelector", "tolerations", "affinity", "serviceAccountName", "priorityClassName",
    "runtimeClassName", "securityContext",
)  # fmt: skip
"""Of an experiment's pod template, what decides where its pods may run, and as whom."""

PROGRAM = """
import json, os, platform, socket, sys, time
out = {"time": time.time(), "python": platform.python_version(), "user": os.getuid(), "release": "", "node": ""}
# Some network plugins let a new pod through only seconds after its start.
retry_s = float(os.environ.get("CHECK_RETRY_S", "15"))
def done():
    print("trialpod-check " + json.dumps(out), flush=True)
    sys.exit(0)
try:
    import trialpod
    out["release"] = trialpod.__version__
    from trialpod.protocol.messages import PROTOCOL_VERSION
    out["protocol"] = PROTOCOL_VERSION
except Exception as error:
    out["image_error"], out["lacks"] = str(error), getattr(error, "name", "") or ""
    done()
address = os.environ.get("CHECK_REPORTS", "")
if address:
    host, _, port = address.rpartition("://")[2].rpartition(":")
    until = time.monotonic() + retry_s
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            out["reports"] = ""
            break
        except OSError as error:
            out["reports"] = str(error)
        if time.monotonic() >= until:
            break
        time.sleep(0.5)
uri = os.environ.get("CHECK_URI", "")
if uri:
    step = "open"
    try:
        from trialpod.storage.registry import open_storage
        from trialpod.storage.options import StorageOptions
        options = StorageOptions(endpoint=os.environ.get("CHECK_ENDPOINT", ""), retry_s=retry_s)
        keys = "/var/run/trialpod-storage"
        if os.path.isdir(keys):
            options.credentials_dir = keys
            if os.path.exists(keys + "/ca.crt"):
                options.ca_file = keys + "/ca.crt"
        options.create_bucket = os.environ.get("CHECK_CREATE", "") == "1"
        storage = open_storage(uri, options.resolved({}))
        key = ".trialpod-check/" + socket.gethostname()
        began = time.time()
        step = "write"
        storage.write(key, b"trialpod")
        step = "read"
        if storage.read(key) != b"trialpod":
            raise RuntimeError("it gives back something else than what was written")
        step = "delete"
        storage.delete(key)
        out["storage_s"] = time.time() - began
        step = ""
    except Exception as error:
        out["storage_error"] = str(error)
    out["storage_step"] = step
trainable = os.environ.get("CHECK_TRAINABLE", "")
if trainable:
    print("trialpod-check " + json.dumps(out), flush=True)
    began = time.time()
    try:
        from trialpod.protocol.messages import TrainableRef
        from trialpod.runner.load import load_trainable
        load_trainable(TrainableRef(**json.loads(trainable)))
        out["import_error"] = ""
    except BaseException as error:
        out["import_error"] = str(error) or type(error).__name__
    out["import_s"] = time.time() - began
done()
"""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a check is to try.

    Attributes:
        image: of the pod.
        uri: of the storage; "" = none is tried.
        endpoint: of the S3 server, as pods reach it.
        secret: with the storage's keys; "" = none.
        scoped: trials get short-lived keys from the operator, which any other pod does not: none is tried.
        create_bucket: make the bucket if it is missing.
        reports: address of the operator's report service; "" = not tried.
        resources: requests and limits of the pod.
        gpu: so many devices more.
        gpu_resource: what a device is called.
        pod_template: spec.template of the experiment that is to run there.
        trainable: spec.trainable of the experiment, when it can be loaded in a pod; None = it is not tried.
        command: the experiment runs a program, whose image needs no Python.
    """

    image: str
    uri: str = ""
    endpoint: str = ""
    secret: str = ""
    scoped: bool = False
    create_bucket: bool = False
    reports: str = ""
    resources: Mapping[str, Any] = field(default_factory=dict)
    gpu: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    pod_template: Mapping[str, Any] = field(default_factory=dict)
    trainable: Mapping[str, Any] | None = None
    command: bool = False

    @property
    def code(self) -> str:
        """What the trainable is called in messages."""
        given = self.trainable or {}
        config_map = given.get("configMapRef")
        if config_map:
            return f"{config_map.get('entrypoint')} in the ConfigMap {config_map.get('name')}"
        return str(given["entrypoint"]) if given.get("entrypoint") else "spec.trainable.source"


def build(probe: Probe, name: str, namespace: str) -> Json:
    """Return the pod."""
    amounts: Json = {"cpu": "100m", "memory": "128Mi"}
    for key, value in probe.resources.items():
        amounts[probe.gpu_resource if key == "gpu" else key] = value
    if probe.gpu:
        amounts[probe.gpu_resource] = probe.gpu
    amounts = {key: str(value) for key, value in amounts.items()}
    variables = {
        "CHECK_URI": "" if probe.scoped else probe.uri,
        "CHECK_ENDPOINT": probe.endpoint,
        "CHECK_REPORTS": probe.reports,
        "CHECK_CREATE": "1" if probe.create_bucket else "",
    }
    container: Json = {
        "name": names.CONTAINER,
        "image": probe.image,
        "command": ["python", "-c", PROGRAM],
        "env": [{"name": key, "value": value} for key, value in variables.items() if value],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    given = probe.pod_template.get("spec") or {}
    if probe.trainable is not None:
        _add_code(container, given, probe.trainable, asked="memory" in probe.resources)
    spec: Json = {key: copy.deepcopy(given[key]) for key in _KEPT if given.get(key) is not None}
    spec["containers"] = [container]
    if probe.trainable is not None:
        spec["volumes"] = copy.deepcopy(given.get("volumes") or [])
        if code := probe.trainable.get("configMapRef"):
            file = str(code.get("entrypoint", "")).partition(":")[0].replace(".", "/") + ".py"
            items = [{"key": code.get("key"), "path": file}]
            spec["volumes"].append({"name": _CODE_VOLUME, "configMap": {"name": code.get("name"), "items": items}})
    if probe.secret and not probe.scoped:
        volumes, mounts = spec.setdefault("volumes", []), container.setdefault("volumeMounts", [])
        volumes.append({"name": _VOLUME, "secret": {"secretName": probe.secret}})
        mounts.append({"name": _VOLUME, "mountPath": names.STORAGE_SECRET_DIR, "readOnly": True})
    template.restrict(spec)
    spec |= {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "activeDeadlineSeconds": DEADLINE_S,
        "terminationGracePeriodSeconds": 1,
    }
    # The label of a trial's pod: NetworkPolicies let this pod reach what they let trials reach.
    labels = {
        **template.copied_labels(((probe.pod_template.get("metadata") or {}).get("labels")) or {}),
        names.NAME_LABEL: names.TRIAL_POD_NAME,
    }
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _add_code(container: Json, given: Mapping[str, Any], trainable: Mapping[str, Any], *, asked: bool) -> None:
    """Have a container load the Trainable as a trial's would: with the template's variables and mounts."""
    containers = given.get("containers") or []
    index = template.trial_container(given)
    own = containers[index] if index is not None else {}
    variables = [each for each in own.get("env") or () if not str(each.get("name", "")).startswith("CHECK_")]
    container["env"] = [*copy.deepcopy(variables), *container["env"]]
    for key in ("envFrom", "workingDir", "volumeMounts"):
        if own.get(key):
            container[key] = copy.deepcopy(own[key])
    code = trainable.get("configMapRef")
    if code:
        mount = {"name": _CODE_VOLUME, "mountPath": names.CODE_DIR, "readOnly": True}
        container.setdefault("volumeMounts", []).append(mount)
        reference: Json = {"entrypoint": code.get("entrypoint"), "path": [names.CODE_DIR]}
    else:
        reference = {key: trainable[key] for key in ("entrypoint", "source", "attribute") if trainable.get(key)}
    container["env"].append({"name": "CHECK_TRAINABLE", "value": json.dumps(reference)})
    if not asked:
        container["resources"]["limits"]["memory"] = _IMPORT_MEMORY


def read(log: str) -> Json | None:
    """Return what the pod found out; None when it did not come to that."""
    for line in reversed(log.splitlines()):
        if line.startswith("trialpod-check "):
            try:
                found = json.loads(line.removeprefix("trialpod-check "))
            except ValueError:
                return None
            return found if isinstance(found, dict) else None
    return None
