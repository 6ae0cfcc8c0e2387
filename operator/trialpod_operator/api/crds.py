"""The CustomResourceDefinitions, made from the typed models: structural schemas, rules, columns.

The models are walked (`msgspec.inspect`) as the validator does it, so that schema and validation cannot disagree on a
field, a bound or a default. Only scalars get a default: an object that the API server adds would show up as a
difference in tools that compare what they applied with what is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from trialpod_operator.api import cel
from trialpod_operator.api.inspection import changeable, peel
from trialpod_operator.api.models import TuneExperiment, TuneExperimentSpec
from trialpod_operator.api.status_models import NEVER_OBSERVED, Condition, StatusModel, TuneExperimentStatus
from trialpod_operator.api.trial_models import PENDING, TuneTrial, TuneTrialSpec, TuneTrialStatus

GROUP = "trialpod.dev"
VERSION = "v1alpha1"
Schema = dict[str, Any]

HEADER = "# Made by tools/make_crds from trialpod_operator.api; change the models there, not this file.\n"

_API_VERSION = "The version of this form of the object: trialpod.dev/v1alpha1."
_OPAQUE: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_FORMATTED = {"duration": cel.DURATION, "quantity": cel.QUANTITY}


def definitions() -> dict[str, dict[str, Any]]:
    """Return the definitions by file name."""
    return {
        "trialpod.dev_tuneexperiments.yaml": _definition(
            "TuneExperiment",
            "tuneexperiments",
            "te",
            ["all", "trialpod"],
            _root(TuneExperiment, TuneExperimentSpec, TuneExperimentStatus),
            [
                _column("Trials", "string", ".status.trials.progress", "Trials that ended, of all."),
                _column("Running", "integer", ".status.trials.running", "Trials that have an attempt in progress."),
                _column("Best", "string", ".status.best.value", "The best value of the metric so far."),
                _column("Ready", "string", _condition("Ready", "status"), "Whether it is valid and progressing."),
                _column("Reason", "string", _condition("Ready", "reason"), "How it stands, as one word."),
                _column("Metric", "string", ".spec.metric", "The metric.", priority=1),
                _column("Best-Trial", "string", ".status.best.trial", "The TuneTrial of that value.", priority=1),
                _column("Message", "string", ".status.message", "How it stands, in a sentence.", priority=1),
                _AGE,
            ],
            [],
        ),
        "trialpod.dev_tunetrials.yaml": _definition(
            "TuneTrial",
            "tunetrials",
            "tt",
            ["trialpod"],  # not in "all": an experiment may have thousands
            _root(TuneTrial, TuneTrialSpec, TuneTrialStatus),
            [
                _column("State", "string", ".status.state", "PENDING, RUNNING, PAUSED, TERMINATED or ERROR."),
                _column("Attempt", "integer", ".status.attempt", "Number of the latest attempt."),
                _column("Iteration", "integer", ".status.iteration", "training_iteration of the latest result."),
                _column("Value", "string", ".status.value", "Value of the metric in the latest result."),
                _column("Best", "string", ".status.bestValue", "Its best value so far.", priority=1),
                _column("Decision", "string", ".status.lastDecision.kind", "The latest decision.", priority=1),
                _column("Node", "string", ".status.nodeName", "The node of the latest attempt.", priority=1),
                _column("Message", "string", ".status.message", "How it stands, in a sentence.", priority=1),
                _AGE,
            ],
            [".spec.experiment", ".spec.trialId", ".status.state"],
        ),
    }


def files() -> dict[str, str]:
    """Return the texts of the generated files by name."""
    return {name: HEADER + dump(definition) for name, definition in definitions().items()}


def dump(document: dict[str, Any]) -> str:
    """Return a document as YAML, in its own order."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=116, allow_unicode=True)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="|" if "\n" in data else None)


_Dumper.add_representer(str, _Dumper.represent_str)


def _column(name: str, kind: str, path: str, description: str, *, priority: int = 0) -> dict[str, Any]:
    column: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path, "description": description}
    if priority:
        column["priority"] = priority
    return column


_AGE = _column("Age", "date", ".metadata.creationTimestamp", "Time since it was created.")


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


def _definition(
    kind: str,
    plural: str,
    short: str,
    categories: list[str],
    schema: Schema,
    columns: list[dict[str, Any]],
    selectable: list[str],
) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
    }
    if selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in selectable]
    version["schema"] = {"openAPIV3Schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}", "labels": {"app.kubernetes.io/name": "trialpod"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
                "categories": categories,
            },
            "versions": [version],
        },
    }


def _root(whole: type[TuneExperiment | TuneTrial], spec: type[Any], status: type[StatusModel]) -> Schema:
    spec_schema, status_schema = schema_of(spec), schema_of(status)
    if whole is TuneExperiment:
        for name, field in spec_schema["properties"].items():
            if name in changeable("before results"):
                field["description"] += " Cannot change once a trial has reported a result or saved a checkpoint."
            elif name == "workers":
                field["description"] += " replicas cannot change once the experiment has started."
            elif name not in changeable("any time"):
                field["description"] += " Cannot change once the experiment has started."
    status_schema["default"] = {"observedGeneration": NEVER_OBSERVED}
    if whole is TuneTrial:
        status_schema["default"]["state"] = PENDING  # so that a new trial needs no second request
    schema: Schema = {
        "type": "object",
        "description": _first_sentence(whole),
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": _API_VERSION},
            "kind": {"type": "string", "description": f"The kind of the object: {whole.__name__}."},
            "metadata": {"type": "object"},
            "spec": spec_schema,
            "status": status_schema,
        },
    }
    return _with_rules(schema, cel.RULES.get(whole, ()))


