"""Objects from the API server may lack every field that is optional, or have one of another version.

The operator continues, or says of the experiment what stands in its way; it never fails with an exception of its own.
"""

from __future__ import annotations

import copy
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from fuzz_values import MORE, examples, places, stripped
from hypothesis import given, settings
from hypothesis import strategies as st

CLUSTER = Path(__file__).parents[1] / "unit" / "cluster"
sys.path += [str(CLUSTER), str(CLUSTER.parent / "storage")]

import virtual_time  # noqa: E402 - the operator's world is beside its own tests
from cluster_objects import live_pod, target, terminated  # noqa: E402
from cluster_world import KEY, World, manifest  # noqa: E402

from trialpod_operator.cluster.pods.pending import pending_reason  # noqa: E402
from trialpod_operator.cluster.pods.resources import pod_resources  # noqa: E402
from trialpod_operator.cluster.pods.terminated import presumed_gone, read_termination  # noqa: E402
from trialpod_operator.cluster.stored_manifest import check_stored  # noqa: E402

_START = "2026-01-01T00:00:00Z"
PODS = [
    live_pod(),
    live_pod(state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
    live_pod(state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}),
    live_pod(phase="Running", state={"running": {"startedAt": _START}}, metadata={"deletionTimestamp": _START}),
    live_pod(phase="Failed", state=terminated(137, "OOMKilled")),
    live_pod(phase="Failed", state=terminated(1, "Error", "Traceback\nValueError: x")),
    live_pod(phase="Failed", status={"reason": "Evicted", "message": "The node was low on resource"}),
    live_pod(phase="Failed", status={"conditions": [target("DisruptionTarget", "EvictionByEvictionAPI", "drained")]}),
    live_pod(
        status={
            "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes: 3 cpu"},
                {"type": "Ready", "status": "Unknown", "lastTransitionTime": _START},
            ],
            "initContainerStatuses": [{"name": "init", "state": {"waiting": {"reason": "PodInitializing"}}}],
        },
        spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}], "initContainers": [{"name": "init"}]},
    ),
]
"""Pods with all that Kubernetes may say of them."""


@settings(max_examples=examples(250))
@given(data=st.data())
def test_incomplete_pod_gets_an_ending_and_reason_or_none(data: st.DataObject) -> None:
    pod = data.draw(stripped(data.draw(st.sampled_from(PODS)), frozenset({"metadata"})))
    for options in ({}, {"vanished": True}, {"deleted_by_us": True}, {"said_end": True}):
        ending = read_termination(pod, **options)  # type: ignore[arg-type]
        assert ending is None or (ending.reason and ending.attempt_end().cause)
    waiting = pending_reason(pod, 1_800_000_000.0)
    assert waiting is None or waiting.reason
    presumed_gone(pod, 1_800_000_000.0, node_ready=None)
    pod_resources(pod)


@settings(max_examples=examples(60))
@given(data=st.data())
def test_incomplete_experiment_is_read_or_has_problems(data: st.DataObject) -> None:
    whole = manifest(scheduler={"name": "asha", "parameters": {"max_t": 3}}, resources={"cpu": 1})
    checked = check_stored(data.draw(stripped(whole)))
    assert checked.experiment is not None or checked.problems


NEEDED = frozenset(
    {"metadata", "name", "namespace", "uid", "resourceVersion", "kind", "apiVersion", "generation", "labels"}
    | {"ownerReferences", "trialpod.dev/experiment", "trialpod.dev/trial-id", "trialpod.dev/attempt"}
)
"""What the API server sets, or will not let anybody remove."""


def without(item: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Return a copy without up to six fields, or with a status of another version."""
    item = copy.deepcopy(item)
    if chance.random() < 0.2:
        item["status"] = chance.choice(
            [{}, None, {"trials": [], "best": "?"}, {"state": 7, "conditions": [{"kind": "new"}], "attempts": None}]
        )
    for _ in range(chance.randint(1, 6)):
        there = [(container, key) for container, key in places(item) if key not in NEEDED and key != 0]
        if there:
            container, key = chance.choice(there)
            if isinstance(container, dict) and chance.random() < 0.4:
                container[key] = None
            elif isinstance(container, dict):
                container.pop(key, None)
    return item


@pytest.mark.parametrize("seed", range(2 * MORE))
def test_operator_survives_objects_without_their_fields(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)

    async def test() -> None:
        world = World(monkeypatch, tmp_path, seed)
        operator = world.start_operator()
        await world.apply(numSamples=2)
        for _ in range(25):
            await virtual_time.asyncio.sleep(chance.uniform(0.05, 0.6))
            for plural, kind in (("pods", "pod"), ("tunetrials", "trial"), ("tuneexperiments", "experiment")):
                for item in world.api.all(plural):
                    if chance.random() < 0.5:
                        take = getattr(operator.controller, f"on_{kind}")
                        take(without(item, chance), deleted=False)
                        await virtual_time.asyncio.sleep(0.05)
                        take(item, deleted=False)
            assert operator.errors == []
        for plural, kind in (("pods", "pod"), ("tunetrials", "trial"), ("tuneexperiments", "experiment")):
            for item in world.api.all(plural):
                getattr(operator.controller, f"on_{kind}")(item, deleted=False)
        await virtual_time.until(world.is_over, 3600.0, "the experiment ends")
        assert operator.errors == []
        assert KEY == "team/digits"
        world.check_results()
        await world.close()

    virtual_time.run(test)


def test_a_status_of_another_version_is_overwritten(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def test() -> None:
        world = World(monkeypatch, tmp_path)
        await world.apply(numSamples=1)
        world.api.edit(
            world.experiment,
            lambda item: item.update(
                status={"trials": ["a"], "conditions": [{"kind": 1}], "best": [1], "phase": "New"}
            ),
        )
        operator = world.start_operator()
        status = await world.until_over()
        assert operator.errors == []
        assert status["trials"]["terminated"] == 1
        await world.close()

    virtual_time.run(test)
