"""What the short-lived keys of one attempt may do in the storage, as a session policy for the token service.

An attempt writes only its own trial's checkpoints, and reads besides them those of the trial that it starts from,
and the pickled Trainable with its objects; and it sees whether the experiment's own file is there. Everything else
of an experiment is written by the operator: the journal, results, logs. So a trial can neither read nor change
another trial's data, nor rewrite its own results.

One right cannot be limited to a folder. `ListBucketMultipartUploads` knows no prefix: MinIO refuses the condition,
and shows an upload only to who names its whole key; Amazon shows the names of uploads under way in the bucket.
"""

from __future__ import annotations

import json

from trialpod.errors import InvalidInputError
from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod.storage.s3.storage import parse_uri
from trialpod.storage.s3.sts import MOST_POLICY_CHARACTERS

CHECKPOINTS = "checkpoint_*"
"""What the keys of everything that a trial writes itself begin with, below the trial's folder."""

_WILD = frozenset("*?$")
_READ_WRITE = [
    "s3:GetObject",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
]


def session_policy(trial: str, source: str = "", pickle: str = "") -> str:
    """Return the policy as JSON.

    Args:
        trial: URI of the trial's folder, ``s3://bucket/prefix/experiment/trial``.
        source: the same of another trial, from whose checkpoint the attempt starts; "" when there is none.
        pickle: URI of the pickled Trainable; its objects are in the folder ``objects`` beside it. "" when it is none.

    Raises:
        InvalidInputError: a URI has a character that means something else in policies, or the policy is too long.
    """
    bucket, folder = _place(trial)
    readable: list[str] = []
    listed = [f"{folder}/*", f"{folder.rpartition('/')[0]}/{EXPERIMENT_KEY}*".lstrip("/")]
    other_lists: dict[str, str] = {}
    if source:
        from_bucket, from_folder = _place(source)
        readable.append(f"arn:aws:s3:::{from_bucket}/{from_folder}/{CHECKPOINTS}")
        listed.append(f"{from_folder}/*")
    if pickle:
        code_bucket, key = _place(pickle)
        objects = f"{key.rpartition('/')[0]}/objects/*".lstrip("/")
        readable += [f"arn:aws:s3:::{code_bucket}/{key}", f"arn:aws:s3:::{code_bucket}/{objects}"]
        if code_bucket == bucket:
            listed.append(objects)
        else:
            other_lists[code_bucket] = objects
    statements: list[dict[str, object]] = [
        _allow(_READ_WRITE, [f"arn:aws:s3:::{bucket}/{folder}/{CHECKPOINTS}"]),
        _allow(["s3:ListBucketMultipartUploads"], [f"arn:aws:s3:::{bucket}"]),
        _allow_list(bucket, listed),
        *(_allow_list(name, [prefix]) for name, prefix in other_lists.items()),
    ]
    if readable:
        statements.append(_allow(["s3:GetObject"], readable))
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"), ensure_ascii=False)
    if len(text) > MOST_POLICY_CHARACTERS:
        raise InvalidInputError(
            f"the policy for the trial's keys would have {len(text)} characters, and {MOST_POLICY_CHARACTERS} are "
            f"allowed, because the names in {trial} are so long; use a shorter spec.storage.uri"
        )
    return text


def _allow(actions: list[str], resources: list[str]) -> dict[str, object]:
    return {"Effect": "Allow", "Action": actions, "Resource": resources}


def _allow_list(bucket: str, prefixes: list[str]) -> dict[str, object]:
    condition = {"StringLike": {"s3:prefix": prefixes}}
    return {**_allow(["s3:ListBucket"], [f"arn:aws:s3:::{bucket}"]), "Condition": condition}


def _place(uri: str) -> tuple[str, str]:
    bucket, key = parse_uri(uri)
    if wild := sorted(_WILD.intersection(key)):
        raise InvalidInputError(
            f"{uri} has {' and '.join(map(repr, wild))} in it, which means something else in the policy that limits "
            "a trial's keys; use another name, or leave spec.storage.scopedCredentials out"
        )
    if not key:
        raise InvalidInputError(f"{uri} names a whole bucket; keys are limited to a folder of it")
    return bucket, key