def schema_of(model: type[msgspec.Struct]) -> Schema:
    """Return the structural schema of a model."""
    return _schema(inspect.type_info(model))


def _schema(kind: inspect.Type) -> Schema:
    kind, description, extra = peel(kind)
    schema = _bare(kind, extra)
    if description:
        schema = {"description": description, **{key: schema[key] for key in schema if key != "description"}}
    return schema


def _bare(kind: inspect.Type, extra: dict[str, Any]) -> Schema:
    form = extra.get("format")
    if form == "pod-template":
        return _pod_template()
    if form in _FORMATTED:
        schema: Schema = {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "maxLength": 64,
        }
        return _with_rules(schema, _FORMATTED[form])
    if isinstance(kind, inspect.StructType):
        return _struct(kind)
    if isinstance(kind, inspect.DictType):
        return _dict(kind, extra)
    if isinstance(kind, inspect.ListType):
        return _list(kind)
    if isinstance(kind, inspect.LiteralType):
        return {"type": "string", "enum": sorted(str(value) for value in kind.values)}
    if isinstance(kind, inspect.BoolType):
        return {"type": "boolean"}
    if isinstance(kind, inspect.IntType):
        return _bounds({"type": "integer", "format": "int64"}, kind)
    if isinstance(kind, inspect.FloatType):
        return _bounds({"type": "number"}, kind)
    if isinstance(kind, inspect.StrType):
        return _text(kind, extra)
    raise TypeError(f"there is no schema for {kind}")


def _struct(kind: inspect.StructType) -> Schema:
    model: type[Any] = kind.cls
    fields = {field.encode_name: field for field in kind.fields}
    schema: Schema = {"type": "object", "description": _first_sentence(model)}
    # An older operator may write a status that lacks what a newer schema knows, so nothing of it is required.
    strict = not issubclass(model, StatusModel) or model is Condition
    if required := [name for name, field in fields.items() if field.required and strict]:
        schema["required"] = required
    schema["properties"] = {name: _with_default(_schema(field.type), field, strict) for name, field in fields.items()}
    return _with_rules(schema, cel.RULES.get(model, ()))


def _with_default(schema: Schema, field: inspect.Field, strict: bool) -> Schema:
    _, _, extra = peel(field.type)
    if strict and isinstance(field.default, bool | int | str) and extra.get("defaulted", True):
        # `kubectl explain` shows descriptions, but no defaults.
        shown = f" Default: {json.dumps(field.default)}." if field.default != "" else ""
        return {**schema, "description": schema["description"] + shown, "default": field.default}
    return schema


def _dict(kind: inspect.DictType, extra: dict[str, Any]) -> Schema:
    values, _, _ = peel(kind.value_type)
    if isinstance(values, inspect.AnyType):
        return dict(_OPAQUE)
    schema: Schema = {"type": "object", "additionalProperties": _schema(kind.value_type)}
    if kind.max_length is not None:
        schema["maxProperties"] = kind.max_length
    return _with_rules(schema, [cel.RESOURCE_NAMES] if extra.get("keys") == "resources" else [])


def _list(kind: inspect.ListType) -> Schema:
    schema: Schema = {"type": "array", "items": _schema(kind.item_type)}
    if kind.max_length is not None:
        schema["maxItems"] = kind.max_length
    item, _, _ = peel(kind.item_type)
    if isinstance(item, inspect.StructType) and item.cls is Condition:
        return {**schema, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    return {**schema, "x-kubernetes-list-type": "atomic"}


def _bounds(schema: Schema, kind: inspect.IntType | inspect.FloatType) -> Schema:
    if kind.ge is not None:
        schema["minimum"] = kind.ge
    if kind.le is not None:
        schema["maximum"] = kind.le
    return schema


def _text(kind: inspect.StrType, extra: dict[str, Any]) -> Schema:
    schema: Schema = {"type": "string"}
    if (form := extra.get("format")) is not None:
        schema["format"] = form
    if kind.min_length:
        schema["minLength"] = kind.min_length
    if kind.max_length is not None:
        schema["maxLength"] = kind.max_length
    if kind.pattern is not None and "expected" in extra:
        return _with_rules(schema, [cel.of_form(kind.pattern, extra["expected"])])
    if kind.pattern is not None:
        schema["pattern"] = kind.pattern
    return schema


def _pod_template() -> Schema:
    """Return the outline of a pod template; the API server judges the rest when a pod is made of it."""
    container: Schema = {
        **_OPAQUE,
        "description": 'A container. The one named "trial", else the first, runs the trials.',
        "required": ["name"],
        "properties": {"name": {"type": "string", "description": "Name of the container."}},
    }
    pod: Schema = {
        **_OPAQUE,
        "description": "A PodSpec. What is needed to run a trial is added.",
        "properties": {
            "restartPolicy": {
                "type": "string",
                "enum": ["Never"],
                "description": "Never: a failed trial gets a new pod, by spec.failurePolicy.",
            },
            "containers": {
                "type": "array",
                "description": 'Containers of the pod. The one named "trial", else the first, runs the trials.',
                "items": container,
                "maxItems": 64,
                "x-kubernetes-list-type": "atomic",
            },
        },
    }
    metadata = {**_OPAQUE, "description": "Labels and annotations of the pods."}
    return {"type": "object", "properties": {"metadata": metadata, "spec": pod}}


def _with_rules(schema: Schema, rules: Iterable[cel.Rule]) -> Schema:
    if entries := [rule.as_schema() for rule in rules]:
        schema["x-kubernetes-validations"] = entries
    return schema


def _first_sentence(model: type[Any]) -> str:
    return (model.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")
