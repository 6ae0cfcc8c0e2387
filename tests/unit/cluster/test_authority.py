"""The certificates in their Secret: several operators, their renewal, and who is told when."""

from __future__ import annotations

import asyncio
import base64

import pytest
import virtual_time
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from fake_api import FakeApi, FakeKube, error, outage

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.cluster.identity.certificates import SECRET, SERVER_CERTIFICATE, StoredAuthority

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


def test_start_waits_for_absent_api_and_ends_on_refusal() -> None:
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


def test_every_certificate_in_ten_years_is_in_the_bundle() -> None:
    async def test() -> None:
        api, clock = FakeApi(), Clock()
        own, _ = authority(api, clock)
        other, _ = authority(api, clock)
        changes = 0
        for day in range(0, 4000, 5):
            clock.now = virtual_time.START + day * DAY_S
            turn = (own, other)[day % 2]
            changes += await turn.refresh()
            assert _trusted(api, turn.bundle), day
        assert changes > 10

    virtual_time.run(test)


def test_a_secret_that_may_not_be_written_is_reported() -> None:
    async def test() -> None:
        own, kube = authority(FakeApi(), Clock())
        kube.faults.append(
            lambda method, path, body: error(method, path, 403, "Forbidden") if method == "POST" else None
        )
        with pytest.raises(ApiError):
            await own.refresh()

    virtual_time.run(test)


def _trusted(api: FakeApi, bundle: str) -> bool:
    stored = api.get("secrets", SECRET, "system")
    assert stored is not None
    (leaf,) = x509.load_pem_x509_certificates(base64.b64decode(stored["data"][SERVER_CERTIFICATE]))
    (root,) = x509.load_pem_x509_certificates(bundle.encode())
    try:
        leaf.verify_directly_issued_by(root)
    except (InvalidSignature, ValueError):
        return False
    return True
