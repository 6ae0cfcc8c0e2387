"""The attempts of the fake nodes' pods: no process runs, but each speaks the real protocol to the real operator.

One process and one event loop stand for all of them. Each pod has a token of its own, an address of its own and a
connection of its own, as it would have on a node. What a kubelet does beside that is here, too: the pod is Succeeded
when its attempt has ended.

Scores grow with every result of the whole run, so a scheduler that compares them stops no trial.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
from attempt import EXPERIMENT_LABEL, Calls, Line, Seen, Work, play
from plane import KUBECONFIG, NAMESPACE, REPORT_PORT, TokenIssuer

API = "https://127.0.0.1:6443"
PODS = f"{API}/api/v1/namespaces/{NAMESPACE}/pods"
SELECTOR = "app.kubernetes.io/name=trialpod-trial"


class Attempts:
    """Follows the pods and plays their attempts.

    Args:
        work: by the first word of an experiment's name (up to "-"), what its attempts do.
        operators: how many there are. Their Service sends a new connection to any of them.
    """

    def __init__(self, work: Mapping[str, Work], operators: int = 1) -> None:
        self._work = work
        self._issuer = TokenIssuer(NAMESPACE, "default", "trialpod.dev")
        self._playing: dict[str, asyncio.Task[None]] = {}  # by the pod's uid
        self._known: dict[str, float] = {}  # uid -> when it was first seen
        self._addresses = itertools.count(1)
        tls = ssl.create_default_context()
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE  # the trial's own client checks it; here it is but processor time
        self.calls = Calls([("127.0.0.1", REPORT_PORT + number) for number in range(operators)], tls)
        self.experiments: defaultdict[str, Seen] = defaultdict(Seen)
        self.problems: list[str] = []

    @property
    def playing(self) -> int:
        """How many attempts are in progress."""
        return len(self._playing)

    async def run(self) -> None:
        """Follow the pods until cancelled."""
        context = ssl.create_default_context(cafile=_file("certificate-authority-data"))
        context.load_cert_chain(_file("client-certificate-data"), _file("client-key-data"))
        connector = aiohttp.TCPConnector(ssl=context, limit=16)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._session = session
            version = ""
            while True:
                try:
                    version = await self._watch(version or await self._list())
                except (aiohttp.ClientError, TimeoutError, ValueError):
                    version = ""
                    await asyncio.sleep(0.2)

    async def _list(self) -> str:
        async with self._session.get(PODS, params={"labelSelector": SELECTOR}) as answer:
            found = await answer.json()
        for pod in found["items"]:
            self._take(pod, deleted=False)
        return str(found["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        query = {"labelSelector": SELECTOR, "watch": "true", "resourceVersion": version, "timeoutSeconds": "600"}
        async with self._session.get(PODS, params=query) as answer:
            rest = b""
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return ""
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._take(event["object"], deleted=event["type"] == "DELETED")
        return version

    def _take(self, pod: Mapping[str, Any], *, deleted: bool) -> None:
        now = time.monotonic()
        uid = pod["metadata"]["uid"]
        if deleted:
            task = self._playing.pop(uid, None)
            if task is not None:
                task.cancel()
            self._known.pop(uid, None)
            return
        seen = self.experiments[pod["metadata"]["labels"][EXPERIMENT_LABEL]]
        if uid not in self._known:
            self._known[uid] = now
            seen.pods += 1
            seen.first_pod = seen.first_pod or now
            if seen.ends:
                seen.to_next_pod.append(now - seen.ends.popleft())
        leaving = "deletionTimestamp" in pod["metadata"]
        if pod["status"].get("phase") == "Running" and uid not in self._playing and not leaving:
            task = self._playing[uid] = asyncio.ensure_future(self._play(pod, seen))
            task.add_done_callback(lambda done: self._over(uid, done))

    def _over(self, uid: str, done: asyncio.Task[None]) -> None:
        self._playing.pop(uid, None)
        error = None if done.cancelled() else done.exception()
        if error is not None:
            self.problems.append(f"{type(error).__name__}: {error}")

    async def _play(self, pod: Mapping[str, Any], seen: Seen) -> None:
        metadata = pod["metadata"]
        labels = metadata["labels"]
        line = Line(self.calls, next(self._addresses), self._issuer.issue(pod))
        work = self._work[labels[EXPERIMENT_LABEL].partition("-")[0]]
        made = self._known.get(metadata["uid"], time.monotonic())
        try:
            came_to_its_end = await play(NAMESPACE, labels, line, work, seen, made)
            seen.finished += came_to_its_end  # in a line of its own: others count while it is awaited
        finally:
            line.close()
        await self._succeeded(metadata["name"])

    async def _succeeded(self, name: str) -> None:
        ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        status = {"phase": "Succeeded", "containerStatuses": [{"name": "trial", "state": ended, **_CONTAINER}]}
        headers = {"Content-Type": "application/merge-patch+json"}
        body = json.dumps({"status": status})
        async with self._session.patch(f"{PODS}/{name}/status", data=body, headers=headers) as answer:
            await answer.read()


_CONTAINER = {"ready": False, "restartCount": 0, "image": "trial:none", "imageID": ""}


def _file(field_name: str) -> str:
    """Return a file with what the administrator's kubeconfig has inside it."""
    config = json.loads(KUBECONFIG.read_text())
    found = {**config["clusters"][0]["cluster"], **config["users"][0]["user"]}
    file = Path(KUBECONFIG).with_name(field_name)
    file.write_bytes(base64.b64decode(found[field_name]))
    return str(file)
