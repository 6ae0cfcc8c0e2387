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
import http.server, subprocess, sys, threading, time
from trialpod.protocol.http import Connection, TransportError

BREAK_S = 18.0

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/slow":
            time.sleep(1.0)
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
port = str(server.server_port)
rules = [["-p", "tcp", way, port, "-j", "DROP"] for way in ("--dport", "--sport")]

def change(action):
    for rule in rules:
        subprocess.run(["iptables", action, "OUTPUT", *rule], check=True)

connection = Connection(f"http://127.0.0.1:{server.server_port}")
connection.post("/", b"x")
if sys.argv[1] == "request":
    change("-I")
else:
    threading.Timer(0.5, change, ["-I"]).start()
threading.Timer(BREAK_S, change, ["-D"]).start()
began = time.monotonic()
while True:
    try:
        connection.post("/" if sys.argv[1] == "request" else "/slow", b"x")
        break
    except TransportError:
        time.sleep(0.5)
print(time.monotonic() - began - BREAK_S)
"""


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_report_gets_through_soon_after_a_break_of_the_network(lost: str) -> None:
    command = ["unshare", "--net", sys.executable, "-c", PROGRAM, lost]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert 0.0 < float(done.stdout) < 6.5, "TCP alone takes some 8 s"
