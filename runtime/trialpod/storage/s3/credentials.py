"""Where the keys for an S3 storage come from, and how they change while a process runs.

Invariants: files are read again when they change (a mounted Secret changes by exchanging a symbolic link), at most
once a second; after the server has refused keys they are read again at once. What cannot be read now, while a file is
being exchanged, leaves the keys that worked before in place. Secrets never appear in messages or representations.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from trialpod.errors import StorageError
from trialpod.storage.options import StorageOptions

_CHECK_EVERY_S = 1.0
_NAMES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class Credentials:
    """One set of keys."""

    access_key: str
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


class CredentialsProvider(Protocol):
    """Gives the keys to sign the next request with."""

    @property
    def source(self) -> str:
        """Where they come from, in words for a message."""
        ...

    def get(self) -> Credentials:
        """Return the keys that hold now; raise StorageError, saying where they were looked for, if there are none."""
        ...

    def refused(self, credentials: Credentials) -> bool:
        """Note that the server refused these keys; tell whether there are others now, so that trying again helps."""
        ...


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
                self._next_check = now + _CHECK_EVERY_S
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


def provider_for(options: StorageOptions, environment: Mapping[str, str] | None = None) -> CredentialsProvider:
    """Return the source of keys that resolved options name: who supplies them, a directory, a file, the environment.

    Keys in the environment go before a credentials file that only the environment names, as in other S3 tools; when
    neither is there, ``~/.aws/credentials`` is used if it exists.
    """
    env = os.environ if environment is None else environment
    if options.credentials_from:
        from trialpod.storage.s3.supplied import supplier

        return supplier()
    if options.credentials_dir:
        return FileCredentials(options.credentials_dir, None, name=options.credentials_name)
    if options.credentials_file and not (
        options.credentials_file == env.get("AWS_SHARED_CREDENTIALS_FILE") and env.get("AWS_ACCESS_KEY_ID")
    ):
        return FileCredentials(options.credentials_file, options.profile)
    home = os.path.expanduser("~/.aws/credentials")
    if not options.credentials_file and not env.get("AWS_ACCESS_KEY_ID") and os.path.exists(home):
        return FileCredentials(home, options.profile)
    return EnvironmentCredentials(env)
