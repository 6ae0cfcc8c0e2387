"""What the models say of themselves (`msgspec.inspect`): types, fields, descriptions, and which fields may change."""

from __future__ import annotations

import functools
from typing import Any, Literal

from msgspec import inspect

from trialpod_operator.api.models import Model, TuneExperiment, TuneExperimentSpec

Change = Literal["any time", "before results"]


def peel(kind: inspect.Type) -> tuple[inspect.Type, str, dict[str, Any]]:
    """Return a type without its metadata and "or None"; its description; the `extra` of its metadata."""
    description = ""
    extra: dict[str, Any] = {}
    while True:
        if isinstance(kind, inspect.Metadata):
            description = description or (kind.extra_json_schema or {}).get("description", "")
            extra = {**(kind.extra or {}), **extra}
            kind = kind.type
        elif isinstance(kind, inspect.UnionType):
            rest = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
            if len(rest) != 1:
                return kind, description, extra
            kind = rest[0]
        else:
            return kind, description, extra


@functools.cache
def root() -> inspect.Type:
    """Return the type of a TuneExperiment."""
    return inspect.type_info(TuneExperiment)


def fields_of(struct: inspect.StructType) -> dict[str, inspect.Field]:
    """Return the fields of a model by their names in a manifest."""
    return {each.encode_name: each for each in struct.fields}


def model_of(struct: inspect.StructType) -> type[Model]:
    """Return the class of a model."""
    assert issubclass(struct.cls, Model)
    return struct.cls


def fixed_part(field: str, value: Any) -> Any:
    """Return what of a field that cannot change once an experiment has started is really fixed.

    Of `workers` only how many there are: what each of their pods gets may change, as for the other pods.
    """
    return {"replicas": value.get("replicas")} if field == "workers" and isinstance(value, dict) else value


@functools.cache
def changeable(when: Change) -> frozenset[str]:
    """Return the fields of a TuneExperiment's spec that may change at that time, once it has started."""
    spec = inspect.type_info(TuneExperimentSpec)
    assert isinstance(spec, inspect.StructType)
    return frozenset(name for name, each in fields_of(spec).items() if peel(each.type)[2].get("change") == when)
