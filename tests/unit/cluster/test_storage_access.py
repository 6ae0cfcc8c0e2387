"""Which keys open an experiment's storage, for the operator and for pods."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_objects import experiment

from trialpod.errors import InvalidInputError
from trialpod_operator.api.models import ScopedCredentials, StorageSpec
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.options import OperatorOptions
from trialpod_operator.cluster.storage_access import (
    StorageProblemError,
    StorageRules,
    location,
    with_storage,
)

FILES = {"AWS_ACCESS_KEY_ID": b"key", "AWS_SECRET_ACCESS_KEY": b"secret", "ca.crt": b"-- an authority --"}
OWN = StorageRules(
    default=StorageSpec(uri="s3://tune/{namespace}", endpoint="http://s3:9000"),
    keys_dir="/keys",
    scoped=ScopedCredentials(role_arn="arn:aws:iam::1:role/all"),
)


def test_pods_with_short_lived_keys_get_ca_but_no_files() -> None:
    storage = {"uri": "s3://b/p", "endpoint": "https://s3", "credentialsSecret": "k", "scopedCredentials": {}}
    found = location(experiment(storage=storage), Path("/copy"), FILES, StorageRules())
    assert found.scoped == ScopedCredentials()
    assert (found.own.credentials_dir, found.own.ca_file) == ("/copy", "/copy/ca.crt")
    assert (found.pods.credentials_from, found.pods.credentials_dir, found.pods.credentials_file) == (
        "reports",
        "",
        "",
    )
    assert (found.pods.ca_pem, found.pods.ca_file) == ("-- an authority --", "")


def test_without_them_pods_read_the_mounted_secret() -> None:
    found = location(
        experiment(storage={"uri": "s3://b/p", "credentialsSecret": "k"}), Path("/c"), FILES, StorageRules()
    )
    assert found.scoped is None
    assert found.pods.credentials_dir == "/var/run/trialpod-storage"
    assert found.pods.ca_file == "/var/run/trialpod-storage/ca.crt"


def test_short_lived_keys_need_keys_of_the_users_to_be_made_from() -> None:
    wanted = experiment(storage={"uri": "s3://b/p", "scopedCredentials": {}})
    with pytest.raises(StorageProblemError, match=r"needs spec\.storage\.credentials"):
        with_storage(wanted, "team", StorageRules())


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("s3://tune/team", True),
        ("s3://tune/team/", True),
        ("s3://tune/team/mine", True),
        ("s3://tune/team-b/mine", False),
        ("s3://tune/teams", False),
        ("s3://tune", False),
        ("s3://other/team", False),
        ("s3://tune/{namespace}", False),
    ],
)
def test_the_operators_own_keys_open_only_the_namespaces_prefix(uri: str, allowed: bool) -> None:
    wanted = experiment(storage={"uri": uri})
    if allowed:
        storage = with_storage(wanted, "team", OWN).spec.storage
        assert storage is not None
        assert storage.endpoint == "http://s3:9000"
    else:
        with pytest.raises(StorageProblemError, match="open only s3://tune/team"):
            with_storage(wanted, "team", OWN)


def pickled(uri: str) -> dict[str, str]:
    return {"uri": uri, "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("s3://tune/team/digits/.trialpod/trainable-0.pkl", True),
        ("s3://tune/team/shared/code.pkl", True),
        ("s3://tune/b/exp/.trialpod/x", False),
        ("s3://tune/teams/x", False),
        ("s3://tune/team", False),
        ("s3://tune/team/../b/exp/x", False),
        ("s3://tune/team//x", False),
        ("s3://tune/team/x?endpoint_override=mine", False),
        ("s3://other/team/digits/x", False),
    ],
)
def test_operators_keys_open_pickles_of_the_namespace_only(uri: str, allowed: bool) -> None:
    for storage in (None, {"uri": "s3://tune/team/mine"}):
        wanted = experiment(trainable={"pickle": pickled(uri)}, **({"storage": storage} if storage else {}))
        if allowed:
            assert with_storage(wanted, "team", OWN).spec.trainable.pickle is not None
            continue
        with pytest.raises(StorageProblemError, match=r"trainable\.pickle\.uri .* below s3://tune/team") as caught:
            with_storage(wanted, "team", OWN)
        assert caught.value.reason == Reason.STORAGE_NOT_ALLOWED


def test_own_keys_open_a_pickle_anywhere() -> None:
    wanted = experiment(
        trainable={"pickle": pickled("s3://code/x")}, storage={"uri": "s3://b/p", "credentialsSecret": "k"}
    )
    assert with_storage(wanted, "team", OWN) is wanted


@pytest.mark.parametrize("secret", [{}, {"credentialsSecret": "mine"}])
def test_no_manifest_moves_a_bucket_to_another_server(secret: dict[str, str]) -> None:
    """The server in a URI's query would hold for all experiments of that bucket."""
    wanted = experiment(storage={"uri": "s3://tune/team/?endpoint=http://mine&region=x", **secret})
    with pytest.raises(StorageProblemError, match=r"spec\.storage\.endpoint") as caught:
        with_storage(wanted, "team", OWN)
    assert caught.value.reason == Reason.INVALID_SPEC


