"""Connections to an S3 server that are kept for the next request."""

from __future__ import annotations

import gc
import socket

from trialpod.storage.s3.http import HttpPool, _Connection


def test_a_pool_that_nobody_closed_closes_its_connections_even_when_it_is_part_of_a_cycle() -> None:
    pool = HttpPool("http://127.0.0.1:9", ca_file="", timeout_s=1.0, connect_timeout_s=1.0)
    mine, servers = socket.socketpair()
    pool._idle.append(_Connection(mine, "127.0.0.1", 1.0))
    cycle = [pool]
    cycle.append(cycle)  # type: ignore[arg-type]
    del mine, pool, cycle
    gc.collect()
    with servers:
        servers.settimeout(1.0)
        assert servers.recv(1) == b""
