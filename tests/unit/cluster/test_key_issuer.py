"""Short-lived keys for trials: to whom they are given, what the status says when the store makes none, and where no
secret ever is."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import virtual_time
from cluster_world import World
from fake_pods import Caller
from virtual_time import until

from trialpod.errors import StorageError
from trialpod.protocol.messages import CredentialsAnswer, CredentialsRequest, ErrorAnswer
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import Credentials, Supply
from trialpod.storage.s3.sts import StsRefusedError
from trialpod_operator.api.models import ScopedCredentials
from trialpod_operator.cluster import key_issuer
from trialpod_operator.cluster import kube as paths
from trialpod_operator.cluster.key_issuer import KeyIssuer
from trialpod_operator.reports.service import Reply

SECRETS = ("STRONG-SECRET", "SHORT-SECRET", "SESSION-TOKEN")
STORAGE = {"uri": "s3://bucket/runs", "credentialsSecret": "keys", "scopedCredentials": {}}
Play = Callable[..., None]


class Store:
    """The token service."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.error: StorageError | None = None

    def assume_role(self, options: StorageOptions, credentials: Credentials, policy: str, **more: Any) -> Supply:
        assert credentials.secret_key == "STRONG-SECRET"
        self.calls.append({"options": options, "policy": json.loads(policy), **more})
        if self.error is not None:
            raise self.error
        number = len(self.calls)
        return Supply(Credentials(f"short-{number}", "SHORT-SECRET", "SESSION-TOKEN"), 3600.0)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(key_issuer, "assume_role", made.assume_role)
    return made


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: Store) -> Play:
    """Runs a scenario in a world with one operator, whose namespace has the Secret."""

    def run(scenario: Callable[[World], Awaitable[None]], **options: Any) -> None:
        async def test() -> None:
            world = World(monkeypatch, tmp_path)
            services = world.start_operator().controller.services
            services.options = dataclasses.replace(services.options, **options)
            keys = {"AWS_ACCESS_KEY_ID": "strong", "AWS_SECRET_ACCESS_KEY": "STRONG-SECRET"}
            data = {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}
            await world.client.create(paths.secrets("team"), {"metadata": {"name": "keys"}, "data": data})
            await scenario(world)
            await world.close()

        virtual_time.run(test)

    return run


async def ask(world: World, pod: dict[str, Any], trial_id: str, attempt: int, *, namespace: str = "team") -> Reply:
    caller = Caller(namespace, pod["metadata"]["name"], pod["metadata"]["uid"])
    body = msgspec.msgpack.encode(CredentialsRequest(trial_id=trial_id, attempt=attempt))
    reply = world.operator.service.handle("/v1/team/digits/credentials", body, caller)
    return await reply if isinstance(reply, Awaitable) else reply


def keys_of(reply: Reply) -> CredentialsAnswer:
    assert reply[0] == 200
    return msgspec.msgpack.decode(reply[1], type=CredentialsAnswer)


def running(world: World) -> list[tuple[dict[str, Any], str, int]]:
    """Pods that run, with their trial and attempt."""
    found = []
    for pod in world.pods.live():
        labels = pod["metadata"]["labels"]
        found.append((pod, labels["trialpod.dev/trial-id"], int(labels["trialpod.dev/attempt"])))
    return found


def test_a_pod_gets_keys_to_its_own_trials_checkpoints(play: Play, store: Store) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply(storage=STORAGE)
        await world.until_running(3)
        (pod, trial_id, attempt), (other, other_id, _), *_ = running(world)
        given = keys_of(await ask(world, pod, trial_id, attempt))
        assert (given.secret_key, given.token, given.lifetime_s) == ("SHORT-SECRET", "SESSION-TOKEN", 3600.0)
        call = store.calls[-1]
        (resource,) = call["policy"]["Statement"][0]["Resource"]
        assert resource.startswith("arn:aws:s3:::bucket/runs/digits/train_")
        assert trial_id in resource
        assert resource.endswith("/checkpoint_*")
        assert call["duration_s"] == 3600
        assert call["session"] == "trialpod-team.digits"

        assert (await ask(world, other, trial_id, attempt))[0] == 403
        assert (await ask(world, pod, other_id, 1))[0] == 403
        assert (await ask(world, pod, trial_id, attempt, namespace="other"))[0] == 403
        before = len(store.calls)
        assert "does not run any more" in keys_of(await ask(world, pod, trial_id, attempt + 1)).problem
        assert len(store.calls) == before
        await world.until_over()

    play(scenario)


