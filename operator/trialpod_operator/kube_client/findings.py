"""What answers of a cluster mean to `trialpod check`: pure functions that return findings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trialpod import variables
from trialpod.errors import InvalidInputError, nearest
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods import queues
from trialpod_operator.cluster.pods.reading import OTHER_PLATFORM_REMEDY, foreign
from trialpod_operator.kube_client.probe_pod import Probe
from trialpod_operator.kube_client.view import condition, is_true

State = Literal["ok", "bad", "unknown"]

SKEW_S = 5.0
"""Clocks that differ by less are fine."""

SKEW_BAD_S = 60.0
"""Tokens and signatures of requests are refused at some minutes."""


_COUNTS = frozenset(
    ("pods", "count/pods", f"count/{names.EXPERIMENTS}.{names.GROUP}", f"count/{names.TRIALS}.{names.GROUP}")
)
_AMOUNTS = frozenset(("cpu", "memory", "ephemeral-storage"))
_CONFIG_MAPS = frozenset(("configmaps", "count/configmaps"))


@dataclass(frozen=True)
class Finding:
    """One line of a check.

    Attributes:
        name: what was checked.
        state: fine, bad, or not known.
        text: what was found.
        remedy: what to do about it.
    """

    name: str
    state: State
    text: str
    remedy: str = ""


IMAGE_REMEDY = "use an image with Python 3.10 to 3.14; a program without Python is a command: spec.trainable.command"

NOT_STARTED = ("StartError", "ContainerCannotRun")
"""Reasons of container runtimes for a program that they could not start."""


def inside_findings(probe: Probe, found: Mapping[str, Any], node: str, took: float) -> Iterator[Finding]:
    """Return what the output of the probe's pod means."""
    if found.get("lacks") == "trialpod":
        text = f"{probe.image} runs with Python {found.get('python')} and has no trialpod: the operator brings it"
        yield Finding("image", "unknown", text, "storage and code are tried by the first trial")
        return
    if error := found.get("image_error"):
        yield Finding("image", "bad", f"{probe.image} runs, but: {error}", IMAGE_REMEDY)
        return
    text = (
        f"{probe.image} on {node} after {took:.0f} s: trialpod {found.get('release')}, Python {found.get('python')}"
    )
    yield Finding("image", "ok", text)
    if "reports" in found:
        if found["reports"]:
            remedy = "a NetworkPolicy of the namespace must let pods reach it (and DNS)"
            yield Finding("report service", "bad", f"pods cannot reach {probe.reports}: {found['reports']}", remedy)
        else:
            yield Finding("report service", "ok", f"pods reach {probe.reports}")
    yield from _storage_findings(probe, found)
    if probe.trainable is not None:
        yield _code_finding(probe, found)


def no_answer_finding(probe: Probe, pod: Mapping[str, Any], last: str) -> Finding:
    """Return what it means that the program of the probe's pod said nothing; `last` is the last line of its log."""
    ended = terminated(pod)
    words = last_words(pod) or last
    if "exec format error" in words.lower():
        text = f"the image {probe.image} is built for another architecture than the pod's node: {words[:300]}"
        return Finding("image", "bad", text, OTHER_PLATFORM_REMEDY)
    if probe.command and ended.get("reason") in NOT_STARTED:
        text = f"{probe.image} was pulled and has no Python: the operator brings one for the command"
        return Finding("image", "unknown", text, "storage and program are tried by the first trial")
    return Finding("pod", "bad", f"the image {probe.image} cannot run the check: {words[:300]}", IMAGE_REMEDY)


def _code_finding(probe: Probe, found: Mapping[str, Any]) -> Finding:
    remedy = f"correct spec.trainable, or the code in {probe.image}"
    if "import_error" not in found:
        text = f"the process was ended while it imported {probe.code}"
        return Finding("code", "bad", text, "its memory may not suffice: set spec.resources.memory")
    if found["import_error"]:
        return Finding("code", "bad", str(found["import_error"]), remedy)
    return Finding("code", "ok", f"{probe.code} is imported from inside in {float(found['import_s']):.1f} s")


