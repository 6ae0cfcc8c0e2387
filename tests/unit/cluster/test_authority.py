"""The certificates in their Secret: several operators, their renewal, and who is told when."""

from __future__ import annotations

import asyncio

import pytest
import virtual_time
from fake_api import FakeApi, FakeKube, error, outage

from trialpod_operator.cluster.authority import StoredAuthority
from trialpod_operator.cluster.kube import ApiError

DAY_S = 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = virtual_time.START

    def __call__(self) -> float:
        return self.now


def authority(api: FakeApi, clock: Clock) -> tuple[StoredAuthority, FakeKube]:
    kube = FakeKube(api)
    return StoredAuthority(kube, "system", ["trialpod-reports.system.svc"], clock), kube


def test_operators_that_start_at_once_have_the_same_certificates() -> None:
    async def test() -> None:
        api, clock = FakeApi(), Clock()
        several = [authority(api, clock)[0] for _ in range(4)]
        await asyncio.gather(*(each.refresh() for each in several))
        assert len({each.bundle for each in several}) == 1
        for each in several:
            assert not await each.refresh()
            each.context()

    virtual_time.run(test)


def test_a_write_whose_answer_was_lost_is_what_counts() -> None:
    async def test() -> None:
        api, clock = FakeApi(), Clock()
        first, kube = authority(api, clock)
        answers = [True]
        kube.lost_answers = lambda: bool(answers) and answers.pop(0)
        with pytest.raises(ApiError):
            await first.refresh()
        await first.refresh()
        second, _ = authority(api, clock)
        await second.refresh()
        assert first.bundle == second.bundle

    virtual_time.run(test)


def test_a_start_waits_for_an_api_server_that_is_away_and_ends_when_it_refuses() -> None:
    async def test() -> None:
        api, clock = FakeApi(), Clock()
        waiting, kube = authority(api, clock)
        kube.faults.append(outage)
        beginning = asyncio.ensure_future(waiting.begin())
        await asyncio.sleep(600.0)
        assert not beginning.done()
        kube.faults.clear()
        await asyncio.wait_for(beginning, 10.0)
        waiting.context()
        refused, kube = authority(api, clock)
        kube.faults.append(lambda method, path, body: error(method, path, 403, "Forbidden", "no such right"))
        with pytest.raises(ApiError, match="no such right"):
            await refused.begin()

    virtual_time.run(test)


def test_over_ten_years_pods_trust_every_certificate_before_the_server_shows_it() -> None:
    async def test() -> None:
        api, clock = FakeApi(), Clock()
        own, _ = authority(api, clock)
        other, _ = authority(api, clock)
        await own.refresh()
        bundles, changes = own.bundle, 0
        for day in range(0, 3650, 5):
            clock.now = virtual_time.START + day * DAY_S
            turn = (own, other)[day % 2]
            changed = await turn.refresh()
            changes += changed
            # Whoever has the bundle of the latest publication can check today's server.
            assert _trusted(turn, bundles), day
            bundles = turn.bundle
            await turn.published()
        assert changes > 10

    virtual_time.run(test)


def test_a_secret_that_may_not_be_written_is_told() -> None:
    async def test() -> None:
        own, kube = authority(FakeApi(), Clock())
        kube.faults.append(
            lambda method, path, body: error(method, path, 403, "Forbidden") if method == "POST" else None
        )
        with pytest.raises(ApiError):
            await own.refresh()

    virtual_time.run(test)


def _trusted(own: StoredAuthority, bundle: str) -> bool:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    from trialpod_operator.cluster.certificates import SERVER_CERTIFICATE

    leaf = x509.load_pem_x509_certificates(own._data[SERVER_CERTIFICATE])[0]
    for root in x509.load_pem_x509_certificates(bundle.encode()):
        try:
            leaf.verify_directly_issued_by(root)
        except (InvalidSignature, ValueError):
            continue
        return True
    return False
