"""The real client of a trial's pod against the real report server over TLS: who may say what, and what time heals.

Stand-ins: the API server that reviews tokens, and the experiment behind the service. The client's `sleep` is where
the world changes while an attempt waits for its next try.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from trialpod.errors import StorageError
from trialpod.protocol.attempt_link import AttemptLink, Superseded
from trialpod.protocol.client import RefusedError, ReportClient
from trialpod.protocol.http import Connection, TransportError
from trialpod.protocol.messages import (
    MAX_RESULT_BYTES,
    Assignment,
    AssignmentAnswer,
    AssignmentRequest,
    AttemptEnd,
    ReportAnswer,
    ReportRequest,
    TrainableRef,
)
from trialpod_operator.cluster.identity.certificates import (
    BUNDLE,
    SERVER_CERTIFICATE,
    SERVER_KEY,
    Rotation,
    plan_rotation,
    ssl_context,
)
from trialpod_operator.cluster.identity.reviewer import Gate, TokenReviewer
from trialpod_operator.engine.events import AnyEvent, AttemptEnded, ResultsReceived
from trialpod_operator.experiment.durable import NotReadyError
from trialpod_operator.reports.rate import Rate, RateLimiter
from trialpod_operator.reports.server import Limits, ReportServer
from trialpod_operator.reports.service import Caller, ReportService, Served

_T = TypeVar("_T")
NAMES = ["127.0.0.1", "localhost"]


def encoded(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@dataclasses.dataclass(frozen=True)
class Pod:
    """Who calls."""

    namespace: str
    pod_name: str
    pod_uid: str


class ApiServer:
    """Issues tokens and reviews them."""

    def __init__(self) -> None:
        self._issued: dict[str, tuple[str, str, str]] = {}
        self.reviews = 0
        self.down = 0

    def issue(self, pod: str, *, namespace: str = "team", valid_s: float = 3600.0) -> str:
        claims = {"aud": ["trialpod.dev"], "exp": time.time() + valid_s, "jti": len(self._issued)}
        token = f"{encoded({'alg': 'RS256'})}.{encoded(claims)}.{encoded(b'signature')}"
        self._issued[token] = (namespace, pod, f"uid-of-{pod}")
        return token

    def revoke(self, token: str) -> None:
        del self._issued[token]

    async def review(self, token: str) -> Mapping[str, Any]:
        self.reviews += 1
        if self.down > 0:
            self.down -= 1
            raise ConnectionError("the API server is away")
        if token not in self._issued:
            return {"authenticated": False, "error": "invalid bearer token"}
        namespace, pod, uid = self._issued[token]
        extra = {"authentication.kubernetes.io/pod-name": [pod], "authentication.kubernetes.io/pod-uid": [uid]}
        user = {"username": f"system:serviceaccount:{namespace}:default", "extra": extra}
        return {"authenticated": True, "audiences": ["trialpod.dev"], "user": user}


class Experiment:
    """Results by trial; each trial belongs to one pod. Lives in the server's loop."""

    def __init__(self) -> None:
        self.pods = {"t_1": "uid-of-one", "t_2": "uid-of-two"}
        self.results: dict[str, list[Any]] = {"t_1": [], "t_2": []}
        self.ended: list[str] = []
        self.assigned: list[str] = []
        self.while_it_waits: Callable[[], None] | None = None  # work is given only after that
        self.not_ready = 0
        self.commits: list[BaseException | None] = []  # what becomes of the next ones; None is well
        self.committing = 0

    def apply(self, event: AnyEvent) -> None:
        if isinstance(event, ResultsReceived):
            known = self.results[event.trial_id]
            known += [msgspec.msgpack.decode(raw) for raw in event.results[len(known) + 1 - event.first :]]
        elif isinstance(event, AttemptEnded):
            self.ended.append(event.trial_id)

    def received(self, trial_id: str, attempt: int) -> int:
        return len(self.results[trial_id])

    def answer(self, trial_id: str, attempt: int) -> ReportAnswer:
        return ReportAnswer(received=len(self.results[trial_id]))

    def attempt_ended(self, trial_id: str, attempt: int, end: AttemptEnd) -> AttemptEnd:
        return end

    def assign(self, request: AssignmentRequest) -> AssignmentAnswer | Awaitable[AssignmentAnswer]:
        return self._work(request) if self.while_it_waits is None else self._wait(self.while_it_waits, request)

    async def _wait(self, meanwhile: Callable[[], None], request: AssignmentRequest) -> AssignmentAnswer:
        await asyncio.sleep(0)
        meanwhile()
        return self._work(request)

    def _work(self, request: AssignmentRequest) -> AssignmentAnswer:
        self.assigned.append(request.runner)
        trial_id = request.runner.partition("/")[0]
        assignment = Assignment(
            trial_id=trial_id,
            attempt=1,
            trial_name="train",
            experiment="digits",
            experiment_tag="",
            trial_dir="/trialpod/t",
            params=msgspec.Raw(b"\x80"),
            trainable=TrainableRef(source=""),
        )
        return AssignmentAnswer(assignment=assignment)

    def permits(self, caller: Caller, trial_id: str) -> str:
        if self.not_ready > 0:
            self.not_ready -= 1
            raise NotReadyError("the experiment is being loaded")
        owner = self.pods.get(trial_id)
        return "" if owner == caller.pod_uid else f"pod {caller.pod_name} does not run trial {trial_id}"

    def require_fencing_check(self) -> None:
        """Only this process knows the experiment."""

    def undecided(self) -> None:
        return None

    def committed(self) -> Awaitable[None] | None:
        return self._commit(self.commits.pop(0)) if self.commits else None

    async def _commit(self, outcome: BaseException | None) -> None:
        self.committing += 1
        await asyncio.sleep(0)
        self.committing -= 1
        if outcome is not None:
            raise outcome


