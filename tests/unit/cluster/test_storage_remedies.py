"""What keeps an experiment from its storage: the mistake, what is said of it, the remedy, and how it continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster_world import Play, World, manifest
from virtual_time import until

from trialpod.storage.s3.credentials import Credentials, Supply
from trialpod_operator.api.models import StorageSpec
from trialpod_operator.cluster import key_issuer
from trialpod_operator.cluster import kube as paths

pytestmark = pytest.mark.once

MINE = {"uri": "s3://bucket/runs"}


@pytest.fixture(autouse=True)
def _token_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives keys."""
    made = Supply(Credentials("short", "secret", "token"), 3600.0)
    monkeypatch.setattr(key_issuer, "assume_role", lambda *_, **__: made)


async def until_stalled(world: World, reason: str) -> str:
    """Return what an experiment says of the reason for which it is stalled."""
    await until(lambda: world.condition("Stalled").get("reason") == reason, 30.0, f"it says {reason}")
    assert not world.api.all("pods")
    assert [each["message"] for each in world.api.all("events") if each["reason"] == "Stalled"]
    return str(world.condition("Stalled")["message"])


async def apply_without(world: World) -> None:
    body = manifest()
    del body["spec"]["storage"]
    await world.client.create(paths.experiments("team"), body)


async def keys(world: World) -> None:
    data = {"AWS_ACCESS_KEY_ID": "a2V5", "AWS_SECRET_ACCESS_KEY": "c2VjcmV0"}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "team"}, "data": data}
    await world.client.create("/api/v1/namespaces/team/secrets", body)


async def succeeds(world: World) -> None:
    await world.until_over()
    assert world.condition("Succeeded")["status"] == "True"
    assert world.condition("Stalled").get("status") != "True"


def test_missing_storage_is_named_in_the_same_experiment(play: Play) -> None:
    async def scenario(world: World) -> None:
        await apply_without(world)
        assert 'storage: {uri: "s3://bucket/prefix"' in await until_stalled(world, "StorageMissing")
        await world.change(storage=MINE)
        await succeeds(world)

    play(scenario)


def test_missing_storage_is_the_operators_default(play: Play) -> None:
    async def scenario(world: World) -> None:
        await apply_without(world)
        await until_stalled(world, "StorageMissing")
        world.options = {"default_storage": StorageSpec(uri="s3://bucket/runs")}
        await world.replace_operator()
        await succeeds(world)

    play(scenario)


class TestChangedDefault:
    """The operator's default storage changes while an experiment runs that names none."""

    @pytest.mark.parametrize("other", [StorageSpec(uri="s3://bucket/others"), None], ids=["another", "none"])
    def test_says_where_the_experiment_is_kept(self, play: Play, other: StorageSpec | None) -> None:
        async def scenario(world: World) -> None:
            await self.begin(world)
            world.options = {"default_storage": other} if other is not None else {}
            await world.replace_operator()
            message = await self.until_stalled(world, "StorageMoved")
            assert "kept at s3://bucket/runs/digits" in message
            assert f"default storage is {other.uri if other is not None else 'none'} now" in message
            assert "removed" not in message
            assert "delete" not in message
            assert not [key for key in world.storage.values if "others" in key]
            world.options = {"default_storage": StorageSpec(uri="s3://bucket/runs")}
            await world.replace_operator()
            await world.until_over()
            assert world.condition("Succeeded")["status"] == "True"
            world.check_results()

        play(scenario)

    def test_is_named_where_only_the_server_is_another(self, play: Play) -> None:
        async def scenario(world: World) -> None:
            await self.begin(world)
            world.storage.values.clear()  # that server has none of it
            await world.replace_operator()
            message = await self.until_stalled(world, "StorageEmptied")
            assert "If the chart's defaults.storage was changed" in message
            world.pods.problems.clear()
            world.pods.safe.clear()

        play(scenario)

    async def begin(self, world: World) -> None:
        world.options = {"default_storage": StorageSpec(uri="s3://bucket/runs")}
        await world.replace_operator()
        await apply_without(world)
        await world.until_running()
        await until(lambda: bool(world.status.get("startTime")), what="it is reported")
        await world.operator.close()

    async def until_stalled(self, world: World, reason: str) -> str:
        await until(lambda: bool(world.condition("Stalled")), 60.0, "it is reported")
        assert world.condition("Stalled")["reason"] == reason
        return str(world.condition("Stalled")["message"])


@pytest.mark.parametrize(
    ("reason", "storage", "remedy"),
    [
        ("ScopedCredentialsNeedSecret", {**MINE, "scopedCredentials": {}}, {"credentialsSecret": "keys"}),
        ("ScopedCredentialsNeedSecret", {**MINE, "scopedCredentials": {}}, {"scopedCredentials": None}),
        (
            "ScopedCredentialsImpossible",
            {"uri": "s3://bucket/runs*", "scopedCredentials": {}, "credentialsSecret": "keys"},
            {"uri": "s3://bucket/runs"},
        ),
        (
            "ScopedCredentialsImpossible",
            {"uri": "s3://bucket/runs*", "scopedCredentials": {}, "credentialsSecret": "keys"},
            {"scopedCredentials": None},
        ),
    ],
)
def test_what_scoped_keys_lack_is_corrected(
    play: Play, reason: str, storage: dict[str, Any], remedy: dict[str, Any]
) -> None:
    async def scenario(world: World) -> None:
        await keys(world)
        await world.apply(storage=storage)
        message = await until_stalled(world, reason)
        assert next(iter(remedy)) in message or remedy["uri"] in message
        await world.change(storage=remedy)
        await succeeds(world)

    play(scenario)


def test_keys_that_the_operator_lacked_are_found(play: Play, tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.options = {
            "default_storage": StorageSpec(uri="s3://bucket/{namespace}"),
            "storage_keys_dir": str(tmp_path),
        }
        await world.replace_operator()
        (tmp_path / "AWS_ACCESS_KEY_ID").write_text("key")
        await apply_without(world)
        message = await until_stalled(world, "OperatorKeysMissing")
        assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY have to be in its Secret" in message
        (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("secret")
        await succeeds(world)

    play(scenario)
