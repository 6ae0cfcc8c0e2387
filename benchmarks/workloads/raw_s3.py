"""The raw rate of an S3 client: sends the files of a folder by minio-py or by obstore, each as fast as it can.

Runs in the environment of `benchmarks/scratch_environment.py`. Takes one JSON object on standard input and prints
for each setting the seconds that it took; nothing but the requests is timed.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_MIB = 1024 * 1024
_PART_FROM = 32 * _MIB
"""Files from this size on are sent in parts, by both clients."""

SETTINGS = (
    {"files": 1, "parts": 4, "part_mib": 64},
    {"files": 4, "parts": 2, "part_mib": 16},
    {"files": 8, "parts": 8, "part_mib": 16},
)
"""How many files at a time, how many parts of each, and how large: what was best on one machine or another."""

Put = Callable[[str, Path], None]


def minio_put(request: dict[str, Any], setting: dict[str, int]) -> Put:
    """Return what sends a file by minio-py, with room for all connections in its pool."""
    import urllib3
    from minio import Minio

    connections = setting["files"] * (setting["parts"] + 1)
    client = Minio(
        request["endpoint"].removeprefix("http://"),
        access_key=request["access_key"],
        secret_key=request["secret_key"],
        secure=False,
        http_client=urllib3.PoolManager(maxsize=connections, timeout=60, retries=False),
    )
    if not client.bucket_exists(bucket_name=request["bucket"]):
        client.make_bucket(bucket_name=request["bucket"])

    def put(key: str, path: Path) -> None:
        part = setting["part_mib"] * _MIB if path.stat().st_size >= _PART_FROM else 5 * 1024 * _MIB
        client.fput_object(
            bucket_name=request["bucket"],
            object_name=key,
            file_path=str(path),
            part_size=part,
            num_parallel_uploads=setting["parts"],
        )

    return put


def obstore_put(request: dict[str, Any], setting: dict[str, int]) -> Put:
    """Return what sends a file by obstore, which need not hash it: the connection is local."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        request["bucket"],
        endpoint=request["endpoint"],
        access_key_id=request["access_key"],
        secret_access_key=request["secret_key"],
        region="us-east-1",
        unsigned_payload=True,
        client_options={"allow_http": True},
    )

    def put(key: str, path: Path) -> None:
        obstore.put(
            store,
            key,
            path,
            use_multipart=path.stat().st_size >= _PART_FROM,
            chunk_size=setting["part_mib"] * _MIB,
            max_concurrency=setting["parts"],
        )

    return put


def main() -> None:
    """Time every setting once."""
    request = json.load(sys.stdin)
    make = {"minio-py": minio_put, "obstore": obstore_put}[request["client"]]
    files = sorted(path for path in Path(request["folder"]).rglob("*") if path.is_file())
    took = []
    for number, setting in enumerate(SETTINGS):
        put = make(request, setting)
        put(f"warm-{os.getpid()}", Path(__file__))
        prefix = f"{request['client']}-{os.getpid()}-{number}"
        with ThreadPoolExecutor(setting["files"]) as pool:
            start = time.perf_counter()
            list(pool.map(put, [f"{prefix}/{path.name}" for path in files], files))
            took.append(time.perf_counter() - start)
    print(json.dumps(took))


if __name__ == "__main__":
    main()