def _storage_findings(probe: Probe, found: Mapping[str, Any]) -> Iterator[Finding]:
    if not probe.uri:
        return
    if probe.scoped:
        text = (
            f"{probe.uri} is not tried: pods get short-lived keys from the operator, and no Secret; it tries that "
            "itself before an experiment's first trial, and `trialpod why NAME` tells what is refused"
        )
        yield Finding("storage", "unknown", text, "--secret NAME tries the keys of a Secret")
        return
    if error := found.get("storage_error"):
        step = {"open": "opened", "write": "written", "read": "read", "delete": "deleted from"}
        done = step.get(str(found.get("storage_step")), "used")
        yield Finding("storage", "bad", f"{probe.uri} cannot be {done} from inside: {error}", _storage_remedy(probe))
    else:
        seconds = float(found.get("storage_s") or 0.0)
        yield Finding("storage", "ok", f"{probe.uri}: written, read and deleted from inside in {seconds:.2f} s")


def _storage_remedy(probe: Probe) -> str:
    keys = f"the keys in the Secret {probe.secret}" if probe.secret else "a Secret with its keys (--secret NAME)"
    where = f"the endpoint {probe.endpoint}" if probe.endpoint else "the endpoint (--endpoint URL; none is Amazon's)"
    return f"see {where}, {keys}, and what they may do with the bucket"


def clock_finding(name: str, theirs: float, ours: float) -> Finding:
    """Compare two clocks, both in seconds since the epoch."""
    off = theirs - ours
    if abs(off) <= SKEW_S:
        return Finding(name, "ok", f"it agrees with this machine's ({off:+.1f} s)")
    way = "ahead of" if off > 0 else "behind"
    text = f"{abs(off):.0f} s {way} this machine's"
    if abs(off) <= SKEW_BAD_S:
        return Finding(name, "ok", text)
    remedy = "set both by NTP; signatures and tokens are refused when clocks differ by minutes"
    return Finding(name, "bad", text, remedy)


def limits_config_maps(item: Mapping[str, Any]) -> bool:
    """Return whether a ResourceQuota limits the number of ConfigMaps."""
    return not _CONFIG_MAPS.isdisjoint((item.get("status") or {}).get("hard") or {})


def quota_finding(
    item: Mapping[str, Any], devices: Collection[str] = (), *, needs_config_map: bool = False
) -> Finding:
    """Return what a ResourceQuota leaves; bad when an experiment cannot run any more.

    Args:
        item: the ResourceQuota.
        devices: the names of the devices that the experiment's pods request, such as "nvidia.com/gpu".
        needs_config_map: the operator has to create its ConfigMap in the namespace.
    """
    from trialpod_operator.api.quantity import parse_quantity

    status = item.get("status") or {}
    left: list[str] = []
    gone: list[str] = []
    for key, hard in (status.get("hard") or {}).items():
        used = (status.get("used") or {}).get(key, "0")
        amount = key.removeprefix("requests.").removeprefix("limits.")
        of_devices = amount != key and ("/" in amount or amount.startswith("hugepages-"))
        if not (key in _COUNTS or amount in _AMOUNTS or of_devices or key in _CONFIG_MAPS):
            continue
        try:
            rest = parse_quantity(hard) - parse_quantity(used)
        except InvalidInputError:
            continue
        text = f"{key} {used} of {hard}"
        if rest > 0:
            left.append(text)
        elif (not of_devices or amount in devices) and (key not in _CONFIG_MAPS or needs_config_map):
            gone.append(text)
    name = f"quota {item['metadata']['name']}"
    spec = item.get("spec") or {}
    if gone and (spec.get("scopes") or spec.get("scopeSelector")):
        text = f"used up: {', '.join(gone)}; it is only for some pods, by its scopes"
        return Finding(name, "unknown", text, "compare its scopes with spec.template")
    if gone:
        remedy = "wait for pods to end, lower spec.resources or maxConcurrentTrials, or have the quota raised"
        return Finding(name, "bad", f"used up: {', '.join(gone)}", remedy)
    return Finding(name, "ok", f"in use: {', '.join(left)}" if left else "it does not limit these pods")


