"""What the keys of one attempt may do."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

import pytest

from trialpod.errors import InvalidInputError
from trialpod_operator.cluster.key_issuer import session_policy

TRIAL = "s3://tune/team/digits/train_1"


def allowed(policy: str, action: str, key: str, bucket: str = "tune") -> bool:
    """Judge as an S3 server does; for lists, `key` is the prefix that is asked for."""
    for statement in json.loads(policy)["Statement"]:
        arn = f"arn:aws:s3:::{bucket}" + ("" if action.startswith("s3:ListBucket") else f"/{key}")
        prefixes = (statement.get("Condition") or {}).get("StringLike", {}).get("s3:prefix", ["*"])
        if (
            action in statement["Action"]
            and any(fnmatchcase(arn, each) for each in statement["Resource"])
            and any(fnmatchcase(key, each) for each in prefixes)
        ):
            return True
    return False


def can(policy: str, key: str, bucket: str = "tune") -> str:
    """Return r, w, d and l for what may be done with a key."""
    actions = {"r": "s3:GetObject", "w": "s3:PutObject", "d": "s3:DeleteObject", "l": "s3:ListBucket"}
    return "".join(letter for letter, action in actions.items() if allowed(policy, action, key, bucket))


@pytest.mark.parametrize(
    ("key", "permissions"),
    [
        ("team/digits/train_1/checkpoint_000001/model", "rwdl"),
        ("team/digits/train_1/", "l"),
        ("team/digits/train_1/result.json", "l"),
        ("team/digits/train_10/checkpoint_000001/model", ""),
        ("team/digits/train_2/checkpoint_000001/model", ""),
        ("team/digits/.trialpod/journal/1", ""),
        ("team/digits/.trialpod/experiment.json", "l"),
        ("team/digits/.trialpod/", ""),
        ("team/digits/", ""),
        ("team/other/train_1/checkpoint_000001/model", ""),
        ("", ""),
    ],
)
def test_a_trial_reaches_its_own_checkpoints_and_nothing_else(key: str, permissions: str) -> None:
    assert can(session_policy(TRIAL), key) == permissions


def test_trial_started_from_another_reads_its_checkpoints() -> None:
    policy = session_policy(TRIAL, "s3://tune/team/digits/train_2")
    assert can(policy, "team/digits/train_2/checkpoint_000001/model") == "rl"
    assert can(policy, "team/digits/train_2/result.json") == "l"
    assert can(policy, "team/digits/train_3/checkpoint_000001/model") == ""


def test_the_code_can_be_read_and_nothing_beside_it() -> None:
    policy = session_policy(TRIAL, pickle="s3://tune/team/digits/.trialpod/trainable.pkl")
    assert can(policy, "team/digits/.trialpod/trainable.pkl") == "r"
    assert can(policy, "team/digits/.trialpod/objects/abc") == "rl"
    assert can(policy, "team/digits/.trialpod/journal/1") == ""
    elsewhere = session_policy(TRIAL, pickle="s3://code/trainable.pkl")
    assert can(elsewhere, "trainable.pkl", "code") == "r"
    assert can(elsewhere, "objects/abc", "code") == "rl"
    assert can(elsewhere, "trainable.pkl") == ""


@pytest.mark.parametrize(
    "uri", ["s3://tune/te*m/digits/t", "s3://tune/team?/t", "s3://tune/${aws:username}/t", "s3://tune"]
)
def test_a_place_that_a_policy_would_read_differently_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInputError, match=r"which means something else|whole bucket"):
        session_policy(uri)


def test_a_policy_that_no_server_takes_is_refused_before() -> None:
    long = "s3://tune/" + "x" * 300
    with pytest.raises(InvalidInputError, match="use a shorter"):
        session_policy(f"{long}/a", f"{long}/b", f"{long}/trainable.pkl")


def test_the_longest_names_of_trials_fit() -> None:
    experiment = "s3://a-bucket-of-the-team/experiments/of-this-team/" + "e" * 40
    pickle = f"{experiment}/.trialpod/{'a' * 64}.pkl"
    assert len(session_policy(f"{experiment}/{'t' * 150}", f"{experiment}/{'u' * 150}", pickle)) <= 2048
