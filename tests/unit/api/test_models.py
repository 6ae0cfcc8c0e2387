from __future__ import annotations

import msgspec
import pytest
from msgspec import inspect

from trialpod_operator.api.inspection import fields_of, peel
from trialpod_operator.api.models import Model, TuneExperiment


def _fields(kind: inspect.Type, path: str = "") -> list[tuple[str, inspect.Field]]:
    kind, _, _ = peel(kind)
    if isinstance(kind, inspect.ListType):
        return _fields(kind.item_type, f"{path}[]")
    if not isinstance(kind, inspect.StructType):
        return []
    found = []
    for name, field in fields_of(kind).items():
        found += [(f"{path}.{name}", field), *_fields(field.type, f"{path}.{name}")]
    return found


FIELDS = _fields(inspect.type_info(TuneExperiment))


def _description(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.Metadata):
        return (kind.extra_json_schema or {}).get("description", "")
    if isinstance(kind, inspect.UnionType):
        return next(filter(None, map(_description, kind.types)), "")
    return ""


@pytest.mark.parametrize(("path", "field"), FIELDS, ids=[path for path, _ in FIELDS])
def test_every_field_has_a_description(path: str, field: inspect.Field) -> None:
    if path in (".apiVersion", ".kind", ".metadata", ".spec"):
        return
    assert _description(field.type).endswith(".")


def test_models_are_frozen_and_refuse_unknown_fields() -> None:
    def models(kind: type[Model]) -> list[type[Model]]:
        return [kind, *(each for child in kind.__subclasses__() for each in models(child))]

    for model in models(Model):
        config = model.__struct_config__
        assert config.frozen, model
        assert config.forbid_unknown_fields, model


def test_a_spec_knows_its_amounts_and_times() -> None:
    experiment = msgspec.convert(
        {
            "apiVersion": "trialpod.dev/v1alpha1",
            "kind": "TuneExperiment",
            "metadata": {"name": "a"},
            "spec": {
                "trainable": {"entrypoint": "a:b"},
                "timeBudget": "1h30m",
                "resources": {"cpu": "500m", "memory": "1Ki", "nvidia.com/gpu": 1},
            },
        },
        TuneExperiment,
    )
    assert experiment.spec.time_budget_seconds == 5400
    assert experiment.spec.resource_amounts == {"cpu": 0.5, "memory": 1024, "nvidia.com/gpu": 1}
    assert experiment.spec.checkpoint.num_to_keep is None
