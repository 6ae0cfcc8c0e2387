"""A break of the network between an attempt and the service: over soon after the network is back."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.local,
    pytest.mark.slow,
    pytest.mark.once,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("iptables") or not shutil.which("unshare"),
        reason="breaks a network of its own: needs root, unshare and iptables",
    ),
]

PROGRAM = """
import http.server, subprocess, threading, time
from trialpod.protocol.http import Connection, TransportError

BREAK_S = 14.0

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_):
        pass

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
rule = ["-p", "tcp", "--dport", str(server.server_port), "-j", "DROP"]
connection = Connection(f"http://127.0.0.1:{server.server_port}")
connection.post("/", b"x")
subprocess.run(["iptables", "-I", "OUTPUT", *rule], check=True)
threading.Timer(BREAK_S, lambda: subprocess.run(["iptables", "-D", "OUTPUT", *rule], check=True)).start()
began = time.monotonic()
while True:
    try:
        connection.post("/", b"x")
        break
    except TransportError:
        time.sleep(0.5)
print(time.monotonic() - began - BREAK_S)
"""


def test_a_report_gets_through_soon_after_a_break_of_the_network() -> None:
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 0.0 < float(done.stdout) < 7.0, "TCP alone would take some 11 s more"