def queue_findings(found: Sequence[Mapping[str, Any]] | None, queue: str, namespace: str) -> Iterator[Finding]:
    """Return what the LocalQueues of a namespace mean.

    Args:
        found: the LocalQueues; None where there is no Kueue.
        queue: that the experiment's pods are to wait in; "" = none.
        namespace: its name.
    """
    known = {str(each["metadata"]["name"]): each for each in found or ()}
    if queue and found is None:
        text = (
            f"the label {queues.QUEUE_LABEL} names the queue {queue}, and the cluster has no Kueue: no pod will wait"
        )
        yield Finding("queues", "bad", text, "have Kueue installed, or leave the label out")
    elif queue and queue not in known:
        guess = nearest(queue, known)
        there = f"did you mean {guess}?" if guess else f"there are: {', '.join(known) or 'none'}"
        text = f"the namespace {namespace} has no LocalQueue {queue}: pods would wait forever; {there}"
        yield Finding("queues", "bad", text, queues.remedy("doesn't exist", queue))
    for name, item in known.items():
        active = condition(item, "Active")
        owner = (item.get("spec") or {}).get("clusterQueue")
        if active.get("status") != "False":
            yield Finding(f"queue {name}", "ok", f"it is active, of the ClusterQueue {owner}: {queues.numbers(item)}")
            continue
        why = str(active.get("message") or active.get("reason") or "it does not say why")
        text = f"it is not active: {foreign(why, 300)}"
        if name == queue:
            yield Finding(f"queue {name}", "bad", f"{text}; pods would wait in it", queues.remedy("is stopped", name))
        else:
            yield Finding(f"queue {name}", "unknown", f"{text}; only experiments that name it would wait")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod is ready."""
    return is_true(pod, "Ready")


def served(pod: Mapping[str, Any]) -> list[str]:
    """Return the namespaces that an operator serves; none means all."""
    return [part for part in _variables(pod).get(variables.NAMESPACES, "").replace(" ", "").split(",") if part]


def serves(pod: Mapping[str, Any], namespace: str) -> bool:
    """Return whether an operator serves a namespace."""
    spaces = served(pod)
    return not spaces or namespace in spaces


def facts_of(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return what the pod of an operator shows about it, as the operator itself would say."""
    shown = _variables(pod)
    storage = {
        "uri": shown.get(variables.DEFAULT_STORAGE_URI, ""),
        "endpoint": shown.get(variables.DEFAULT_STORAGE_ENDPOINT, ""),
        "credentialsSecret": shown.get(variables.DEFAULT_STORAGE_SECRET, ""),
    }
    service = shown.get(variables.SERVICE, "")
    version = (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "")
    found = {
        names.VERSION_ANNOTATION: version,
        names.IMAGE_ANNOTATION: shown.get(variables.DEFAULT_IMAGE, ""),
        names.STORAGE_ANNOTATION: json.dumps(storage) if storage["uri"] else "",
        names.KINDS_ANNOTATION: shown.get(variables.TRIAL_KINDS, ""),
        names.REPORTS_ANNOTATION: f"https://{service}:8443" if service else "",
        names.CREDENTIALS_ANNOTATION: names.credentials_fact(
            own=bool(shown.get(variables.STORAGE_KEYS_DIR)),
            always_scoped=shown.get(variables.SCOPED_CREDENTIALS) == "required",
        ),
    }
    return {key: value for key, value in found.items() if value}


def _variables(pod: Mapping[str, Any]) -> dict[str, str]:
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    return {each["name"]: str(each.get("value") or "") for each in containers[0].get("env") or []}


def terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a pod's first container ended, {} where nothing is known of that."""
    for each in (pod.get("status") or {}).get("containerStatuses") or ():
        return (each.get("state") or {}).get("terminated") or {}
    return {}


def last_words(pod: Mapping[str, Any]) -> str:
    """Return the last line of what a pod's first container left as its message."""
    if ended := terminated(pod):
        lines = [line.strip() for line in str(ended.get("message") or "").splitlines() if line.strip()]
        return lines[-1] if lines else str(ended.get("reason") or "")
    return str((pod.get("status") or {}).get("message") or "")