def test_no_secret_is_in_any_object_request_event_log_or_file(
    play: Play, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    async def scenario(world: World) -> None:
        def note(method: str, path: str, body: Any) -> None:
            if method != "GET":
                seen.append(json.dumps([method, path, body], default=repr))

        world.operator.kube.faults.append(note)  # type: ignore[arg-type]
        world.pods.behaviour.steps = 20
        await world.apply(storage=STORAGE)
        await world.until_running(3)
        volumes = [volume["name"] for pod in world.api.all("pods") for volume in pod["spec"]["volumes"]]
        assert "trialpod-storage" not in volumes
        for pod, trial_id, attempt in running(world):
            assert keys_of(await ask(world, pod, trial_id, attempt)).secret_key
        store.error = StsRefusedError("the store gives none", "AccessDenied")
        pod, trial_id, attempt = running(world)[0]
        assert keys_of(await ask(world, pod, trial_id, attempt)).problem
        await asyncio.sleep(5.0)
        store.error = None
        assert keys_of(await ask(world, pod, trial_id, attempt)).secret_key
        await world.until_over()
        objects = {key: value for key, value in world.api.objects.items() if key[1] != "secrets"}
        places = [*seen, json.dumps(list(objects.values()), default=repr), caplog.text]
        places += [data.decode("utf-8", "replace") for data in world.storage.values.values()]
        assert len(seen) > 10
        for place in places:
            for secret in SECRETS:
                assert secret not in place
                assert base64.b64encode(secret.encode()).decode() not in place

    play(scenario)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (StsRefusedError("http://s3:9000 gives none: HTTP status 404", ""), "without a token service"),
        (StsRefusedError("it gives none: AccessDenied (no)", "AccessDenied"), "must allow sts:AssumeRole"),
        (
            StsRefusedError("it gives none: MissingParameter (RoleArn)", "MissingParameter"),
            "scopedCredentials.roleArn",
        ),
    ],
)
def test_store_without_sts_stalls_with_message_and_remedy(
    play: Play, store: Store, error: StsRefusedError, advice: str
) -> None:
    async def scenario(world: World) -> None:
        store.error = error
        await world.apply(storage=STORAGE)
        await until(lambda: world.condition("Stalled").get("reason") == "ScopedCredentialsRefused")
        message = world.condition("Stalled")["message"]
        assert str(error) in message
        assert advice in message
        assert world.api.all("pods") == []
        store.error = None
        await world.until_over()

    play(scenario)


def test_store_that_stops_issuing_is_reported_at_run_time(play: Play, store: Store) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 60
        await world.apply(storage=STORAGE)
        await world.until_running(3)
        pod, trial_id, attempt = running(world)[0]
        store.error = StsRefusedError("revoked", "AccessDenied")
        assert "revoked" in keys_of(await ask(world, pod, trial_id, attempt)).problem
        await until(lambda: world.condition("Stalled").get("reason") == "ScopedCredentialsRefused", 30.0)
        store.error = StorageUnavailableError("the store is away")
        assert "is away" in keys_of(await ask(world, pod, trial_id, attempt)).problem
        await until(lambda: world.condition("Stalled").get("status") != "True", 30.0)
        store.error = None
        assert keys_of(await ask(world, pod, trial_id, attempt)).secret_key
        await world.until_over()

    play(scenario)


