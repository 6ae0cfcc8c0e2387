"""Brings the runtime into pods whose image has nothing of it: a program or a Python Trainable in any image.

An init container of an image of trialpod copies its portable runtime (tools/make_portable_runtime: Python, the
runtime and every library that they need) into an empty volume. The trial's container starts it from there and then is
as any other: the same processes, reports, checkpoints and ends. For code in Python it becomes the image's own Python,
which finds the runtime in the volume if the image has none. It takes no request to the API server.

Invariants: the image's variables do not reach this Python (-I), nor its packages (-S); what the init container may
use is within what the trial's container may, so that the pod asks its node, its queue and its quota for nothing more.
"""

from __future__ import annotations

import copy

from trialpod_operator.api.models import TuneExperimentSpec
from trialpod_operator.cluster import names
from trialpod_operator.cluster.pods import template
from trialpod_operator.cluster.pods.template import Json, TemplateError

VOLUME = "trialpod-runtime"
CONTAINER = "trialpod-runtime"
SOURCE = "/opt/portable"
"""Where an image of trialpod has it."""

_PYTHON = (f"{names.RUNTIME_DIR}/bin/python", "-ISu", "-m")
COMMAND = (*_PYTHON, "trialpod.runner.pod")
FOR_PYTHON = (*_PYTHON, "trialpod.runner.image_python")
"""Followed by a module: runs it with the image's Python."""

_COPIED_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def wanted(spec: TuneExperimentSpec, container: Json, default_image: str, runtime_image: str) -> bool:
    """Return whether a pod gets the runtime.

    Args:
        spec: of the experiment.
        container: that of the trial, with its image.
        default_image: the operator's for trials, which has the runtime; "" = none.
        runtime_image: what it would come from; "" = none.

    Raises:
        TemplateError: it is asked for, and there is nothing that it could come from.
    """
    trainable = spec.trainable
    if trainable.runtime == "image":
        return False
    if trainable.runtime == "injected":
        if not runtime_image:
            raise TemplateError(
                "spec.trainable.runtime",
                "injected needs TRIALPOD_RUNTIME_IMAGE of the operator, which the chart sets; set it to an image of "
                "trialpod, or use an image with Python and trialpod",
            )
        return True
    own = bool(container.get("command") or container.get("args"))
    return bool(runtime_image) and not own and container["image"] not in (default_image, runtime_image)


def command(spec: TuneExperimentSpec) -> tuple[str, ...]:
    """Return what the trial's container runs from the volume."""
    return COMMAND if spec.trainable.command is not None else (*FOR_PYTHON, COMMAND[-1])


def inject(pod_spec: Json, container: Json, image: str, path: str, *, packages: bool = True) -> None:
    """Add the init container, its volume and the mounts.

    Args:
        packages: take along what runs in the image's own Python.
        pod_spec: the pod's, with containers.
        container: that of the trial, with its resources.
        image: of trialpod.
        path: of the trial's container in the manifest, for messages.

    Raises:
        TemplateError: the template has something of its own in that place or of that name.
    """
    mount = {"name": VOLUME, "mountPath": names.RUNTIME_DIR}
    parts = ("bin", "lib", *(("code.zip", "packages") if packages else ()))
    copier: Json = {
        "name": CONTAINER,
        "image": image,
        "command": ["cp", "-R", *(f"{SOURCE}/{part}" for part in parts), f"{names.RUNTIME_DIR}/"],
        "securityContext": {"readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [mount],
    }
    for part in ("runAsUser", "runAsGroup", "runAsNonRoot"):
        # The same user as the trial's, where the container names one: the files are its own.
        if (given := (container.get("securityContext") or {}).get(part)) is not None:
            copier["securityContext"][part] = given
    resources = container.get("resources") or {}
    limited = {
        part: {name: resources[part][name] for name in _COPIED_RESOURCES if name in resources[part]}
        for part in ("requests", "limits")
        if resources.get(part)
    }
    if limited := {part: amounts for part, amounts in limited.items() if amounts}:
        copier["resources"] = copy.deepcopy(limited)
    first = template.list_in(pod_spec, "initContainers")
    for index, other in enumerate(first):
        if other.get("name") == CONTAINER:
            raise TemplateError(
                f"spec.template.spec.initContainers[{index}].name",
                f'"{CONTAINER}" is the name of a container that trialpod adds; rename yours',
            )
    first.append(copier)
    template.add_mounts(container, [{**mount, "readOnly": True}], path)
    template.add_volumes(pod_spec, [{"name": VOLUME, "emptyDir": {}}])
