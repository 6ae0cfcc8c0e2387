"""The way from the report server to the report service in a cluster: identity, rate, then the call.

Invariants: no call reaches the service without a proven caller; a caller that is known already is served without a
task; whoever may come back is told so (401 while tokens rotate, 429 and 503 with a Retry-After), never refused for
good.
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Awaitable, Callable

from trialpod_operator.cluster.identity import (
    NotAuthenticatedError,
    PodIdentity,
    ReviewUnavailableError,
    TokenReviewer,
)
from trialpod_operator.reports.rate import Rate, RateLimiter
from trialpod_operator.reports.server import Answer, Peer, error
from trialpod_operator.reports.service import ReportService

CALLER_REQUESTS = Rate(per_s=500.0, burst=2000.0)
"""A sender that lingers 5 ms makes 200 calls a second at most; decisions at a horizon come on top of that."""

CALLER_BYTES = Rate(per_s=16.0 * 1024 * 1024, burst=64.0 * 1024 * 1024)


class Gate:
    """The handler of a `ReportServer` in a cluster.

    Args:
        service: serves the calls.
        reviewer: tells who calls.
        limiter: what one pod may ask for; by default `CALLER_REQUESTS` and `CALLER_BYTES`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        service: ReportService,
        reviewer: TokenReviewer,
        limiter: RateLimiter | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._reviewer = reviewer
        self._limiter = limiter or RateLimiter(CALLER_REQUESTS, CALLER_BYTES, clock=clock)

    def __call__(self, path: str, body: bytes, peer: Peer) -> Answer | Awaitable[Answer]:
        """Answer one request."""
        authorization = peer.header(b"authorization")
        caller = self._reviewer.cached(authorization)
        if caller is None:
            return self._identify(path, body, authorization, peer.address)
        return self._serve(path, body, caller)

    async def _identify(self, path: str, body: bytes, authorization: bytes | None, address: str) -> Answer:
        try:
            caller = await self._reviewer.identify(authorization, address)
        except NotAuthenticatedError as problem:
            return error(401, str(problem))
        except ReviewUnavailableError as problem:
            return error(503, str(problem), problem.retry_after_s)
        answer = self._serve(path, body, caller)
        return await answer if inspect.isawaitable(answer) else answer

    def _serve(self, path: str, body: bytes, caller: PodIdentity) -> Answer | Awaitable[Answer]:
        wait = self._limiter.take(caller.pod_uid, len(body))
        if wait > 0.0:
            return error(
                429, f"pod {caller.pod_name} calls too often or sends too much; wait {math.ceil(wait)} s", wait
            )
        return self._service.handle(path, body, caller)
