from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from trialpod_operator.cluster.identity.reviewer import (
    NotAuthenticatedError,
    PodIdentity,
    ReviewUnavailableError,
    TokenReviewer,
)
from trialpod_operator.reports.rate import Rate

NOW = 1_700_000_000.0
POD = PodIdentity(namespace="team", pod_name="digits-d75de-00001-1", pod_uid="uid-1")


def part(value: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def token(*, header: Any = None, signature: bytes = b"c2lnbmVk", **claims: Any) -> bytes:
    values = {"aud": ["trialpod.dev"], "exp": NOW + 3600, **claims}
    return b"Bearer " + b".".join((part(header or {"alg": "RS256"}), part(values), signature))


def status(**changes: Any) -> dict[str, Any]:
    found = {
        "authenticated": True,
        "audiences": ["trialpod.dev"],
        "user": {
            "username": "system:serviceaccount:team:default",
            "extra": {
                "authentication.kubernetes.io/pod-name": [POD.pod_name],
                "authentication.kubernetes.io/pod-uid": [POD.pod_uid],
            },
        },
    }
    return {**found, **changes}


class ApiServer:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now = NOW
        self.answer: dict[str, Any] | Exception = status()
        self.gate: asyncio.Event | None = None

    async def review(self, text: str) -> Mapping[str, Any]:
        self.asked.append(text)
        if self.gate is not None:
            await self.gate.wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def reviewer(self, **options: Any) -> TokenReviewer:
        return TokenReviewer(self.review, clock=lambda: self.now, **options)


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


def test_a_pod_is_identified_once_and_remembered() -> None:
    api = ApiServer()
    reviewer = api.reviewer()
    assert reviewer.cached(token()) is None
    assert run(reviewer.identify(token())) == POD
    assert reviewer.cached(token()) == POD
    assert run(reviewer.identify(token())) == POD
    assert api.asked == [token().removeprefix(b"Bearer ").decode()]


def test_a_yes_is_believed_for_five_minutes() -> None:
    api = ApiServer()
    reviewer = api.reviewer()
    run(reviewer.identify(token()))
    api.now += 299
    assert reviewer.cached(token()) == POD
    api.now += 2
    assert reviewer.cached(token()) is None
    api.answer = status(authenticated=False, error="the pod is gone")
    with pytest.raises(NotAuthenticatedError, match="the pod is gone"):
        run(reviewer.identify(token()))


def test_a_yes_is_never_believed_longer_than_the_token_is_valid() -> None:
    api = ApiServer()
    reviewer = api.reviewer()
    short = token(exp=NOW + 30)
    run(reviewer.identify(short))
    api.now += 30
    assert reviewer.cached(short) is None
    with pytest.raises(NotAuthenticatedError, match="has expired"):
        run(reviewer.identify(short))


@pytest.mark.parametrize(
    ("authorization", "words"),
    [
        (None, "no Authorization header"),
        (b"", "not of the form"),
        (b"Basic dXNlcjpwYXNz", "not of the form"),
        (b"Bearer ", "not of the form"),
        (b"Bearer garbage", "not a signed JWT"),
        (b"Bearer a.b.c", "not a signed JWT"),
        (b"Bearer \xff\xfe.\xff.\xff", "not a signed JWT"),
        (token(signature=b""), "not a signed JWT"),
        (token(header={"alg": "none"}), "not a signed JWT"),
        (token(header=["x"]), "not a signed JWT"),
        (b"Bearer " + b"[" * 11_000 + b".e30.e30", "not a signed JWT"),
        (b"Bearer " + base64.b64encode(b"[" * 6000).rstrip(b"=") + b".e30.c2ln", "not a signed JWT"),
        (b"Bearer " + b"x" * 20_000, "longer than"),
        (token(aud=["https://kubernetes.default.svc"]), "not made for the audience trialpod.dev"),
        (token(aud="other"), "not made for the audience"),
        (token(aud=None), "not made for the audience"),
        (token(exp=NOW), "has expired"),
        (token(exp="never"), "no exp claim"),
        (token(exp=True), "no exp claim"),
        (token(nbf=NOW + 3600), "not valid yet"),
    ],
)
def test_malformed_token_never_reaches_the_api_server(authorization: bytes | None, words: str) -> None:
    api = ApiServer()
    with pytest.raises(NotAuthenticatedError, match=words):
        run(api.reviewer().identify(authorization))
    assert api.asked == []


USER: dict[str, Any] = status()["user"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(authenticated=False), "does not accept the token"),
        ({}, "does not accept the token"),
        (status(authenticated="true"), "does not accept the token"),
        (status(audiences=["other"]), "does not confirm the token's audience"),
        (status(audiences=None), "does not confirm the token's audience"),
        (status(user={**USER, "username": "kubernetes-admin"}), "belongs to kubernetes-admin"),
        (status(user={**USER, "username": "system:serviceaccount:team"}), "not to a service account"),
        (status(user={**USER, "extra": None}), "not bound to a pod"),
        (
            status(user={**USER, "extra": {**USER["extra"], "authentication.kubernetes.io/pod-uid": ["a", "b"]}}),
            "not bound to a pod",
        ),
    ],
)
def test_only_a_token_that_is_bound_to_a_pod_identifies_anyone(answer: dict[str, Any], words: str) -> None:
    api = ApiServer()
    api.answer = answer
    with pytest.raises(NotAuthenticatedError, match=words):
        run(api.reviewer().identify(token()))


