"""Where the keys for an S3 storage come from, and how they change while a process runs.

Keys of a machine or a pod itself (EKS's web identity, ECS, EC2) are minio's `IamAwsProvider`. Its providers for
variables and files are not used: they cannot be given other variables, know no mounted Secret, read a file for every
request, refuse a secret with a "%" (`configparser` interpolates it), and quote the line of a file that they cannot
read, which may be the secret.

Invariants: files are read again when they change (a mounted Secret changes by exchanging a symbolic link), at most
once a second; after the server has refused keys they are read again at once. What cannot be read now, while a file is
being exchanged, leaves the keys that worked before in place. Secrets never appear in messages or representations.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from trialpod.errors import StorageError
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import REFUSED_AGAIN_S, Credentials, CredentialsProvider, supplier

_CHECK_INTERVAL_S = 1.0
_IDENTITY_TIMEOUT_S = 5.0
_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_IDENTITY = (
    "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
"""Variables by which EKS and ECS say where a pod's own keys are."""


class EnvironmentCredentials:
    """Keys from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN."""

    source = "the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def get(self) -> Credentials:
        """Return what the variables say now."""
        access, secret, token = (self._environment.get(name, "").strip() for name in _NAMES)
        if not access or not secret:
            missing = [name for name, value in zip(_NAMES, (access, secret), strict=False) if not value]
            raise StorageError(
                f"no S3 credentials: {' and '.join(missing)} not set; set them, or name a credentials file "
                "(AWS_SHARED_CREDENTIALS_FILE) or a mounted Secret's directory"
            )
        return Credentials(access, secret, token)

    def refused(self, credentials: Credentials) -> bool:
        """Tell whether the variables have changed since."""
        return self.get() != credentials


