"""Lays what trialpod needs over a pod template, without losing anything that the template says.

Invariants: inputs are never changed and share nothing with the output; the order of lists and keys depends on the
inputs alone; every field of the template's pod spec is in the output, and only the fields that are trialpod's own
have another value. A template that claims a name or a path that trialpod needs is refused, never bent.

Of a template's metadata its labels, annotations and finalizers count, as for the built-in kinds of Kubernetes.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from trialpod.errors import InvalidInputError
from trialpod_operator.api.template_rules import OWN_PREFIX
from trialpod_operator.cluster import names

Json = dict[str, Any]

_DEPLOYERS = (
    "app.kubernetes.io/instance",
    "argocd.argoproj.io/",
    "kustomize.toolkit.fluxcd.io/",
    "helm.toolkit.fluxcd.io/",
    "helm.sh/",
)
"""Labels by which these tools know what they deployed; a trial's objects are none of it."""


class TemplateError(InvalidInputError):
    """A pod template asks for something that a trial's pod cannot have. `path` names the field of the manifest."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.reason = message


class TrialTemplateError(TemplateError):
    """What is filled in for one trial makes no pod of the template; those of other trials may be."""


def building_error(error: Exception) -> TemplateError:
    """Return what to say of a template that is valid, as far as it was checked, and cannot be built."""
    return TemplateError("spec.template", f"no pod can be made of it: {type(error).__name__}: {error}")


def copied_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of an experiment that its trials and pods get too.

    These are all but those of deployment tools and trialpod's own.
    """
    return {key: value for key, value in labels.items() if not key.startswith((*_DEPLOYERS, OWN_PREFIX))}


def own_annotations(metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the annotations of a template.

    Raises:
        TemplateError: one of them is trialpod's, which would believe it.
    """
    found: Mapping[str, str] = metadata.get("annotations") or {}
    _refuse_own(found, "annotations")
    return found


def _refuse_own(keys: Iterable[str], part: str) -> None:
    for key in keys:
        if key.startswith(OWN_PREFIX):
            raise TemplateError(
                f"spec.template.metadata.{part}[{key}]",
                "is trialpod's own, which it sets where it is needed; remove it",
            )


def merge_labels(
    experiment: Mapping[str, str], template: Mapping[str, str], ours: Mapping[str, str]
) -> dict[str, str]:
    """Return a pod's labels: the experiment's, over them the template's, over them trialpod's.

    Raises:
        TemplateError: the template gives one of trialpod's labels another value, or has one that is not on this pod.
    """
    for key, value in ours.items():
        if template.get(key, value) != value:
            raise TemplateError(
                f"spec.template.metadata.labels[{key}]",
                f'"{template[key]}" is not possible: trialpod needs this label for itself; use another key',
            )
    _refuse_own(template.keys() - ours.keys(), "labels")
    return {**copied_labels(experiment), **template, **ours}


def trial_container(pod_spec: Mapping[str, Any]) -> int | None:
    """Return the position of the container that runs the trial: the one with that name, else the first."""
    containers = pod_spec.get("containers") or []
    for index, container in enumerate(containers):
        if container.get("name") == names.CONTAINER:
            return index
    return 0 if containers else None


def list_in(target: Json, key: str) -> list[Json]:
    """Return the list at `key`, made if it is missing or null."""
    if target.get(key) is None:
        target[key] = []
    found: list[Json] = target[key]
    return found


def fill(target: Json, defaults: Mapping[str, Any]) -> None:
    """Add to `target` what only `defaults` has, level by level."""
    for key, value in defaults.items():
        if target.get(key) is None:
            target[key] = copy.deepcopy(value)
        elif isinstance(value, Mapping) and isinstance(target[key], dict):
            fill(target[key], value)


def add_volumes(pod_spec: Json, volumes: Iterable[Json]) -> None:
    """Append trialpod's volumes to the template's.

    Raises:
        TemplateError: the template has a volume of that name.
    """
    present = list_in(pod_spec, "volumes")
    taken = {volume.get("name"): index for index, volume in enumerate(present)}
    for volume in volumes:
        if volume["name"] in taken:
            raise TemplateError(
                f"spec.template.spec.volumes[{taken[volume['name']]}].name",
                f'"{volume["name"]}" is the name of a volume that trialpod adds; rename yours',
            )
        present.append(volume)


def add_mounts(container: Json, mounts: Iterable[Json], path: str) -> None:
    """Append trialpod's mounts to the container's own.

    Args:
        container: the trial's container.
        mounts: what to add.
        path: of the container in the manifest, for messages.

    Raises:
        TemplateError: the container mounts something of its own in the same place, or inside a read-only one.
    """
    present = list_in(container, "volumeMounts")
    for mount in mounts:
        ours = _place(mount["mountPath"])
        for index, other in enumerate(present):
            theirs = _place(str(other.get("mountPath", "")))
            inside = bool(mount.get("readOnly")) and theirs.startswith(f"{ours}/")
            if theirs == ours or inside:
                raise TemplateError(
                    f"{path}.volumeMounts[{index}].mountPath",
                    f"{other.get('mountPath')} is where trialpod mounts {mount['name']}; choose another path",
                )
    present.extend(mounts)


def _place(path: str) -> str:
    """Return a mount's path in one spelling; /run and /var/run are the same folder in nearly all images."""
    path = posixpath.normpath(path)
    return f"/var{path}" if path == "/run" or path.startswith("/run/") else path


def merge_env(container: Json, fixed: Iterable[Json], defaults: Iterable[Json], path: str) -> None:
    """Put trialpod's variables before the container's own, so that those can refer to them.

    Args:
        container: the trial's container.
        fixed: variables that a template may not set.
        defaults: variables that the container's own go before.
        path: of the container in the manifest, for messages.

    Raises:
        TemplateError: the container sets one of the fixed variables.
    """
    own: list[Json] = container.get("env") or []
    fixed = list(fixed)
    reserved = {variable["name"] for variable in fixed}
    for index, variable in enumerate(own):
        if variable.get("name") in reserved:
            raise TemplateError(
                f"{path}.env[{index}].name",
                f"{variable['name']} is set by trialpod for every pod again; remove it",
            )
    set_here = {variable.get("name") for variable in own}
    container["env"] = [*fixed, *(variable for variable in defaults if variable["name"] not in set_here), *own]


def restrict(pod_spec: Json) -> None:
    """Fill in what the restricted Pod Security Standard asks for, where the template says nothing about it.

    Root that the template asks for in so many words stays root; whether the namespace takes it is for the namespace
    to say. Pods for Windows have no such fields.
    """
    if (pod_spec.get("os") or {}).get("name") == "windows":
        return
    fill(pod_spec, {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}})
    pod: Json = pod_spec["securityContext"]
    if pod.get("runAsUser") != 0:
        pod.setdefault("runAsNonRoot", True)
    for container in [*(pod_spec.get("initContainers") or []), *(pod_spec.get("containers") or [])]:
        fill(container, {"securityContext": {"capabilities": {"drop": ["ALL"]}}})
        own: Json = container["securityContext"]
        # The API server refuses these two together with allowPrivilegeEscalation: false.
        if not own.get("privileged") and not _has_admin(own["capabilities"].get("add") or ()):
            own.setdefault("allowPrivilegeEscalation", False)
        if own.get("runAsUser") == 0 and pod.get("runAsNonRoot"):
            own.setdefault("runAsNonRoot", False)


def _has_admin(added: Collection[str]) -> bool:
    return not {"SYS_ADMIN", "CAP_SYS_ADMIN"}.isdisjoint(added)
