"""Whether this installation of trialpod, the operator and the resource definitions of a cluster go together.

Releases of the same series (0.1.x) do; so do those of two series that follow each other, because each speaks the
older one's protocol. A larger difference is reported with the command that fixes it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trialpod import __version__
from trialpod_operator.cluster import names

Json = dict[str, Any]

CHART = "charts/trialpod"


def series(version: str) -> tuple[int, int] | None:
    """Return the series of a release: (0, 1) of 0.1.7; None for what is not a version."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class Skew:
    """Versions that do not go together: what is wrong, and the command that mends it."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem}: {self.remedy}"


def skew(facts: Mapping[str, str], own: str = __version__) -> Skew | None:
    """Return how client and operator do not go together; None when they do, or nothing is known.

    Args:
        facts: what the operator says of itself.
        own: version of the client.
    """
    theirs = facts.get(names.VERSION_ANNOTATION, "")
    here, there = series(own), series(theirs)
    if here is None or there is None or here == there:
        return None
    if here[0] == there[0] and abs(here[1] - there[1]) <= 1:
        return None
    problem = (
        f"this is trialpod {own}, the cluster's operator is trialpod {theirs}; more than one release apart, they "
        "may not understand each other"
    )
    install = f'pip install "trialpod=={theirs}"'
    if here < there:
        return Skew(problem, install)
    upgrade = (
        f"helm upgrade trialpod {CHART} --namespace trialpod-system --reset-then-reuse-values --set image.tag={own}"
    )
    return Skew(problem, f"{upgrade}; or here: {install}")


def missing_fields(schemas: Mapping[str, Any]) -> list[str]:
    """Return the fields of a spec that this version knows and the cluster's definition does not.

    Args:
        schemas: `components.schemas` of the API server's OpenAPI document of the group.
    """
    from trialpod_operator.api.models import TuneExperimentSpec

    found: Json = {}
    for schema in schemas.values():
        kinds = schema.get("x-kubernetes-group-version-kind") or []
        if any(kind.get("kind") == names.EXPERIMENT_KIND for kind in kinds):
            found = ((schema.get("properties") or {}).get("spec") or {}).get("properties") or {}
    return [f"spec.{name}" for name in TuneExperimentSpec.__struct_encode_fields__ if name not in found]
