"""`trialpod-report loss=0.3 step=4`: reports metrics from a command that runs as a trial, in any language.

Outside a trial it only prints them, so that a script runs by itself too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from trialpod.variables import REPORT_URL

USAGE = """usage: trialpod-report NAME=NUMBER ... [step=N]
       trialpod-report --checkpoint

Report metrics of the running trial, or say that its checkpoint folder is complete now.
Any program can do the same: curl -d 'loss=0.3 step=4' "$TRIALPOD_REPORT_URL"
"""
_TIMEOUT_S = 3600.0
"""A report waits while the scheduler decides."""


def main(argv: Sequence[str] | None = None) -> int:
    """Send one report; return the exit status: 0 taken, 1 not sent, 2 not understood."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE, end="", file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    url = os.environ.get(REPORT_URL, "")
    if not url:
        print(" ".join(words))
        return 0
    import http.client
    from urllib.parse import urlsplit

    place = urlsplit(url)
    path = place.path + ("/checkpoint" if words[0] == "--checkpoint" else "")
    body = "" if words[0] == "--checkpoint" else " ".join(words)
    connection = http.client.HTTPConnection(place.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("POST", path, body.encode(), {"Content-Type": "text/plain"})
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace").strip()
    except OSError as error:
        print(f"trialpod-report: {url} cannot be reached: {error}", file=sys.stderr)
        return 1
    finally:
        connection.close()
    if answer.status == 200:
        return 0
    print(f"trialpod-report: {text}", file=sys.stderr)
    return 2 if answer.status == 400 else 1


if __name__ == "__main__":
    sys.exit(main())
