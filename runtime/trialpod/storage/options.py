"""How to reach an S3 storage: what a user or the operator states once and every process of an experiment gets.

Invariants: no secret is ever in here, because the options travel in assignments and manifests; what is not set has a
value from the environment variables that other S3 tools read, or a default that suits MinIO in the same cluster.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from trialpod import variables
from trialpod.errors import InvalidInputError
from trialpod.protocol.messages import Message

Addressing = Literal["auto", "path", "virtual"]

_MEBIBYTE = 1024 * 1024


class StorageOptions(Message):
    """How to reach an S3 storage. The defaults mean: as the environment says."""

    endpoint: str = ""  # "http://minio.minio.svc:9000"; "" = Amazon's own for the region
    region: str = ""  # "" = us-east-1, which MinIO takes for its own
    addressing: Addressing = "auto"  # auto: the bucket in the path, unless the endpoint is Amazon's
    ca_file: str = ""  # PEM certificates to trust besides nothing else; "" = the system's
    credentials_file: str = ""  # in AWS's format, with `profile`; read again when it changes
    credentials_dir: str = ""  # a mounted Secret: files AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN
    credentials_name: str = ""  # what messages call the directory: "the Secret minio"
    profile: str = ""  # of the credentials file; "" = default
    credentials_from: Literal["", "reports"] = ""  # reports: the report service hands out short-lived keys
    ca_pem: str = ""  # certificates to trust, themselves; goes before `ca_file`
    create_bucket: bool = False  # make the bucket when it is missing
    connect_timeout_s: float = 5.0
    timeout_s: float = 60.0  # for one send or one wait for data
    retry_s: float = 60.0  # how long one operation is retried before it fails
    parallelism: int = 8  # requests at a time, per process and storage
    share_connections: bool = False  # with the other storages of this process that are reached alike
    part_bytes: int = 16 * _MEBIBYTE  # of larger files; grows where a file would need more than 10,000 parts
    multipart_bytes: int = 32 * _MEBIBYTE  # files from this size on are sent and fetched in parts

    def resolved(self, environment: Mapping[str, str] | None = None) -> StorageOptions:
        """Return the options with what is not set filled in from the environment and the defaults, checked.

        Args:
            environment: instead of the process's; AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION,
                AWS_DEFAULT_REGION, AWS_CA_BUNDLE, AWS_SHARED_CREDENTIALS_FILE and AWS_PROFILE are read, and
                TRIALPOD_CREATE_BUCKET=1.

        Raises:
            InvalidInputError: a value cannot work.
        """
        env = os.environ if environment is None else environment
        region = self.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = self.endpoint or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or ""
        amazon = not endpoint
        endpoint = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
        credentials_file = self.credentials_file
        if not credentials_file and not self.credentials_dir and not self.credentials_from:
            credentials_file = env.get("AWS_SHARED_CREDENTIALS_FILE", "")
        addressing: Addressing = self.addressing
        if addressing == "auto":
            addressing = "virtual" if amazon else "path"
        found = StorageOptions(
            endpoint=endpoint,
            region=region,
            addressing=addressing,
            ca_file=self.ca_file or env.get("AWS_CA_BUNDLE", ""),
            credentials_file=credentials_file,
            credentials_dir=self.credentials_dir,
            credentials_name=self.credentials_name,
            profile=self.profile or env.get("AWS_PROFILE", "") or "default",
            credentials_from=self.credentials_from,
            ca_pem=self.ca_pem,
            create_bucket=self.create_bucket or _is_on(env, variables.CREATE_BUCKET),
            connect_timeout_s=self.connect_timeout_s,
            timeout_s=self.timeout_s,
            retry_s=self.retry_s,
            parallelism=self.parallelism,
            share_connections=self.share_connections,
            part_bytes=self.part_bytes,
            multipart_bytes=self.multipart_bytes,
        )
        found._check()
        return found

    def _check(self) -> None:
        parts = urlsplit(self.endpoint)
        try:
            port_is_valid = parts.port is None or parts.port > 0
        except ValueError:
            port_is_valid = False
        if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_valid:
            raise InvalidInputError(
                f"the S3 endpoint {self.endpoint!r} is not a URL; write it like http://minio.minio.svc:9000"
            )
        if parts.path or parts.query or parts.username:
            raise InvalidInputError(
                f"the S3 endpoint {self.endpoint!r} has more than scheme, host and port; the bucket belongs into the "
                "storage's URI, the keys into the environment, a credentials file or a Secret"
            )
        if self.addressing not in ("path", "virtual"):
            raise InvalidInputError(f"addressing is auto, path or virtual, not {self.addressing!r}")
        if sum(map(bool, (self.credentials_file, self.credentials_dir, self.credentials_from))) > 1:
            raise InvalidInputError("give one of credentials_file, credentials_dir and credentials_from, not more")
        if self.parallelism < 1 or self.connect_timeout_s <= 0 or self.timeout_s <= 0 or self.retry_s < 0:
            raise InvalidInputError("parallelism is 1 or more, timeouts are above 0 and retry_s is 0 or more")
        if not 5 * _MEBIBYTE <= self.part_bytes <= 5 * 1024 * _MEBIBYTE:
            raise InvalidInputError(f"part_bytes is between 5 MiB and 5 GiB, S3's limits, not {self.part_bytes}")
        if not 0 < self.multipart_bytes <= 5 * 1024 * _MEBIBYTE:
            raise InvalidInputError(f"multipart_bytes is between 1 and 5 GiB, S3's limit, not {self.multipart_bytes}")


def _is_on(env: Mapping[str, str], variable: str) -> bool:
    return variable in env and variables.is_on(variable, env[variable])
