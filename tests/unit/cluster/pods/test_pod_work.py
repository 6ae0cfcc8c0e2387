"""What is remembered of the pods that were deleted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trialpod_operator.cluster import cache as cache_module
from trialpod_operator.cluster.cache import ObjectCache
from trialpod_operator.cluster.pods import pod_work
from trialpod_operator.cluster.pods.build import ObjectRef
from trialpod_operator.cluster.pods.pod_work import PodWork


def pod(number: int) -> dict[str, Any]:
    labels = {"trialpod.dev/experiment": "digits", "trialpod.dev/trial-id": f"t{number}"}
    metadata = {"name": f"digits-t{number}-1", "namespace": "team", "uid": f"uid-{number}", "labels": labels}
    return {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}}


def test_deletions_of_pods_long_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cache_module, pod_work):
        monkeypatch.setattr(module, "MAX_DELETED", 10)

    async def delete(*_given: Any, **_more: Any) -> bool:
        return True

    async def test() -> None:
        cache = ObjectCache()
        kube: Any = SimpleNamespace(delete=delete)
        owner = ObjectRef(namespace="team", name="digits", uid="uid")
        unused = cast(Any, None)
        work = PodWork(owner, unused, kube, cache, unused, lambda: 0.0, unused)
        cache.update_pod(pod(0), deleted=False)
        await work.delete_pod(pod(0))
        for number in range(1, 100):
            cache.update_pod(pod(number), deleted=False)
            await work.delete_pod(pod(number))
            cache.update_pod(pod(number), deleted=True)
            with monkeypatch.context() as during:
                during.setattr(cache_module._Packed, "unpack", lambda _self: pytest.fail("it takes time"))
                work.forget_deleted()
            assert work.ended_pod(f"uid-{number}")
            assert len(work.deleted) <= 20
            assert len(work.ended_running) <= 20
        assert work.ended_pod("uid-0"), "it is still there"

    asyncio.run(test())
