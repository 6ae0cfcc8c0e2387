"""A real MinIO server for tests: built once by tools/build_minio, started on a free port of this machine.

It dies with the process that started it (PR_SET_PDEATHSIG), whatever ends that one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType

from free_port import free_port
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.client import S3Client
from trialpod.storage.s3.credentials import Credentials
from trialpod.storage.s3.storage import S3Storage, parse_uri

ROOT = Path(__file__).resolve().parents[2]
ACCESS_KEY, SECRET_KEY = "trialpod-test", "trialpod-test-secret"
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
# The kernel sends the signal when the *thread* that forked ends, so one that lives as long as the process does it.
_starter = ThreadPoolExecutor(1, "minio-starter")


@cache
def binary() -> str:
    """Return the path of the server's binary, which is built if it is not there (minutes, once)."""
    return subprocess.run(
        [ROOT / "tools/build_minio"], check=True, stdout=subprocess.PIPE, text=True, timeout=1800
    ).stdout.strip()


class FixedKeys:
    """Keys that a test gives and changes."""

    source = "the test"

    def __init__(self, access: str = ACCESS_KEY, secret: str = SECRET_KEY) -> None:
        self.now = Credentials(access, secret)

    def get(self) -> Credentials:
        return self.now

    def refused(self, credentials: Credentials) -> bool:
        return self.now != credentials


class Ca:
    """A private certificate authority, and a server's certificate from it for names of this machine."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca_file = folder / "ca.pem"
        self.folder = folder / "certs"
        self.folder.mkdir(exist_ok=True)
        alternatives = ",".join([f"DNS:{name}" for name in names] + ["IP:127.0.0.1"])
        extensions = folder / "extensions"
        extensions.write_text(f"subjectAltName={alternatives}\nextendedKeyUsage=serverAuth\n")
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        authority = [
            "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
            "-days",
            "2",
            "-subj",
            "/CN=a test's authority",
        ]
        _openssl("req", "-x509", *curve, *authority, "-keyout", str(folder / "ca.key"), "-out", str(self.ca_file))
        request = str(folder / "server.csr")
        _openssl("req", *curve, "-subj", "/CN=minio", "-keyout", str(self.folder / "private.key"), "-out", request)
        signing = ["-CA", str(self.ca_file), "-CAkey", str(folder / "ca.key"), "-CAcreateserial", "-days", "2"]
        made = ["-extfile", str(extensions), "-out", str(self.folder / "public.crt")]
        _openssl("x509", "-req", "-in", request, *signing, *made)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


class MinioServer:
    """One server. `start` returns when it answers; the port stays the same over restarts.

    Args:
        folder: for its data, its certificates and its log.
        data: the data directory; None for one in `folder`.
        ca: makes it speak TLS.
        domain: makes it take ``bucket.domain`` for the bucket's address.
        environment: more variables for it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data: Path | None = None,
        ca: Ca | None = None,
        domain: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.data = data or folder / "data"
        self.ca = ca
        self.domain = domain
        self.port = free_port()
        self.keys = FixedKeys()  # the server's own; a change counts from its next start
        self._lock = threading.RLock()
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[S3Client] = []  # that it gave away; their connections are closed with it

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.ca else 'http'}://{self.domain or '127.0.0.1'}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> MinioServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for client in self._clients:
            client.close()

    def start(self) -> MinioServer:
        """Start it, and wait until it answers for real."""
        self.data.mkdir(parents=True, exist_ok=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "MINIO_"))},
            "MINIO_ROOT_USER": self.keys.now.access_key,
            "MINIO_ROOT_PASSWORD": self.keys.now.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            **({"MINIO_DOMAIN": self.domain} if self.domain else {}),
            **self._environment,
        }
        certificates = self.ca.folder if self.ca else self.folder / "no-certs"
        certificates.mkdir(exist_ok=True)
        command = [binary(), "server", "--quiet", "--address", f"127.0.0.1:{self.port}"]
        parent = os.getpid()

        def bind_to_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        def spawn() -> subprocess.Popen[bytes]:
            with open(self.folder / "minio.log", "ab") as log:
                return subprocess.Popen(
                    [*command, "--certs-dir", str(certificates), str(self.data)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    preexec_fn=bind_to_parent,
                )

        with self._lock:  # not while it is being killed
            self._process = _starter.submit(spawn).result()
            self._wait()
        return self

    def _wait(self) -> None:
        deadline = time.monotonic() + 90
        while True:
            assert self._process is not None
            try:
                self.client("probe", retry_s=0.0).call("GET", "", "probe", query={"location": ""})
            except Exception as error:
                # No such bucket: it answers. Anything else: not yet.
                if getattr(getattr(error, "failure", None), "code", "") == "NoSuchBucket":
                    return
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "minio.log").read_text(errors="replace")[-2000:]
                    raise AssertionError(f"MinIO does not start ({error}):\n{log}") from error
                time.sleep(0.05)  # polls another process, which tells nobody when it is ready
            else:
                return

    def kill(self) -> None:
        """End it by SIGKILL."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.kill()
                process.wait()

    def stop(self) -> None:
        """End it by SIGTERM."""
        with self._lock:
            process, self._process = self._process, None
            if process is not None:
                process.terminate()
                process.wait(30)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def options(self, **changes: object) -> StorageOptions:
        """Return what reaches this server, with some of it changed."""
        values: dict[str, object] = {
            "endpoint": self.endpoint,
            "ca_file": str(self.ca.ca_file) if self.ca else "",
            "addressing": "virtual" if self.domain else "path",
            "create_bucket": True,
        }
        return StorageOptions(**{**values, **changes})  # type: ignore[arg-type]

    def client(self, bucket: str, *, keys: FixedKeys | None = None, **changes: object) -> S3Client:
        """Return a client with the server's root keys, or others."""
        made = S3Client(bucket, self.options(**changes).resolved({}), credentials=keys or self.keys)
        self._clients.append(made)
        return made

    def storage(self, uri: str, *, keys: FixedKeys | None = None, **changes: object) -> S3Storage:
        """Open a storage with the server's root keys, or others; its bucket is made."""
        return S3Storage.open(uri, client=self.client(parse_uri(uri)[0], keys=keys, **changes))


@contextmanager
def environment_keys(access: str = ACCESS_KEY, secret: str = SECRET_KEY) -> Iterator[None]:
    """Put keys into the process's environment for a while."""
    names = {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
