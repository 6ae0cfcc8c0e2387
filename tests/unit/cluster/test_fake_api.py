"""The API server of the cluster in memory, where it must be like the real one for other tests to mean something."""

from __future__ import annotations

import asyncio

from fake_api import PAGE, FakeApi, FakeKube

from trialpod_operator.cluster.kube import pods

COLLECTION = pods("team")


def test_all_pages_of_a_list_are_of_one_moment() -> None:
    async def test() -> None:
        api = FakeApi()
        kube = FakeKube(api)
        for number in range(PAGE + 1):
            await kube.create(COLLECTION, {"metadata": {"name": f"pod-{number}"}})
        first = await kube.request("GET", COLLECTION)
        await kube.delete(COLLECTION, "pod-0", grace_s=0)
        second = await kube.request("GET", COLLECTION, query={"continue": first["metadata"]["continue"]})
        assert [pod["metadata"]["name"] for pod in second["items"]] == [f"pod-{PAGE}"]
        assert "continue" not in second["metadata"]
        assert len(await kube.list(COLLECTION)) == PAGE

    asyncio.run(test())
