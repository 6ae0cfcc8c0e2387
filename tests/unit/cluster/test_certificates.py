from __future__ import annotations

import asyncio
import ssl
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509

from trialpod.protocol.http import Connection, TransportError
from trialpod_operator.cluster.identity.certificates import (
    BUNDLE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    CertificateError,
    Lifetimes,
    Rotation,
    plan_rotation,
    ssl_context,
)

DAY = 86_400.0
NOW = float(int(time.time()))  # the handshakes below happen now
NAMES = ["trialpod.trialpod-system.svc", "localhost", "127.0.0.1"]


def server_certificate(rotation: Rotation) -> x509.Certificate:
    return x509.load_pem_x509_certificate(rotation.data[SERVER_CERTIFICATE])


def bundle(rotation: Rotation) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(rotation.data[BUNDLE])


def signer(rotation: Rotation) -> x509.Certificate:
    certificate = server_certificate(rotation)
    return next(authority for authority in bundle(rotation) if authority.subject == certificate.issuer)


def trusts(folder: Path, ca: bytes, server: Rotation, host: str = "127.0.0.1") -> bool:
    """Make a handshake between the runner's client, which has `ca`, and a server with that certificate."""
    (folder / "ca.crt").write_bytes(ca)
    context = ssl_context(server.data[SERVER_CERTIFICATE], server.data[SERVER_KEY])
    ready = threading.Event()
    ports: list[int] = []
    loop = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        writer.close()

    async def serve() -> None:
        loop.set_exception_handler(lambda loop, context: None)
        listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
        ports.append(listener.sockets[0].getsockname()[1])
        stop = asyncio.Event()
        stopping.append(stop)
        ready.set()
        await stop.wait()
        listener.close()

    stopping: list[asyncio.Event] = []
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    connection = Connection(f"https://{host}:{ports[0]}", ca_file=str(folder / "ca.crt"))
    try:
        return connection.post("/", b"") == (200, b"hi")
    except TransportError as error:
        if "certificate" not in str(error).lower():
            raise
        return False
    finally:
        connection.close()
        loop.call_soon_threadsafe(stopping[0].set)
        thread.join()
        loop.close()


def test_empty_secret_gets_ca_and_certificate_for_runner(tmp_path: Path) -> None:
    made = plan_rotation({}, NAMES, NOW)
    assert made.reasons == (
        "created a certificate authority",
        "created a server certificate: there was none",
    )
    assert trusts(tmp_path, made.data[BUNDLE], made)
    assert trusts(tmp_path, made.data[BUNDLE], made, host="localhost")


def test_the_certificates_satisfy_the_strict_mode_of_openssl() -> None:
    made = plan_rotation({}, NAMES, NOW)
    client = ssl.create_default_context(cadata=made.data[BUNDLE].decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl_context(made.data[SERVER_CERTIFICATE], made.data[SERVER_KEY])
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=NAMES[0]),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() == "TLSv1.3"


def test_another_name_and_another_authority_are_not_trusted(tmp_path: Path) -> None:
    made = plan_rotation({}, ["somewhere.else.svc"], NOW)
    assert not trusts(tmp_path, made.data[BUNDLE], made)
    other = plan_rotation({}, NAMES, NOW)
    assert not trusts(tmp_path, made.data[BUNDLE], other)


def test_certificate_is_renewed_at_two_thirds_of_its_life() -> None:
    made = plan_rotation({}, NAMES, NOW)
    assert not plan_rotation(made.data, NAMES, NOW + 59 * DAY).changed
    renewed = plan_rotation(made.data, NAMES, NOW + 60 * DAY + 2)
    assert renewed.reasons == ("created a server certificate: it was about to expire",)
    assert renewed.data[BUNDLE] == made.data[BUNDLE]
    assert not plan_rotation(renewed.data, NAMES, NOW + 119 * DAY).changed


FOREIGN = plan_rotation({}, NAMES, NOW).data


@pytest.mark.parametrize(
    ("foreign", "reason"),
    [
        ([SERVER_KEY], "its key was another one's"),
        (["authority.crt", "authority.key"], "another authority had signed it"),
    ],
)
def test_a_server_certificate_that_does_not_fit_is_replaced(foreign: list[str], reason: str) -> None:
    data = plan_rotation({}, NAMES, NOW).data | {key: FOREIGN[key] for key in foreign}
    assert plan_rotation(data, NAMES, NOW).reasons == (f"created a server certificate: {reason}",)


def test_other_names_give_another_server_certificate() -> None:
    made = plan_rotation({}, NAMES, NOW)
    changed = plan_rotation(made.data, ["new.svc"], NOW)
    assert changed.reasons == ("created a server certificate: the server has other names now",)
    assert not plan_rotation(made.data, list(reversed(NAMES)), NOW).changed


def test_an_authority_is_replaced_on_its_last_day(tmp_path: Path) -> None:
    lives = Lifetimes(authority_s=100 * DAY, server_s=30 * DAY)
    made = plan_rotation({}, NAMES, NOW - 98 * DAY, lives)
    kept = plan_rotation(made.data, NAMES, NOW - 0.5 * DAY, lives)
    assert kept.data[BUNDLE] == made.data[BUNDLE]
    replaced = plan_rotation(kept.data, NAMES, NOW + 1.5 * DAY, lives)
    assert replaced.reasons == (
        "replaced the certificate authority: it expires within a day",
        "created a server certificate: another authority had signed it",
    )
    assert bundle(replaced) == [signer(replaced)]
    assert signer(replaced) != signer(made)
    late = plan_rotation(made.data, NAMES, NOW + 200 * DAY, lives)
    assert server_certificate(late).not_valid_after_utc.timestamp() > NOW + 200 * DAY


def test_no_server_certificate_outlives_its_authority() -> None:
    lives = Lifetimes(authority_s=100 * DAY, server_s=90 * DAY)
    made = plan_rotation({}, NAMES, NOW, lives)
    renewed = plan_rotation(made.data, NAMES, NOW + 70 * DAY, lives)
    assert server_certificate(renewed).not_valid_after_utc <= bundle(made)[0].not_valid_after_utc


def test_a_lost_bundle_is_restored() -> None:
    made = plan_rotation({}, NAMES, NOW)
    data = {key: value for key, value in made.data.items() if key != BUNDLE}
    assert plan_rotation(data, NAMES, NOW) == Rotation(made.data, ("restored the bundle",))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"tls.crt": b"x"}, "has no authority.crt, only tls.crt"),
        ({"authority.crt": b"garbage", "authority.key": b"x"}, "authority.crt is not a certificate"),
        ({**plan_rotation({}, NAMES, NOW).data, "tls.key": b"x"}, "tls.key is not a private key"),
    ],
)
def test_a_secret_that_is_not_ours_is_refused_with_a_remedy(data: dict[str, bytes], words: str) -> None:
    with pytest.raises(CertificateError, match=words):
        plan_rotation(data, NAMES, NOW)


def test_a_key_that_does_not_fit_makes_no_context() -> None:
    one, other = plan_rotation({}, NAMES, NOW), plan_rotation({}, NAMES, NOW)
    with pytest.raises(CertificateError, match="cannot be used"):
        ssl_context(one.data[SERVER_CERTIFICATE], other.data[SERVER_KEY])