def test_default_storage_is_the_namespaces_prefix() -> None:
    storage = with_storage(experiment(), "team", OWN).spec.storage
    assert storage is not None
    assert storage.uri == "s3://tune/team"


def test_operators_keys_go_to_no_other_server_or_role() -> None:
    with pytest.raises(StorageProblemError, match="are for http://s3:9000"):
        with_storage(experiment(storage={"uri": "s3://tune/team", "endpoint": "http://mine"}), "team", OWN)
    role = {"roleArn": "arn:aws:iam::1:role/admin", "stsEndpoint": "http://mine"}
    wanted = with_storage(experiment(storage={"uri": "s3://tune/team", "scopedCredentials": role}), "team", OWN)
    assert OWN.scoped_for(wanted.spec.storage) == OWN.scoped


def test_a_secret_of_the_users_is_used_wherever_it_is_for() -> None:
    storage = {"uri": "s3://else/x", "credentialsSecret": "mine"}
    assert with_storage(experiment(storage=storage), "team", OWN).spec.storage is not None
    assert OWN.scoped_for(StorageSpec(uri="s3://else/x", credentials_secret="mine")) is None


def test_contradictory_operator_settings_are_refused() -> None:
    base = {"TRIALPOD_DEFAULT_STORAGE_URI": "s3://tune/{namespace}", "TRIALPOD_STORAGE_KEYS_DIR": "/keys"}
    found = OperatorOptions.from_environment(base)
    assert (found.storage_keys_dir, found.always_scoped) == ("/keys", False)
    assert found.pod_options.storage == found.storage_rules
    with pytest.raises(InvalidInputError, match="another's data"):
        OperatorOptions.from_environment({**base, "TRIALPOD_DEFAULT_STORAGE_URI": "s3://tune/all"})
    with pytest.raises(InvalidInputError, match="not both"):
        OperatorOptions.from_environment({**base, "TRIALPOD_DEFAULT_STORAGE_SECRET": "k"})
    with pytest.raises(InvalidInputError, match="allowed or required"):
        OperatorOptions.from_environment({"TRIALPOD_SCOPED_CREDENTIALS": "yes"})
    with pytest.raises(InvalidInputError, match="15m to 12h"):
        OperatorOptions.from_environment({"TRIALPOD_STS_DURATION": "5m"})
    demanded = OperatorOptions.from_environment(
        {"TRIALPOD_SCOPED_CREDENTIALS": "required", "TRIALPOD_STS_ROLE_ARN": "arn:aws:iam::1:role/t"}
    )
    assert demanded.always_scoped
    assert demanded.scoped.role_arn == "arn:aws:iam::1:role/t"