def test_a_service_that_hangs_delays_no_other_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    hung: list[str] = []

    def assume_role(options: StorageOptions, credentials: Any, policy: str, *, session: str, **more: Any) -> Supply:
        if session == "trialpod-team.hangs":
            hung.append(session)
            released.wait(60.0)
            raise StorageUnavailableError("no answer")
        return Supply(Credentials("short", "SHORT-SECRET", "SESSION-TOKEN"), 3600.0)

    monkeypatch.setattr(key_issuer, "assume_role", assume_role)

    def issuer(name: str) -> KeyIssuer:
        options = StorageOptions().resolved({})
        return KeyIssuer(f"team/{name}", f"s3://bucket/{name}", options, ScopedCredentials(), "", lambda: None)

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "strong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "STRONG-SECRET")

    async def scenario() -> None:
        hanging, other = issuer("hangs"), issuer("runs")
        waiting = [asyncio.create_task(hanging.check()) for _ in range(12)]
        await asyncio.sleep(0)
        for _ in range(12):
            await asyncio.wait_for(other.check(), 30.0)
        waiting[0].cancel()
        released.set()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends[1:]} == {StorageUnavailableError}
        assert len(hung) == key_issuer.CALLS_AT_ONCE  # the others do not hang one after the other

    asyncio.run(scenario())


def test_unscoped_pods_mount_the_secret_and_get_no_keys(play: Play, store: Store) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply(storage={"uri": "s3://bucket/runs", "credentialsSecret": "keys"})
        await world.until_running(1)
        pod, trial_id, attempt = running(world)[0]
        assert {"name": "trialpod-storage", "secret": {"secretName": "keys"}} in pod["spec"]["volumes"]
        assert "from a Secret" in keys_of(await ask(world, pod, trial_id, attempt)).problem
        assert store.calls == []
        await world.until_over()

    play(scenario)


def test_an_operator_can_demand_scoped_credentials_of_all(play: Play, store: Store) -> None:
    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply(storage={"uri": "s3://bucket/runs", "credentialsSecret": "keys"})
        await world.until_running(1)
        pod, trial_id, attempt = running(world)[0]
        assert "trialpod-storage" not in [volume["name"] for volume in pod["spec"]["volumes"]]
        assert keys_of(await ask(world, pod, trial_id, attempt)).secret_key == "SHORT-SECRET"
        await world.until_over()

    play(scenario, always_scoped=True)


def test_a_caller_without_an_identity_is_given_no_keys(play: Play) -> None:
    async def scenario(world: World) -> None:
        await world.apply(storage=STORAGE)
        await world.until_running(1)
        body = msgspec.msgpack.encode(CredentialsRequest(trial_id="x_00000", attempt=1))
        status, answer = world.operator.service.handle("/v1/team/digits/credentials", body)  # type: ignore[misc]
        assert status == 404
        assert msgspec.msgpack.decode(answer, type=ErrorAnswer).error == "this service issues no keys for the storage"
        await world.until_over()

    play(scenario)


def test_operators_keys_open_a_prefix_per_namespace(play: Play, store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "AWS_ACCESS_KEY_ID").write_text("own")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text("STRONG-SECRET")

    async def scenario(world: World) -> None:
        world.pods.behaviour.steps = 20
        await world.apply(storage={"uri": "s3://tune/other/x"})
        await until(lambda: world.condition("Stalled").get("reason") == "StorageNotAllowed")
        assert "s3://tune/team" in world.condition("Stalled")["message"]
        await world.change(storage={"uri": "s3://tune/team/x"})
        await world.until_running(1)
        pod, trial_id, attempt = running(world)[0]
        assert keys_of(await ask(world, pod, trial_id, attempt)).secret_key == "SHORT-SECRET"
        assert store.calls[-1]["options"].endpoint == "http://s3:9000"
        assert store.calls[-1]["role_arn"] == ""
        (told,) = world.api.all("configmaps")
        assert "s3://tune/team" in told["metadata"]["annotations"]["trialpod.dev/default-storage"]
        await world.until_over()

    from trialpod_operator.api.models import StorageSpec

    default = StorageSpec(uri="s3://tune/{namespace}", endpoint="http://s3:9000")
    play(scenario, default_storage=default, storage_keys_dir=str(folder))
