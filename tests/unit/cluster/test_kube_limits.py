"""What the operator asks of the API server at once: bursts of one kind keep nothing of another kind waiting."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.kube import DEDICATED_LIMITS, PARALLEL, Kube


class Client:
    """A connection to a server that lets every request wait until it may answer."""

    def __init__(self) -> None:
        self.user_agent = "test"
        self.configuration = SimpleNamespace(host="https://server")
        self.in_progress: Counter[str] = Counter()
        self.answers = asyncio.Event()

    async def update_params_for_auth(self, *_: Any) -> None:
        pass

    async def call_api(self, _method: str, url: str, **_: Any) -> Any:
        kind = url.rpartition("/")[2]
        self.in_progress[kind] += 1
        await self.answers.wait()

        async def read() -> bytes:
            return b"{}"

        return SimpleNamespace(status=200, headers={}, read=read)


async def run_pending() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_token_burst_delays_no_pod_and_never_the_lease() -> None:
    async def test() -> None:
        client = Client()
        kube = Kube(client)
        reviews = [asyncio.ensure_future(kube.review_token(f"t{n}", "trialpod.dev")) for n in range(1000)]
        await run_pending()
        assert client.in_progress["tokenreviews"] == DEDICATED_LIMITS["/apis/authentication.k8s.io/"]
        lists = [asyncio.ensure_future(kube.request("GET", paths.pods("team"))) for _ in range(100)]
        await run_pending()
        assert client.in_progress["pods"] == PARALLEL
        lease = asyncio.ensure_future(kube.request("GET", paths.leases("team")))
        await run_pending()
        assert client.in_progress["leases"] == 1
        client.answers.set()
        await asyncio.gather(*reviews, *lists, lease)
        assert client.in_progress == {"tokenreviews": 1000, "pods": 100, "leases": 1}

    asyncio.run(test())
