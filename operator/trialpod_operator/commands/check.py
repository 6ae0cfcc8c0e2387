"""`trialpod check`: can experiments run in this cluster, in this namespace, with this image and this storage.

Every line is fine, wrong with what to do about it, or not known because the user may not look. Exit status 1 when
anything is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import secrets
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trialpod.cli.command import Command
from trialpod.errors import InvalidInputError
from trialpod_operator.cluster import names
from trialpod_operator.commands import target

if TYPE_CHECKING:
    from trialpod_operator.kube_client.checks import Checks
    from trialpod_operator.kube_client.findings import Finding
    from trialpod_operator.kube_client.probe_pod import Probe

Json = dict[str, Any]

TIMEOUT_S = 120.0
_SIGNS = {"ok": "fine ", "bad": "WRONG", "unknown": "?    "}


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("-f", "--file", metavar="FILE", help="a manifest: take storage, Secret, image, resources and "
                        "the pod template of its experiment")  # fmt: skip
    parser.add_argument("--storage", metavar="URI", help="s3://bucket/prefix to check (default: the operator's)")
    parser.add_argument("--secret", metavar="NAME", help="Secret of the namespace with the storage's keys")
    parser.add_argument("--endpoint", metavar="URL", help="the S3 server, as pods reach it")
    parser.add_argument(
        "--image", metavar="IMAGE", help="image to check (default: the operator's default for trials)"
    )
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="make the pod request N GPUs")
    parser.add_argument(
        "--no-pod", action="store_true", help="run no pod: nothing is checked from inside the cluster"
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS",
                        help=f"how long the pod may take (default: {TIMEOUT_S:.0f})")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON document")
    target.add_cluster_options(parser)


def run(options: argparse.Namespace) -> int:
    """Print what was found."""
    from trialpod_operator.kube_client.checks import Checks

    given = _manifest(options.file) if options.file else {}
    if options.namespace is None and given:
        options.namespace = given["metadata"].get("namespace")
    found: list[Finding] = []
    with target.connect(options) as api:
        for finding in _all(Checks(api), options, given):
            found.append(finding)
            if not options.json:
                print(line(finding), flush=True)
    wrong = sum(finding.state == "bad" for finding in found)
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in found], indent=2))
    elif wrong:
        print(f"\n{wrong} of {len(found)} checks found something wrong")
    else:
        unknown = sum(finding.state == "unknown" for finding in found)
        print(f"\nexperiments can run here{f'; {unknown} could not be checked' if unknown else ''}")
    return 1 if wrong else 0


def line(finding: Finding) -> str:
    """Return a finding as text."""
    text = f"{_SIGNS[finding.state]}  {finding.name}: {finding.text}"
    return f"{text}\n         -> {finding.remedy}" if finding.remedy else text


def _all(checks: Checks, options: argparse.Namespace, given: Mapping[str, Any]) -> Iterator[Finding]:
    from trialpod_operator.cluster.pods.queues import queue_of
    from trialpod_operator.kube_client.findings import Finding

    spec = given.get("spec") or {}
    yield from checks.server()
    yield from checks.definitions()
    yield from checks.permissions(probe=not options.no_pod)
    yield from checks.operator()
    yield from checks.operator_clock()
    resource = checks.facts.get(names.GPU_ANNOTATION) or "nvidia.com/gpu"
    devices = devices_of(spec, resource)
    wants_gpu = bool(options.gpu or (spec.get("resources") or {}).get("gpu"))
    yield from checks.quota({*devices, resource} if options.gpu else devices)
    yield from checks.devices(resource, wanted=wants_gpu)
    yield from checks.queues(queue_of(spec.get("template") or {}) or queue_of(given))
    if spec.get("trialResource"):
        yield from checks.trial_kind(spec["trialResource"])
    elif given:
        yield from checks.pods(given)
    if options.no_pod:
        return
    probe = probe_of(options, spec, checks.facts, resource)
    if not probe.image:
        yield Finding("image", "unknown", "no image is known", "name one with trialpod in it: --image IMAGE")
        return
    yield from checks.inside(probe, f"trialpod-check-{secrets.token_hex(4)}", options.timeout)
    if not probe.uri:
        remedy = "name one: --storage s3://bucket/prefix --secret NAME"
        yield Finding("storage", "unknown", "no storage is known", remedy)


def devices_of(spec: Mapping[str, Any], gpu_resource: str) -> set[str]:
    """Return the names of the devices that the pods of an experiment request, with their amounts left out."""
    pod = (spec.get("template") or {}).get("spec") or {}
    stated = [spec.get("resources"), (spec.get("workers") or {}).get("resources")]
    for container in (*(pod.get("initContainers") or ()), *(pod.get("containers") or ())):
        resources = container.get("resources") or {}
        stated += [resources.get("requests"), resources.get("limits")]
    found = {gpu_resource if name == "gpu" else str(name) for each in stated for name in each or ()}
    return found - {"cpu", "memory"}


def probe_of(
    options: argparse.Namespace, spec: Mapping[str, Any], facts: Mapping[str, str], gpu_resource: str
) -> Probe:
    """Return what to try from inside: what the options say, else the manifest, else the operator's defaults."""
    from trialpod_operator.kube_client.probe_pod import Probe

    default = json.loads(facts.get(names.STORAGE_ANNOTATION) or "{}")
    storage = spec.get("storage") or default
    if options.storage is not None:
        from trialpod.storage.registry import storage_class

        if not storage_class(options.storage).is_shared:
            raise InvalidInputError(
                f"--storage {options.storage}: in a cluster it is a storage that all pods see, such as "
                "s3://bucket/prefix"
            )
        storage = {"uri": options.storage}
    template = spec.get("template") or {}
    containers = (template.get("spec") or {}).get("containers") or []
    trial = next((each for each in containers if each.get("name") == names.CONTAINER), {**(containers or [{}])[0]})
    return Probe(
        image=options.image or spec.get("image") or trial.get("image") or facts.get(names.IMAGE_ANNOTATION, ""),
        uri=str(storage.get("uri") or ""),
        endpoint=options.endpoint or str(storage.get("endpoint") or ""),
        secret=options.secret or str(storage.get("credentialsSecret") or ""),
        scoped=not options.secret and _is_scoped(storage, default, facts),
        create_bucket=bool(storage.get("createBucket")),
        reports=facts.get(names.REPORTS_ANNOTATION, ""),
        resources=spec.get("resources") or {},
        gpu=options.gpu,
        gpu_resource=gpu_resource,
        pod_template=template,
        trainable=_loadable(spec.get("trainable") or {}),
        command=bool((spec.get("trainable") or {}).get("command")),
    )


def _loadable(trainable: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a trainable that a pod can load by itself; a pickle is in the storage, which clients have written."""
    return trainable if any(trainable.get(key) for key in ("entrypoint", "source", "configMapRef")) else None


def _is_scoped(storage: Mapping[str, Any], default: Mapping[str, Any], facts: Mapping[str, str]) -> bool:
    """Return whether pods get short-lived keys for a storage, and no Secret."""
    credentials = facts.get(names.CREDENTIALS_ANNOTATION, "").split(",")
    if storage.get("credentialsSecret"):
        return bool(storage.get("scopedCredentials")) or names.ALWAYS_SCOPED in credentials
    below = str(default.get("uri") or "")
    return names.OWN_KEYS in credentials and bool(below) and str(storage.get("uri")).startswith(below)


def _manifest(file: str) -> Json:
    from trialpod_operator.commands.submit import read_manifests

    experiments, _ = read_manifests(file, [])
    if len(experiments) > 1:
        print(f"trialpod: {file} has {len(experiments)} experiments; the first is checked", file=sys.stderr)
    return experiments[0]


command = Command("check", "find out whether experiments can run in a cluster", configure, run, cluster=True)