class World:
    """A server in a thread of its own, and the files in the pods."""

    def __init__(
        self, folder: Path, name: str = "digits", limits: Limits | None = None, rate: Rate | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self.api = ApiServer()
        self.experiment = Experiment()
        self.now = 0.0
        self.on_sleep: Callable[[], None] = lambda: None
        self.naps: list[float] = []
        self.made = plan_rotation({}, NAMES, time.time())
        self.ca_file = folder / "ca.crt"
        self.ca_file.write_bytes(self.made.data[BUNDLE])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        limiter = RateLimiter(rate, clock=lambda: self.now) if rate is not None else None
        self.gate = Gate(ReportService(self), TokenReviewer(self.api.review), limiter)
        self.server, self.port = self.call(self._start(limits))

    def find(self, name: str) -> Served | None:
        return Served(self.experiment, self.experiment) if name == f"team/{self.name}" else None

    async def _start(self, limits: Limits | None) -> tuple[ReportServer, int]:
        server = ReportServer(self.gate, limits)
        _, port = await server.start_tcp("127.0.0.1", 0, self.context(self.made))
        return server, port

    @staticmethod
    def context(rotation: Rotation) -> Any:
        return ssl_context(rotation.data[SERVER_CERTIFICATE], rotation.data[SERVER_KEY])

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(90)

    def close(self) -> None:
        self.call(self.server.close(grace_s=0.1))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def address(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def token_file(self, token: str) -> Path:
        new = self.folder / "token.new"
        new.write_text(token)
        return new.rename(self.folder / "token")

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds
        self.on_sleep()

    def client(self, token: str, experiment: str | None = None) -> ReportClient:
        return ReportClient(
            self.address,
            experiment or f"team/{self.name}",
            token_file=str(self.token_file(token)),
            ca_file=str(self.ca_file),
            clock=lambda: self.now,
            sleep=self.sleep,
            uniform=lambda: 0.0,
        )

    def link(self, client: ReportClient, trial_id: str = "t_1") -> AttemptLink:
        return AttemptLink(client, trial_id, 1)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with opened(tmp_path) as made:
        yield made


@contextlib.contextmanager
def opened(folder: Path, **options: Any) -> Iterator[World]:
    made = World(folder, **options)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def connected(world: World, token: str, experiment: str | None = None) -> Iterator[ReportClient]:
    client = world.client(token, experiment)
    try:
        yield client
    finally:
        client.close()


def report(link: AttemptLink, *values: int) -> None:
    for value in values:
        link.publish(msgspec.msgpack.encode(value), wake=False)
    assert link.wait_decision() is None


def test_a_pod_reports_over_tls_and_is_reviewed_once(world: World) -> None:
    with connected(world, world.api.issue("one")) as client:
        assigned = client.assignment(AssignmentRequest(runner="t_1/1", pid=7, hostname="h")).assignment
        assert assigned is not None
        link = world.link(client)
        for value in range(20):
            report(link, value)
        link.finish(AttemptEnd(cause="completed"))
    assert world.experiment.results["t_1"] == list(range(20))
    assert world.experiment.ended == ["t_1"]
    assert world.api.reviews == 1


def test_a_token_that_is_not_accepted_is_read_again_until_it_is(world: World) -> None:
    forged = f"{encoded({'alg': 'RS256'})}.{encoded({'aud': ['trialpod.dev'], 'exp': time.time() + 60})}.c2ln"

    def rotate() -> None:
        if len(world.naps) == 3:
            world.token_file(world.api.issue("one"))

    world.on_sleep = rotate
    with connected(world, forged) as client:
        report(world.link(client), 1)
    assert len(world.naps) == 3
    assert world.experiment.results["t_1"] == [1]


def test_an_expired_token_is_never_reviewed(world: World) -> None:
    world.on_sleep = lambda: world.token_file(world.api.issue("one")) and None
    with connected(world, world.api.issue("one", valid_s=-5)) as client:
        report(world.link(client), 1)
    assert (world.api.reviews, world.experiment.results["t_1"]) == (1, [1])


def test_a_rotated_token_is_used_from_the_next_call_on(world: World) -> None:
    first = world.api.issue("one")
    with connected(world, first) as client:
        link = world.link(client)
        report(link, 1)
        world.token_file(world.api.issue("one"))
        world.api.revoke(first)
        report(link, 2)
    assert (world.naps, world.api.reviews) == ([], 2)


def test_the_pod_of_another_trial_ends_as_if_superseded(world: World) -> None:
    with connected(world, world.api.issue("two")) as client:
        link = world.link(client, "t_1")
        link.publish(b"\x01", wake=False)
        with pytest.raises(Superseded, match="pod two does not run trial t_1"):
            link.finish(AttemptEnd(cause="completed"))
    assert (world.experiment.results["t_1"], world.experiment.ended) == ([], [])


@pytest.mark.parametrize(
    ("runner", "status", "words"),
    [
        ("t_2/1", 403, "pod one does not run trial t_2"),
        ("t_9/1", 403, "pod one does not run trial t_9"),
        ("t_1", 400, "not of the form trial/attempt"),
        ("t_1/x", 400, "not of the form trial/attempt"),
        ("/1", 400, "not of the form trial/attempt"),
    ],
)
def test_a_pod_gets_no_work_in_the_name_of_another(world: World, runner: str, status: int, words: str) -> None:
    with connected(world, world.api.issue("one")) as client, pytest.raises(RefusedError, match=words) as refused:
        client.assignment(AssignmentRequest(runner=runner, pid=7, hostname="h"))
    assert refused.value.status == status
    assert world.experiment.assigned == []


def test_a_pod_that_was_replaced_while_it_waited_gets_no_work(world: World) -> None:
    world.experiment.while_it_waits = lambda: world.experiment.pods.update(t_1="uid-of-its-successor")
    with connected(world, world.api.issue("one")) as client, pytest.raises(RefusedError, match="does not run trial"):
        client.assignment(AssignmentRequest(runner="t_1/1", pid=7, hostname="h"))
    assert world.experiment.assigned == ["t_1/1"]


def test_current_pod_gets_the_assignment_it_waited_for(world: World) -> None:
    world.experiment.while_it_waits = lambda: None
    with connected(world, world.api.issue("one")) as client:
        answer = client.assignment(AssignmentRequest(runner="t_1/1", pid=7, hostname="h"))
    assert answer.assignment is not None
    assert answer.assignment.trial_id == "t_1"


@pytest.mark.parametrize("experiment", ["team/digits", "team/secret", "digits", "team/digits/x"])
def test_a_pod_of_another_namespace_learns_nothing(world: World, experiment: str) -> None:
    token = world.api.issue("one", namespace="other")
    with connected(world, token, experiment) as client:
        link = world.link(client)
        link.publish(b"\x01", wake=False)
        with pytest.raises(Superseded, match="in namespace other and may report only there"):
            link.wait_decision()


def test_a_call_without_a_token_is_refused(world: World) -> None:
    connection = Connection(world.address, ca_file=str(world.ca_file))
    status, body = connection.post("/v1/team/digits/report", b"\x80")
    connection.close()
    assert status == 401
    assert "no Authorization header" in msgspec.msgpack.decode(body)["error"]
    assert world.api.reviews == 0


def test_an_api_server_or_experiment_that_is_away_only_delays(world: World) -> None:
    world.api.down = 2
    world.experiment.not_ready = 2
    with connected(world, world.api.issue("one")) as client:
        report(world.link(client), 1)
    assert len(world.naps) == 4
    assert world.experiment.results["t_1"] == [1]


def test_answer_waits_for_commit_and_failed_commit_is_retried(world: World) -> None:
    world.experiment.commits = [StorageError("no route to the store"), None, None, None]
    with connected(world, world.api.issue("one")) as client:
        link = world.link(client)
        report(link, 1, 2)
        link.finish(AttemptEnd(cause="completed"))
        assert len(world.naps) == 1
    assert world.experiment.results["t_1"] == [1, 2]


def test_a_new_authority_is_followed_by_a_running_pod(world: World) -> None:
    old, new = world.made.data, plan_rotation({}, NAMES, time.time())

    def publish() -> None:
        if len(world.naps) == 2:
            world.ca_file.write_bytes(old[BUNDLE] + new.data[BUNDLE])

    world.on_sleep = publish
    with connected(world, world.api.issue("one")) as client:
        link = world.link(client)
        report(link, 1)
        world.call(replace(world, new))
        report(link, 2)
        assert world.naps == [], "a connection that stands is not touched"
        client.close()
        report(link, 3)
        assert len(world.naps) == 2, "the old bundle does not verify the new authority's certificate"
        world.call(replace(world, world.made))
        client.close()
        report(link, 4)
        assert len(world.naps) == 2, "both are in the bundle"
    assert world.experiment.results["t_1"] == [1, 2, 3, 4]


async def replace(world: World, rotation: Rotation) -> None:
    world.server.replace_tls(world.context(rotation))


def test_a_server_of_another_authority_gets_no_token(world: World, tmp_path: Path) -> None:
    world.ca_file.write_bytes(plan_rotation({}, NAMES, time.time()).data[BUNDLE])
    with (
        connected(world, world.api.issue("one")) as client,
        pytest.raises(TransportError, match="CERTIFICATE_VERIFY"),
    ):
        client.call("report", b"\x80", bytes)
    assert world.api.reviews == 0


def test_a_report_over_the_limit_ends_with_the_servers_words(tmp_path: Path) -> None:
    with (
        opened(tmp_path, limits=Limits(body_bytes=100_000)) as world,
        connected(world, world.api.issue("one")) as client,
    ):
        link = world.link(client)
        link.publish(msgspec.msgpack.encode(b"x" * 3_000_000), wake=False)
        with pytest.raises(RefusedError, match=r"over the limit of 100000 bytes.*put large data into a checkpoint"):
            link.wait_decision()
    assert world.naps == []


def test_a_pod_that_calls_too_often_waits_for_retry_after(tmp_path: Path) -> None:
    with (
        opened(tmp_path, rate=Rate(per_s=0.25, burst=2.0)) as world,
        connected(world, world.api.issue("one")) as client,
    ):
        link = world.link(client)
        for value in range(4):
            report(link, value)
        assert world.naps == [4.0, 4.0]
        with connected(world, world.api.issue("two")) as other:
            report(world.link(other, "t_2"), 1)
        assert len(world.naps) == 2
    assert world.experiment.results["t_1"] == [0, 1, 2, 3]


def test_a_name_that_has_to_be_escaped_arrives_whole(tmp_path: Path) -> None:
    with (
        opened(tmp_path, name="ziffern äöü 100%") as world,
        connected(world, world.api.issue("one")) as client,
    ):
        report(world.link(client), 1)
        assert world.experiment.results["t_1"] == [1]


def test_unfinished_handshakes_are_dropped_and_counted(tmp_path: Path) -> None:
    async def silent(world: World) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        other, third = [await asyncio.open_connection("127.0.0.1", world.port) for _ in range(2)]
        with contextlib.suppress(ConnectionError):
            assert await third[0].read() == b"", "one too many is turned away at once"
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        for one in (writer, other[1], third[1]):
            one.close()

    limits = Limits(handshake_s=0.2, connections_per_address=2)
    with opened(tmp_path, limits=limits) as world:
        world.call(silent(world))
        with connected(world, world.api.issue("one")) as client:
            report(world.link(client), 1)


class TestResultSize:
    @pytest.mark.parametrize(("extra", "status"), [(0, 200), (1, 413)])
    def test_limit_of_one_result_holds(self, world: World, extra: int, status: int) -> None:
        body = msgspec.msgpack.encode(b"x" * (MAX_RESULT_BYTES - 5 + extra))
        request = ReportRequest(trial_id="t_1", attempt=1, first=1, results=[msgspec.Raw(body)])
        caller = Pod("team", "one", "uid-one")
        world.experiment.pods["t_1"] = caller.pod_uid
        reply = world.gate._service.handle("/v1/team/digits/report", msgspec.msgpack.encode(request), caller)
        assert isinstance(reply, tuple)
        assert reply[0] == status


class TestForeignExperiment:
    """A pod calls in the name of another experiment of its namespace."""

    def test_is_refused_for_good(self) -> None:
        class Experiments:
            def find(self, name: str) -> Any:
                raise NotReadyError(f"experiment {name} is not open at the moment")

            def experiment_of(self, caller: Caller) -> str:
                return "team/digits" if caller.pod_uid == "1" else ""

        service = ReportService(Experiments())
        body = msgspec.msgpack.encode(ReportRequest(trial_id="t_1", attempt=1))

        def status(name: str, uid: str) -> int:
            reply = service.handle(f"/v1/team/{name}/report", body, Pod("team", "one", uid))
            assert isinstance(reply, tuple)
            return reply[0]

        assert status("other", "1") == 403
        assert status("digits", "1") == 503
        assert status("other", "2") == 503
