"""What tests ask of MinIO's admin API: users that come, go, and are locked out.

Bodies are encrypted as the API wants it: a salt, the kind of key derivation (2: PBKDF2 and AES-GCM), a nonce, then
AES-GCM over fragments of 16 KiB, each authenticated with a tag that depends on the nonce and on being the last.
"""

from __future__ import annotations

import hashlib
import json
import os
import time

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from minio_server import MinioServer

from trialpod.storage.s3.client import Rejection

_PBKDF2_AES_GCM = 2
_ROUNDS = 8192
_FRAGMENT = 16 * 1024
_LAST = 0x80
_START_TIMEOUT_S = 60.0
_POLL_S = 0.2


def encrypted(password: str, data: bytes) -> bytes:
    """Return `data`, of one fragment, as the admin API takes it."""
    assert len(data) < _FRAGMENT
    salt, nonce = os.urandom(32), os.urandom(8)
    cipher = AESGCM(hashlib.pbkdf2_hmac("sha256", password.encode(), salt, _ROUNDS, 32))
    tag = cipher.encrypt(nonce + (0).to_bytes(4, "little"), b"", b"")
    body = cipher.encrypt(nonce + (1).to_bytes(4, "little"), data, bytes([_LAST]) + tag)
    return salt + bytes([_PBKDF2_AES_GCM]) + nonce + body


class Admin:
    """The users of one server."""

    def __init__(self, server: MinioServer) -> None:
        self._secret = server.keys.now.secret_key
        self._client = server.client("minio")  # the API's paths begin with /minio

    def add_user(self, access: str, secret: str) -> None:
        """Make a user who may read and write everything."""
        data = json.dumps({"secretKey": secret, "status": "enabled"}).encode()
        self._put("add-user", {"accessKey": access}, encrypted(self._secret, data))
        policy = {"policyName": "readwrite", "userOrGroup": access, "isGroup": "false"}
        # A server that has just started answers 404 until it has loaded its policies, and tells nobody when it has.
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            try:
                return self._put("set-user-or-group-policy", policy)
            except Rejection:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)

    def set_status(self, access: str, status: str) -> None:
        """Lock a user out ("disabled"), or in again ("enabled")."""
        self._put("set-user-status", {"accessKey": access, "status": status})

    def _put(self, name: str, query: dict[str, str], body: bytes = b"") -> None:
        self._client.call("PUT", f"admin/v3/{name}", name, query=query, body=body, patience_s=30.0)