def test_a_no_is_believed_for_a_short_time_only() -> None:
    api = ApiServer()
    api.answer = status(authenticated=False)
    reviewer = api.reviewer()
    for _ in range(3):
        with pytest.raises(NotAuthenticatedError):
            run(reviewer.identify(token()))
    assert len(api.asked) == 1
    api.now += 11
    api.answer = status()
    assert run(reviewer.identify(token())) == POD


def test_refused_tokens_use_bounded_memory_of_their_own() -> None:
    api = ApiServer()
    reviewer = api.reviewer(size=2)
    run(reviewer.identify(token()))
    api.answer = status(authenticated=False)
    for number in range(5):
        with pytest.raises(NotAuthenticatedError):
            run(reviewer.identify(token(jti=number)))
    assert reviewer.cached(token()) == POD
    with pytest.raises(NotAuthenticatedError):
        run(reviewer.identify(token(jti=0)))
    assert len(api.asked) == 7


def test_silent_api_server_is_no_refusal_and_is_retried() -> None:
    api = ApiServer()
    api.answer = ConnectionError("connection refused")
    reviewer = api.reviewer()
    with pytest.raises(ReviewUnavailableError, match="cannot review the token now"):
        run(reviewer.identify(token()))
    api.answer = status()
    assert run(reviewer.identify(token())) == POD


def test_known_caller_stays_known_during_api_outage() -> None:
    api = ApiServer()
    reviewer = api.reviewer()

    async def test() -> None:
        assert await reviewer.identify(token()) == POD
        api.answer = OSError("connection refused")
        api.now += 1800.0
        for _ in range(3):
            assert await reviewer.identify(token()) == POD
        assert len(api.asked) == 2  # not with each request
        with pytest.raises(ReviewUnavailableError):
            await reviewer.identify(token(signature=b"b3RoZXI"))
        api.answer = status(authenticated=False)
        api.now += 11.0
        with pytest.raises(NotAuthenticatedError):
            await reviewer.identify(token())
        api.answer = OSError("connection refused")
        api.now += 1800.0
        with pytest.raises(NotAuthenticatedError, match="expired"):
            await reviewer.identify(token())

    run(test())


def test_a_review_that_hangs_ends_with_its_timeout() -> None:
    api = ApiServer()

    async def work() -> None:
        api.gate = asyncio.Event()
        with pytest.raises(ReviewUnavailableError, match=r"did not review the token in 0.01 s"):
            await api.reviewer(timeout_s=0.01).identify(token())

    asyncio.run(work())


def test_concurrent_requests_of_a_token_share_one_review() -> None:
    api = ApiServer()

    async def work() -> None:
        api.gate = asyncio.Event()
        reviewer = api.reviewer()
        waiting = [asyncio.ensure_future(reviewer.identify(token())) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(api.asked) == 1
        waiting[0].cancel()
        await asyncio.sleep(0)
        api.gate.set()
        assert await asyncio.gather(*waiting[1:]) == [POD] * 4

    asyncio.run(work())
    assert len(api.asked) == 1


def test_unknown_tokens_reach_the_api_server_at_a_bounded_rate() -> None:
    api = ApiServer()
    reviewer = api.reviewer(reviews=Rate(per_s=1.0, burst=3.0), reviews_per_source=Rate(per_s=1.0, burst=2.0))
    for number, source in enumerate(["10.0.0.1", "10.0.0.1"]):
        run(reviewer.identify(token(jti=number), source))
    with pytest.raises(ReviewUnavailableError) as one:
        run(reviewer.identify(token(jti=2), "10.0.0.1"))
    assert one.value.retry_after_s == 1.0
    assert run(reviewer.identify(token(jti=3), "10.0.0.2")) == POD
    with pytest.raises(ReviewUnavailableError):
        run(reviewer.identify(token(jti=4), "10.0.0.3"))
    assert run(reviewer.identify(token(jti=0), "10.0.0.1")) == POD  # known already
    assert len(api.asked) == 3


def test_burst_of_pods_gets_staggered_retry_after() -> None:
    api = ApiServer()
    tokens = [token(jti=number) for number in range(1000)]

    async def work() -> None:
        api.gate = asyncio.Event()
        reviewer = api.reviewer(reviews=Rate(per_s=50.0, burst=500.0), waiting=40)
        calls = [asyncio.ensure_future(reviewer.identify(each, f"10.0.{n}")) for n, each in enumerate(tokens)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(api.asked) == 40
        api.gate.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert found[:40] == [POD] * 40
        waits = [each.retry_after_s for each in found[40:] if isinstance(each, ReviewUnavailableError)]
        assert len(waits) == 960  # nobody is refused: all are to try again
        assert waits == sorted(waits)
        assert waits[0] == pytest.approx(1 / 50)
        assert waits[99] == pytest.approx(2.0)
        assert waits[-1] == pytest.approx(10.0)
        left = tokens[40:]
        while left:  # and each is known in the end, in turns of what may wait
            api.now += 1.0
            turn = [reviewer.identify(each, "") for each in left[:40]]
            assert await asyncio.gather(*turn) == [POD] * len(turn)
            left = left[40:]
        assert all(reviewer.cached(each) == POD for each in tokens)

    asyncio.run(work())
    assert len(api.asked) == 1000


def test_tokens_whose_time_is_over_are_forgotten() -> None:
    api = ApiServer()
    reviewer = api.reviewer(cache_s=300.0)
    for number in range(100):
        run(reviewer.identify(token(jti=number, exp=api.now + 300.0)))
        api.now += 30.0
    assert len(reviewer._accepted) == 10
