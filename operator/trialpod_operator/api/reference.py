"""The generated pages: docs/manifest.md from the schema that a cluster checks, docs/reasons.md from `Reason`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import inspect

from trialpod_operator.api.cel import FIXED_STORAGE, spec_fields
from trialpod_operator.api.crds import schema_of
from trialpod_operator.api.inspection import changeable, fields_of, peel
from trialpod_operator.api.models import MAX_INT, TuneExperimentSpec
from trialpod_operator.api.reasons import Place, reasons_of

Schema = Mapping[str, Any]


def _cluster_only(kind: inspect.Type, path: str) -> Iterator[str]:
    kind, _, extra = peel(kind)
    if extra.get("cluster"):
        yield path
    elif isinstance(kind, inspect.StructType):
        for name, each in fields_of(kind).items():
            yield from _cluster_only(each.type, f"{path}.{name}".removeprefix("."))


CLUSTER_ONLY = tuple(sorted(_cluster_only(inspect.type_info(TuneExperimentSpec), "")))
"""Fields that concern pods or a cluster's resources; `trialpod run` ignores or refuses them."""

_FIXED = frozenset(
    {
        *(set(spec_fields()) - changeable("any time") - {"workers"}),
        "workers.replicas",
        *(f"storage.{name}" for name in FIXED_STORAGE),
    }
)

_HEAD = """\
<!-- Written by tools/make_crds from the models in operator/trialpod_operator/api; changes here are lost. -->
# The manifest

A `TuneExperiment` describes an experiment for `trialpod run` on one machine and for a cluster alike. `trialpod
validate FILE` checks it without running anything, with lines and the nearest valid name; in a cluster `kubectl
explain te.spec` shows the same as this page. `--set spec.numSamples=10` changes a field for one run.

```yaml title="experiment.yaml"
apiVersion: trialpod.dev/v1alpha1
kind: TuneExperiment
metadata:
  name: climb                                # lower-case letters, digits and "-", 40 at most; or give --name
spec:
  trainable: {entrypoint: "train:train"}     # train.py beside this file; in a cluster in the image
  searchSpace:
    lr: {loguniform: [1e-4, 1e-1]}
    layers: {grid_search: [1, 2, 3]}         # every value, for each sample of the others
    optimizer: {name: {choice: [sgd, adam]}, momentum: 0.9}
  metric: accuracy
  mode: max
  numSamples: 10                             # 30 trials: 10 samples of the grid
  maxConcurrentTrials: 4
  timeBudget: 2h
  scheduler: {name: asha, parameters: {max_t: 81, grace_period: 1}}
  stop: {training_iteration: 81}
  checkpoint: {numToKeep: 2}
  failurePolicy: {maxFailures: 1}
```

* Distributions of `searchSpace`: [random-search.md](random-search.md#the-search-space-of-a-manifest).
  Search algorithms: [search.md](search.md). Schedulers: [schedulers.md](schedulers.md). Stoppers and budgets:
  [stoppers.md](stoppers.md).
* A duration is a number of seconds or text such as `90s`, `2h` or `1h30m`; an amount of a resource is written as for
  Kubernetes: `500m`, `2Gi`.
* Numbers are read as kubectl reads them: `1e-4` is a number.
* Fields marked *cluster* concern pods and a cluster's resources, and change nothing on one machine; but `trialpod
  run` refuses a manifest with `trialResource`.
* Fields marked *fixed* cannot change in a cluster once the experiment has started: the API server refuses it.
  `trainable` cannot once a trial has reported a result with the metric or saved a checkpoint. All other fields can
  change at any time. On one machine [another rule](running-again.md) holds.

"""


_REASONS_HEAD = """\
<!-- Written by tools/make_crds from operator/trialpod_operator/api/reasons.py; changes here are lost. -->
# Reasons

Conditions, `status.waiting`, ended attempts and events each have a reason: one word, for programs. The message beside
it, for people, names the object, the field and the remedy; `trialpod why NAME` shows it. Without any condition, no
operator has seen the experiment yet: `trialpod check` says whether one serves the namespace.

"""
_SECTIONS: tuple[tuple[Place, str, str], ...] = (
    (
        "condition",
        "Conditions",
        "In `status.conditions`. While no trial can run, Ready has a reason of the next table.",
    ),
    ("waiting", "Waiting", "In `status.waiting`: why a pod does not run or cannot be created."),
    (
        "ending",
        "Ends of attempts",
        "In the metric `trialpod_attempts_ended_total`. Other reasons are passed on from the pod's status.",
    ),
    ("event", "Events", "Of the TuneExperiment, on transitions only: `kubectl events --for te/NAME`."),
)


def reasons_reference() -> str:
    """Return the page of reasons."""
    lines = []
    for place, title, about in _SECTIONS:
        lines += [f"## {title}", "", about, "", "| reason | meaning | what to do |", "|---|---|---|"]
        lines += [f"| `{each}` | {_cell(each.meaning)} | {_cell(each.remedy)} |" for each in reasons_of(place)]
        lines.append("")
    return _REASONS_HEAD + "\n".join(lines).rstrip() + "\n"


def manifest_reference() -> str:
    """Return the page."""
    whole = schema_of(TuneExperimentSpec)
    return _HEAD + "".join(_section(path, schema) for path, schema in _objects(whole, "spec"))


def _objects(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield each object with fields of its own, those above first."""
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        if path == "spec.template" or name == "template":
            continue  # a pod template: Kubernetes' own reference has its fields
        inner, suffix = (field["items"], "[]") if "items" in field else (field, "")
        if inner.get("properties"):
            yield from _objects(inner, f"{path}.{name}{suffix}")


def _section(path: str, schema: Schema) -> str:
    required = schema.get("required", ())
    lines = [f"## {path}", ""]
    rules = dict.fromkeys(str(rule["message"]) for rule in schema.get("x-kubernetes-validations", ()))
    lines += [*(f"* {rule}" for rule in rules), ""] if rules else []
    lines += ["| field | value | |", "|---|---|---|"]
    for name, field in schema.get("properties", {}).items():
        about = [str(field.get("description", "")).strip()]
        if name in required:
            about.append("**Required.**")
        place = f"{path}.{name}".removeprefix("spec.")
        if place in _FIXED:
            about.append("*fixed*")
        if any(place == only or place.startswith(f"{only}.") for only in CLUSTER_ONLY):
            about.append("*cluster*")
        lines.append(f"| `{name}` | {_value(field)} | {_cell(' '.join(about))} |")
    return "\n".join(lines) + "\n\n"


def _value(field: Schema) -> str:
    """Return what a field takes, in a few words."""
    if "enum" in field:
        return _cell(" \\| ".join(f"`{each}`" for each in field["enum"]), escaped=True)
    if "items" in field:
        return "list"
    if field.get("x-kubernetes-int-or-string"):
        return "duration"
    if "additionalProperties" in field:
        if field.get("x-kubernetes-validations"):
            return "mapping of amounts"
        return "mapping of texts" if field["additionalProperties"].get("type") == "string" else "mapping of numbers"
    kind = str(field.get("type", ""))
    words = {"integer": "integer", "boolean": "`true` \\| `false`", "object": "mapping", "string": "text"}.get(
        kind, kind
    )
    if field.get("minimum") is not None and kind in ("integer", "number"):
        top = field.get("maximum")
        bounded = top is not None and top < MAX_INT
        words += f", {field['minimum']:g} to {top:g}" if bounded else f", {field['minimum']:g} or more"
    return words


def _cell(text: str, *, escaped: bool = False) -> str:
    text = " ".join(text.split())
    return text if escaped else text.replace("|", "\\|")