class FileCredentials:
    """Keys from a file in AWS's format or from the files of a mounted Secret, read again when they change.

    Args:
        path: the file, or the directory.
        profile: the section of the file; None for a directory.
        name: what messages call it; "" = its path.
        clock: monotonic seconds.
    """

    def __init__(
        self, path: str, profile: str | None, *, name: str = "", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._path = os.path.expanduser(path)
        self._profile = profile
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: object = None
        self._next_check = 0.0
        self._current: Credentials | None = None

    @property
    def source(self) -> str:
        """Its name, or the path, and the profile if there is one."""
        if self._name:
            return self._name
        if self._profile is None:
            return f"the directory {self._path}"
        return f"profile {self._profile} of {self._path}"

    def get(self) -> Credentials:
        """Return the keys; look for a change when the last look is a second old."""
        with self._lock:
            now = self._clock()
            if self._current is None or now >= self._next_check:
                self._next_check = now + _CHECK_INTERVAL_S
                self._refresh()
            assert self._current is not None
            return self._current

    def refused(self, credentials: Credentials) -> bool:
        """Read the file again, and tell whether it has other keys than these."""
        with self._lock:
            self._seen = None
            self._refresh()
            return self._current != credentials

    def _refresh(self) -> None:
        try:
            seen = self._stamp()
            if self._current is None or seen != self._seen:
                self._current = self._load_file() if self._profile is not None else self._load_directory()
                self._seen = seen
        except (OSError, UnicodeDecodeError) as error:
            if self._current is None:
                raise StorageError(f"cannot read S3 credentials from {self.source}: {error}") from error
        except StorageError:
            if self._current is None:
                raise

    def _stamp(self) -> object:
        paths = [self._path] if self._profile is not None else [os.path.join(self._path, name) for name in _NAMES]
        stamps: list[object] = []
        for path in paths:
            try:
                status = os.stat(path)
            except FileNotFoundError:
                stamps.append(None)
            else:
                stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return stamps

    def _load_directory(self) -> Credentials:
        values = []
        for name in _NAMES:
            try:
                with open(os.path.join(self._path, name), encoding="utf-8") as file:
                    values.append(file.read().strip())
            except FileNotFoundError:
                values.append("")
        return self._complete(*values)

    def _load_file(self) -> Credentials:
        import configparser

        parser = configparser.RawConfigParser()
        try:
            with open(self._path, encoding="utf-8") as file:
                parser.read_file(file)
        except configparser.Error as error:
            # The parser's message quotes lines, which may hold a secret.
            raise StorageError(
                f"cannot read S3 credentials from {self.source}: {type(error).__name__}; it is written like "
                "[default], aws_access_key_id = ..., aws_secret_access_key = ..., each on a line"
            ) from None
        if self._profile not in parser:
            there = ", ".join(parser.sections()) or "none"
            raise StorageError(f"{self._path} has no profile {self._profile!r} (it has: {there})")
        section = parser[str(self._profile)]
        return self._complete(*(section.get(name.lower(), "").strip() for name in _NAMES))

    def _complete(self, access: str, secret: str, token: str) -> Credentials:
        missing = [name for name, value in zip(_NAMES, (access, secret), strict=False) if not value]
        if missing:
            shown = [name.lower() if self._profile is not None else name for name in missing]
            raise StorageError(f"no S3 credentials in {self.source}: {' and '.join(shown)} missing or empty")
        return Credentials(access, secret, token)


class IdentityCredentials:
    """Keys of the pod's or the machine's own identity, short-lived and exchanged by minio's provider.

    Args:
        clock: monotonic seconds.
    """

    source = "the identity of this pod or machine (AWS_WEB_IDENTITY_TOKEN_FILE, ECS or EC2)"

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._provider: Any = None
        self._current: Credentials | None = None
        self._since = 0.0

    def get(self) -> Credentials:
        """Return the keys, asking for others when they are about to expire."""
        with self._lock:
            return self._retrieve()

    def refused(self, credentials: Credentials) -> bool:
        """Ask for others, unless these are new, and tell whether they differ."""
        with self._lock:
            if self._current != credentials:
                return True
            # The token service makes other keys for each request; where the role lacks a permission, none helps.
            if self._clock() < self._since + REFUSED_AGAIN_S:
                return False
            self._provider = None
            return self._retrieve() != credentials

    def _retrieve(self) -> Credentials:
        import urllib3
        from minio.credentials import IamAwsProvider

        try:
            if self._provider is None:
                pool = urllib3.PoolManager(timeout=_IDENTITY_TIMEOUT_S, retries=False)
                self._provider = IamAwsProvider(http_client=pool)
            found = self._provider.retrieve()
        except (ValueError, KeyError, OSError, urllib3.exceptions.HTTPError) as error:
            raise StorageUnavailableError(f"no S3 credentials from {self.source}: {error}") from error
        keys = Credentials(found.access_key, found.secret_key, found.session_token or "")
        if keys != self._current:
            self._current, self._since = keys, self._clock()
        return keys


def provider_for(options: StorageOptions, environment: Mapping[str, str] | None = None) -> CredentialsProvider:
    """Return the source of keys that resolved options name: an issuer, a directory, a file, the environment.

    Keys in the environment go before a credentials file that only the environment names, as in other S3 tools; when
    neither is there, ``~/.aws/credentials`` is used if it exists, and the pod's own identity if the environment names
    one.
    """
    env = os.environ if environment is None else environment
    if options.credentials_from:
        return supplier()
    if options.credentials_dir:
        return FileCredentials(options.credentials_dir, None, name=options.credentials_name)
    if options.credentials_file and not (
        options.credentials_file == env.get("AWS_SHARED_CREDENTIALS_FILE") and env.get("AWS_ACCESS_KEY_ID")
    ):
        return FileCredentials(options.credentials_file, options.profile)
    if env.get("AWS_ACCESS_KEY_ID"):
        return EnvironmentCredentials(env)
    home = os.path.expanduser("~/.aws/credentials")
    if os.path.exists(home):
        return FileCredentials(home, options.profile)
    if environment is None and any(env.get(name) for name in _IDENTITY):
        return IdentityCredentials()
    return EnvironmentCredentials(env)
