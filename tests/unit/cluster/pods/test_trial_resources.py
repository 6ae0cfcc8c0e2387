"""The TuneTrial of a trial."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from cluster_objects import EXPERIMENT, experiment

from trialpod.protocol.values import params_encoder
from trialpod_operator.api.trial_models import TuneTrial
from trialpod_operator.cluster.pods.resources import build_trial
from trialpod_operator.cluster.shards.assignment import shard_of
from trialpod_operator.engine.trial import Trial


def _trial(params: object, tag: str = "2_lr=0.1") -> Trial:
    data = params_encoder.encode(params)
    return Trial(trial_id="d75de_00001", index=1, tag=tag, params=data, created_at=1.0)


def test_a_trial_belongs_to_its_experiment_and_fits_the_model() -> None:
    body = build_trial(experiment(labels={"team": "a", "helm.sh/chart": "c"}), EXPERIMENT, _trial({"lr": 0.1}))
    assert body["metadata"]["name"] == "digits-d75de-00001"
    assert body["metadata"]["labels"] == {
        "team": "a",
        "app.kubernetes.io/managed-by": "trialpod",
        "trialpod.dev/experiment": "digits",
        "trialpod.dev/trial-id": "d75de_00001",
        "trialpod.dev/shard": str(shard_of(EXPERIMENT.uid)),
    }
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["uid"], owner["controller"]) == ("e-uid", True)
    assert body["spec"] == {
        "experiment": "digits",
        "trialId": "d75de_00001",
        "index": 1,
        "tag": "2_lr=0.1",
        "params": {"lr": 0.1},
    }
    assert msgspec.convert(body, TuneTrial).spec.index == 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [(math.nan, "NaN"), (-math.inf, "-Infinity"), (2**63, "9223372036854775808"), (b"ab", "<2 bytes>")],
)
def test_parameters_that_json_does_not_know_become_text(value: object, shown: str) -> None:
    body = build_trial(experiment(), EXPERIMENT, _trial({"a": [value]}))
    assert body["spec"]["params"] == {"a": [shown]}
    json.dumps(body, allow_nan=False)


def test_what_was_pickled_is_named_and_not_opened() -> None:
    body = build_trial(experiment(), EXPERIMENT, _trial({"model": Trial}))
    assert body["spec"]["params"] == {"model": "Trial"}


def test_tag_and_parameters_have_a_largest_size() -> None:
    body = build_trial(experiment(), EXPERIMENT, _trial({"a": "x" * 200_000}, tag="t" * 5000))
    assert len(body["spec"]["tag"]) == 1024
    assert len(json.dumps(body)) < 70_000
