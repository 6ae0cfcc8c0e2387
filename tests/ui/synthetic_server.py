"""A server of the page's interface with invented experiments: what no real run brings about in seconds.

It serves the real static files under the Content-Security-Policy of the real server. Run it by itself to look at the
page: ``python tests/ui/synthetic_server.py``.
"""

from __future__ import annotations

import json
import math
import mimetypes
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

STATIC = Path(__file__).resolve().parents[2] / "operator" / "trialpod_operator" / "ui" / "static"
POLICY = "default-src 'self'"
RUNGS = [1, 3, 9, 27]
EPOCHS = 27
NASTY = '<img src=x onerror="document.title=1"><script>document.title=1</script>'
T0 = 1_790_000_000.0

Json = dict[str, Any]


class Invented:
    """An experiment with `n` trials; `pbt` gives clones instead of rungs, `nasty` names that look like markup."""

    def __init__(self, name: str, n: int, *, running: int = 2, pbt: bool = False, nasty: bool = False) -> None:
        self.name, self.n, self.running, self.pbt, self.nasty = name, n, running, pbt, nasty
        self.cursor = 1
        self.suspended = False
        self.random = random.Random(n)
        self.changed = threading.Condition()
        self.epochs: dict[str, int] = {}
        self.rows = [self._row(number) for number in range(n)]
        self.versions = dict.fromkeys((row["id"] for row in self.rows), 1)

    def _row(self, number: int) -> Json:
        pick = self.random
        optimizer = pick.choice(["adam", "sgd", NASTY if self.nasty else "lamb"])
        config: Json = {
            "lr": 10 ** pick.uniform(-5, -1),
            "optimizer": optimizer,
            "layers": pick.randint(1, 6),
            "dropout": round(pick.uniform(0, 0.6), 3),
            "batch_size": pick.choice([16, 32, 64, 128]),
            "seed": number % 3,
        }
        if optimizer == "sgd":
            config["momentum"] = round(pick.uniform(0.5, 0.99), 3)
        trial = f"trial_{number:05d}"
        epochs = EPOCHS if self.pbt else pick.choices([1, 3, 9, 27], [6, 3, 2, 1])[0]
        state, reason, stopped = "TERMINATED", "It reached its last iteration.", None
        if number >= self.n - self.running:
            state, reason, epochs = "RUNNING", "", pick.randint(1, 12)
        elif number % 41 == 17:
            state, epochs = "ERROR", 1
            reason = NASTY if self.nasty else "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
        elif epochs < EPOCHS:
            stopped = "asha"
            reason = f"ASHA stopped it at rung {epochs}: it was not among the best third there."
        self.epochs[trial] = epochs
        started = T0 + number * (1.5 if self.n > 500 else 14) + pick.random() * 5
        row = {
            "id": trial,
            "number": number,
            "state": state,
            "reason": reason,
            "config": config,
            "started": started,
            "ended": None if state == "RUNNING" else started + 3 + epochs * 2.2,
            "attempts": 2 if number % 13 == 5 else 1,
            "restarts": 1 if number % 13 == 5 else 0,
            "cost": 3 + epochs * 2.2,
            "pruned": bool(stopped),
            "parent": f"trial_{number - 4:05d}" if self.pbt and number % 5 == 4 else None,
        }
        if stopped:
            row["stopped_by"] = stopped
        return row | self._measured(row, epochs)

    def _measured(self, row: Json, epochs: int) -> Json:
        y = self.curve(row, epochs)[1]
        if row["state"] == "ERROR" or row["number"] % 97 == 3:
            return {"metrics": {"accuracy": "NaN", "loss": "NaN"}, "best": "NaN", "iteration": epochs}
        return {"metrics": {"accuracy": y[-1], "loss": 1.3 - y[-1]}, "best": y[-1], "iteration": epochs}

    def curve(self, row: Json, epochs: int) -> tuple[list[int], list[float]]:
        config = row["config"]
        top = 0.97 - 0.045 * abs(math.log10(config["lr"]) + 2.6) ** 1.6 - 0.25 * config["dropout"] ** 2
        top -= {"adam": 0, "sgd": 0.05}.get(config["optimizer"], 0.02) + 0.006 * abs(config["layers"] - 3)
        noise = random.Random(row["number"])
        x = list(range(1, epochs + 1))
        return x, [round(0.1 + (top - 0.1) * (1 - math.exp(-e / 3.2)) + noise.gauss(0, 0.006), 5) for e in x]

    def advance(self) -> None:
        """Let each running trial report again."""
        with self.changed:
            self.cursor += 1
            for row in self.rows[-self.running :]:
                self.epochs[row["id"]] += 1
                row.update(self._measured(row, self.epochs[row["id"]]))
                self.versions[row["id"]] = self.cursor
            self.changed.notify_all()

    @cached_property
    def parameters(self) -> list[Json]:
        return [
            {"name": "lr", "kind": "float", "log": True, "low": 1e-5, "high": 0.1, "choices": None},
            {
                "name": "optimizer",
                "kind": "categorical",
                "log": False,
                "low": None,
                "high": None,
                "choices": ["adam", "sgd"],
            },
            {"name": "layers", "kind": "int", "log": False, "low": 1, "high": 6, "choices": None},
            {"name": "dropout", "kind": "float", "log": False, "low": 0, "high": 0.6, "choices": None},
            {
                "name": "batch_size",
                "kind": "categorical",
                "log": False,
                "low": None,
                "high": None,
                "choices": [16, 32, 64, 128],
            },
            {"name": "seed", "kind": "int", "log": False, "low": 0, "high": 2, "choices": None},
            {"name": "momentum", "kind": "float", "log": False, "low": 0.5, "high": 0.99, "choices": None},
        ]

    def summary(self) -> Json:
        counts: dict[str, int] = {}
        for row in self.rows:
            counts[row["state"]] = counts.get(row["state"], 0) + 1
        best = max(
            (row for row in self.rows if isinstance(row["best"], float)), key=lambda row: row["best"], default=None
        )
        return {
            "id": self.name,
            "name": NASTY if self.nasty else self.name,
            "namespace": None,
            "state": "Suspended" if self.suspended else "Running" if self.running else "Succeeded",
            "reason": NASTY if self.nasty else "Running",
            "trials": self.n,
            "counts": counts,
            "metric": "accuracy",
            "mode": "max",
            "best": best and {"trial": best["id"], "value": best["best"]},
            "started": T0,
            "updated": time.time(),
        }

    def header(self) -> Json:
        summary = self.summary()
        best = summary["best"] and next(row for row in self.rows if row["id"] == summary["best"]["trial"])
        return summary | {
            "sentence": f"{self.running} trials run; {self.n - self.running} of {self.n + 12} have ended.",
            "best": best and summary["best"] | {"iteration": best["iteration"], "config": best["config"]},
            "budget": [
                {"name": "trials", "used": self.n, "limit": self.n + 12, "unit": "trials"},
                {"name": "time", "used": 5400, "limit": 14400, "unit": "s"},
                {"name": "GPU hours", "used": 11.25, "limit": None, "unit": "h"},
            ],
            "estimated_end": time.time() + 1900 if self.running else None,
            "parameters": self.parameters,
            "metrics": ["accuracy", "loss"],
            "rungs": [] if self.pbt else RUNGS,
            "scheduler": "pbt" if self.pbt else "asha",
            "search": "random",
            "version": self.cursor,
            "stale_since": None,
            "damaged": None,
        }

    def trials(self, after: int) -> Json:
        rows = [row for row in self.rows if self.versions[row["id"]] > after]
        return {"cursor": self.cursor, "trials": rows, "whole": False}

    def curves(self, query: dict[str, list[str]]) -> Json:
        after = int((query.get("after") or ["0"])[0] or 0)
        chosen = set(filter(None, (query.get("trials") or [""])[0].split(",")))
        points = int((query.get("points") or ["200"])[0])
        curves = {}
        for row in self.rows:
            if (chosen and row["id"] not in chosen) or self.versions[row["id"]] <= after:
                continue
            x, y = self.curve(row, self.epochs[row["id"]])
            if query.get("metric") == ["loss"]:
                y = [1.3 - value for value in y]
            every: list[float] = x if query.get("x") == ["iteration"] else [3 + 2.2 * value for value in x]
            step = max(1, len(x) // points)
            curves[row["id"]] = {"x": every[::step], "y": y[::step], "full": bool(chosen)}
        return {"cursor": self.cursor, "curves": curves}

    def trial(self, name: str) -> Json:
        row = next(row for row in self.rows if row["id"] == name)
        attempts = [
            {
                "number": number + 1,
                "pod": f"{name}-{number}",
                "node": "node-a",
                "started": row["started"] + number,
                "ended": row["ended"],
                "exit": "preempted: its node was drained" if number < row["attempts"] - 1 else row["reason"],
                "resumed_from": 3 if number else None,
            }
            for number in range(row["attempts"])
        ]
        return {
            "row": row,
            "config": row["config"],
            "attempts": attempts,
            "decisions": [
                {
                    "time": row["started"] + 4 * rung,
                    "iteration": rung,
                    "decision": "continue" if rung < row["iteration"] else "stop",
                    "explanation": f"At rung {rung} its accuracy was {0.5 + rung / 90:.3f}; 0.61 passes.",
                }
                for rung in RUNGS
                if rung <= row["iteration"]
            ],
            "checkpoints": [
                {
                    "iteration": row["iteration"],
                    "size": 18_400_000,
                    "committed": row["started"] + 9,
                    "path": f"{name}/checkpoint_000000",
                }
            ],
            "logs": {
                "where": f"trialpod logs {self.name} {name}",
                "tail": NASTY if self.nasty else "epoch 1 loss 0.81\nepoch 2 loss 0.44\n",
            },
        }

    def timeline(self) -> Json:
        spans = []
        for row in self.rows:
            start, end = row["started"], row["ended"]
            spans.append({"trial": row["id"], "kind": "waiting", "start": start - 6, "end": start, "attempt": 1})
            if row["attempts"] > 1 and end:
                cut = start + (end - start) / 3
                spans += [
                    {"trial": row["id"], "kind": "running", "start": start, "end": cut, "attempt": 1},
                    {"trial": row["id"], "kind": "preempted", "start": cut, "end": cut + 2, "attempt": 1},
                ]
                start = cut + 2
            end = end or self.rows[-1]["started"] + 30
            spans.append(
                {"trial": row["id"], "kind": "running", "start": start, "end": end, "attempt": row["attempts"]}
            )
        clones = [
            {"time": row["started"] + 20, "from": row["parent"], "to": row["id"]}
            for row in self.rows
            if row["parent"]
        ]
        return {"spans": spans, "clones": clones}


class Server(ThreadingHTTPServer):
    """The server; `experiments` by id, `events` counts the open streams, `online` off ends them."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, experiments: list[Invented], port: int = 0, *, actions: bool = False) -> None:
        self.experiments = {each.name: each for each in experiments}
        self.actions = actions
        self.online = True
        self.posted: list[tuple[str, Json]] = []
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    @contextmanager
    def serving(self) -> Iterator[Server]:
        """Answer in a thread until the end of the block."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield self
        self.online = False
        self.shutdown()
        self.server_close()
        thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection is no news."""


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path == "/" or path.startswith("/static/"):
            file = STATIC / (path.removeprefix("/static/") if path != "/" else "index.html")
            if not file.is_file():
                return self._send(b"", "text/plain", 404)
            return self._send(file.read_bytes(), mimetypes.guess_type(file.name)[0] or "text/plain")
        parts = [unquote(part) for part in path.split("/")[2:]]
        if parts == ["session"]:
            return self._json({"token": "t", "user": "you", "actions": self.server.actions})
        if parts == ["experiments"]:
            every = [each.summary() for each in self.server.experiments.values()]
            return self._json({"experiments": every, "actions": self.server.actions})
        experiment = (
            self.server.experiments.get(parts[1]) if parts[:1] == ["experiments"] and len(parts) > 1 else None
        )
        if experiment is None:
            error = {"reason": "NotFound", "message": "There is no such experiment.", "remedy": "trialpod list"}
            return self._json({"error": error}, 404)
        if parts[2:] == ["events"]:
            return self._events(experiment, int((query.get("after") or ["0"])[0] or 0))
        return self._json(self._answer(experiment, parts[2:], query))

    def _answer(self, experiment: Invented, parts: list[str], query: dict[str, list[str]]) -> Any:
        if not parts:
            return experiment.header()
        if parts == ["trials"]:
            return experiment.trials(int((query.get("after") or ["0"])[0] or 0))
        if parts[0] == "trials":
            return experiment.trial(parts[1])
        if parts == ["curves"]:
            return experiment.curves(query)
        if parts == ["timeline"]:
            return experiment.timeline()
        if parts == ["actions"]:
            return [
                {
                    "name": "suspend",
                    "command": f"trialpod suspend {experiment.name}",
                    "allowed": not experiment.suspended,
                    "why_not": "it is suspended already" if experiment.suspended else None,
                },
                {
                    "name": "resume",
                    "command": f"trialpod resume {experiment.name}",
                    "allowed": experiment.suspended,
                    "why_not": None if experiment.suspended else "it is not suspended",
                },
                {
                    "name": "more-samples",
                    "command": f'kubectl patch te {experiment.name} -p \'{{"spec":{{"numSamples":{{samples}}}}}}\'',
                    "allowed": True,
                    "why_not": None,
                    "base": 500,
                },
                {
                    "name": "stop-trial",
                    "command": f"trialpod stop {experiment.name} TRIAL",
                    "allowed": False,
                    "why_not": "You may not change TuneExperiments.",
                },
            ]
        names = [
            ("lr", 0.61),
            ("optimizer", 0.17),
            ("dropout", 0.12),
            ("layers", 0.06),
            ("momentum", 0.03),
            ("batch_size", 0.01),
        ]
        importance = [{"name": name, "value": value} for name, value in names]
        return {"method": "fANOVA", "importance": importance, "trials_used": experiment.n}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.posted.append((urlsplit(self.path).path, body))
        self._json({})

    def _events(self, experiment: Invented, after: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b": here\n\n")
        self.wfile.flush()
        self.close_connection = True
        while self.server.online:
            with experiment.changed:
                experiment.changed.wait_for(
                    lambda seen=after: experiment.cursor > seen or not self.server.online, timeout=1
                )
                if experiment.cursor <= after:
                    continue
                data = experiment.trials(after) | {"header": experiment.header()}
                after = experiment.cursor
            self.wfile.write(b"event: delta\ndata: " + json.dumps(data).encode() + b"\n\n")
            self.wfile.flush()

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.send_header("content-security-policy", POLICY)
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    """Serve some experiments until Ctrl-C."""
    many = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000
    experiments = [
        Invented("digits", 60),
        Invented("large", many),
        Invented("population", 20, running=0, pbt=True),
        Invented("markup", 40, nasty=True),
    ]
    server = Server(experiments, int(sys.argv[1]) if len(sys.argv) > 1 else 8123, actions=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.url, flush=True)
    while True:
        time.sleep(2)
        for experiment in experiments:
            if experiment.running:
                experiment.advance()


if __name__ == "__main__":
    main()
