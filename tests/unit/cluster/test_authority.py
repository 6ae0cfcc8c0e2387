"""The certificates in their Secret: several operators, their renewal, and who is told when."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections import Counter

import pytest
import virtual_time
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from fake_api import FakeApi, FakeKube, error, outage

from trialpod_operator.api.api_errors import ApiError
from trialpod_operator.cluster import names
from trialpod_operator.cluster.controller import Controller
from trialpod_operator.cluster.identity.certificates import (
    CHECK_INTERVAL_S,
    PUBLISH_INTERVAL_S,
    SECRET,
    SERVER_CERTIFICATE,
    StoredAuthority,
)
from trialpod_operator.cluster.options import OperatorOptions

DAY_S = 86_400.0
SERVER_NAME = "trialpod-reports.system.svc"


class Clock:
    def __init__(self) -> None:
        self.now = virtual_time.START

    def __call__(self) -> float:
        return self.now


def authority(api: FakeApi, clock: Clock) -> tuple[StoredAuthority, FakeKube]:
    kube = FakeKube(api)
    return StoredAuthority(kube, "system", [SERVER_NAME], clock), kube


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


class Keeper:
    """An operator that keeps the certificates up to date, and its report service's TLS context."""

    def __init__(self, api: FakeApi) -> None:
        def clock() -> float:
            return began + asyncio.get_running_loop().time()

        began = time.time()  # the handshakes happen now
        self.faults = (kube := FakeKube(api)).faults
        self.authority = StoredAuthority(kube, "system", [SERVER_NAME], clock)
        self.services = Controller(kube, OperatorOptions(), clock, lambda: self.authority.bundle).services

    async def start(self) -> None:
        await self.authority.begin()
        self.replace(self.authority.context())
        await self.services.publish_authority("team")
        self.task = asyncio.ensure_future(self.authority.keep(self.replace, self.services.publish_everywhere))

    def replace(self, context: ssl.SSLContext) -> None:
        self.tls = context


class TestKeeping:
    def test_lost_secret_is_replaced_by_all_in_two_minutes(self) -> None:
        async def test() -> None:
            api = FakeApi()
            first, second = keepers = [Keeper(api), Keeper(api)]
            await first.start()
            await asyncio.sleep(CHECK_INTERVAL_S / 2)
            await second.start()
            former = first.tls
            assert all(_accepts(api, each.tls) for each in keepers)
            stored = api.get("secrets", SECRET, "system")
            assert stored is not None
            api.delete(stored)
            await asyncio.sleep(CHECK_INTERVAL_S * 3 / 4)
            assert _accepts(api, first.tls)
            await second.services.publish_authority("team")  # it opens an experiment before it has noticed
            await asyncio.sleep(CHECK_INTERVAL_S)
            assert all(_accepts(api, each.tls) for each in keepers)
            assert not _accepts(api, former)
            assert not any(each.task.done() for each in keepers)

        virtual_time.run(test)

    def test_bundle_that_could_not_be_published_is_retried(self) -> None:
        async def test() -> None:
            api = FakeApi()
            await (keeper := Keeper(api)).start()
            stored = api.get("secrets", SECRET, "system")
            assert stored is not None
            api.delete(stored)
            keeper.faults.append(
                lambda method, path, body: outage(method, path, body) if "configmaps" in path else None
            )
            await asyncio.sleep(3 * CHECK_INTERVAL_S)
            assert not _accepts(api, keeper.tls)
            keeper.faults.clear()
            await asyncio.sleep(CHECK_INTERVAL_S + 1.0)
            assert _accepts(api, keeper.tls)

        virtual_time.run(test)

    def test_bundle_is_published_only_hourly_without_change(self) -> None:
        async def test() -> None:
            api = FakeApi()
            await Keeper(api).start()
            before = Counter(api.counts)
            await asyncio.sleep(PUBLISH_INTERVAL_S + CHECK_INTERVAL_S)
            assert api.counts["PATCH configmaps"] - before["PATCH configmaps"] == 1

        virtual_time.run(test)


def _accepts(api: FakeApi, server: ssl.SSLContext) -> bool:
    """Return whether a trial accepts a report service with this context, by the bundle that it has mounted."""
    published = api.get("configmaps", names.CA_CONFIG_MAP, "team")
    assert published is not None
    client = ssl.create_default_context(cadata=published["data"][names.CA_KEY])
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=SERVER_NAME),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
    return bool(sides[0].getpeercert())


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
