"""Issues short-lived keys for the storage to the attempts of one experiment.

Only the operator has the keys of the Secret. For each attempt that asks it has the store's token service make keys
that expire, and that open only what this attempt needs (`session_policy`). They go to the attempt's pod in the answer
to its call, and nowhere else: not to the API server, the journal, or a log.

Invariants: keys are made only for a trial's current attempt; what the store says when it makes none is in `problem`
until it makes some again. Owned by the event loop; the calls themselves are made in threads of their own, of which
one experiment takes a few at most: a token service that hangs holds up nothing else, and no other experiment.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from trialpod.errors import InvalidInputError, StorageError
from trialpod.protocol.messages import CredentialsAnswer
from trialpod.storage.base import StorageUnavailableError
from trialpod.storage.layout import EXPERIMENT_KEY
from trialpod.storage.options import StorageOptions
from trialpod.storage.s3.credentials import Supply
from trialpod.storage.s3.providers import provider_for
from trialpod.storage.s3.storage import parse_uri
from trialpod.storage.s3.sts import MAX_POLICY_CHARACTERS, StsRefusedError, assume_role
from trialpod_operator.api.models import ScopedCredentials
from trialpod_operator.api.reasons import Reason
from trialpod_operator.cluster.status.conditions import Problem
from trialpod_operator.cluster.storage_access import StorageProblemError
from trialpod_operator.experiment.journaled_engine import JournaledEngine

_NOT_ALLOWED = frozenset({"AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "SignatureDoesNotMatch",
                          "InvalidAccessKeyId", "ExpiredToken", "ExpiredTokenException"})  # fmt: skip
_NO_ROLE = frozenset({"MissingParameter", "ValidationError", "MissingAction"})
_threads = ThreadPoolExecutor(64, thread_name_prefix="token-service")
CALLS_AT_ONCE = 2
"""Of one experiment."""


class KeyIssuer:
    """Makes keys for the attempts of one experiment.

    Args:
        key: "namespace/name" of the experiment.
        uri: of the experiment's location.
        options: how the operator reaches it, with the keys of the Secret.
        scoped: how the manifest, or the operator's settings, want it.
        pickle: URI of the pickled Trainable, "" when it is none.
        changed: called when `problem` is another one.

    Attributes:
        problem: why the store makes no keys at the moment; None when it does.
    """

    def __init__(
        self,
        key: str,
        uri: str,
        options: StorageOptions,
        scoped: ScopedCredentials,
        pickle: str,
        changed: Callable[[], None],
    ) -> None:
        self.problem: Problem | None = None
        self._session = f"trialpod-{key.replace('/', '.')}"[:64]
        self._uri = uri
        self._options = options
        self._scoped = scoped
        self._pickle = pickle
        self._changed = changed
        self._keys = provider_for(options)
        self._calls = asyncio.Semaphore(CALLS_AT_ONCE)
        self._asked = 0
        self._unreached: StorageUnavailableError | None = None  # of the latest call that failed so
        self._unreached_to = 0  # what was asked for by then would take as long and fail

    async def check(self) -> None:
        """Have keys made, as for a trial, and forget them.

        Raises:
            StorageProblemError: the store makes none, and will not by itself.
            StorageUnavailableError: it cannot be reached now.
        """
        try:
            await self._make(session_policy(f"{self._uri}/trial", "", self._pickle))
        except StsRefusedError as error:
            problem = self._refused(error)
            raise StorageProblemError(problem.reason, problem.message) from error
        except InvalidInputError as error:
            raise StorageProblemError(Reason.SCOPED_CREDENTIALS_IMPOSSIBLE, str(error)) from error

    async def answer(self, journaled: JournaledEngine, trial_id: str, attempt: int) -> CredentialsAnswer:
        """Return keys for an attempt, or why there are none now.

        Args:
            journaled: the experiment's engine.
            trial_id: the trial.
            attempt: of it.
        """
        trial = journaled.engine.state.trials.get(trial_id)
        if trial is None or not trial.running or trial.attempt != attempt:
            return CredentialsAnswer(problem=f"attempt {attempt} of trial {trial_id} does not run any more")
        start = trial.active_exploit.start if trial.active_exploit is not None else None
        source = journaled.engine.state.trials[start.trial_id] if start is not None else None
        problem = None
        try:
            policy = session_policy(
                journaled.checkpoint_uri(trial),
                journaled.checkpoint_uri(source) if source is not None else "",
                self._pickle,
            )
            made = await self._make(policy)
        except StsRefusedError as error:
            problem = self._refused(error)
        except InvalidInputError as error:
            problem = Problem(reason=Reason.SCOPED_CREDENTIALS_IMPOSSIBLE, message=str(error), stalled=True)
        except StorageUnavailableError as error:
            problem = Problem(
                reason=Reason.STORAGE_UNAVAILABLE, message=f"{error}; trials that need new keys wait for it"
            )
        except StorageError as error:
            problem = Problem(reason=Reason.SCOPED_CREDENTIALS_IMPOSSIBLE, message=str(error), stalled=True)
        if problem != self.problem:
            self.problem = problem
            self._changed()
        if problem is not None:
            return CredentialsAnswer(problem=problem.message)
        keys = made.credentials
        return CredentialsAnswer(
            access_key=keys.access_key, secret_key=keys.secret_key, token=keys.token, lifetime_s=made.lifetime_s
        )

    async def _make(self, policy: str) -> Supply:
        scoped, options = self._scoped, self._options

        def call() -> Supply:
            return assume_role(
                options,
                self._keys.get(),
                policy,
                duration_s=int(scoped.duration_seconds),
                role_arn=scoped.role_arn or "",
                endpoint=scoped.sts_endpoint or "",
                session=self._session,
            )

        self._asked += 1
        number = self._asked
        await self._calls.acquire()
        if self._unreached is not None and number <= self._unreached_to:
            self._calls.release()
            raise self._unreached
        made = asyncio.get_running_loop().run_in_executor(_threads, call)
        made.add_done_callback(self._called)
        # A pod that no longer waits for the answer does not end the call: its thread counts until then.
        return await asyncio.shield(made)

    def _called(self, made: asyncio.Future[Supply]) -> None:
        self._calls.release()
        error = None if made.cancelled() else made.exception()
        if isinstance(error, StorageUnavailableError):
            self._unreached, self._unreached_to = error, self._asked

    def _refused(self, error: StsRefusedError) -> Problem:
        role = self._scoped.role_arn
        if error.code in _NO_ROLE and not role:
            advice = "name the role that trials take on: spec.storage.scopedCredentials.roleArn"
        elif error.code in _NOT_ALLOWED:
            allowed = f"sts:AssumeRole on {role}" if role else "sts:AssumeRole"
            advice = f"check the keys that the operator has for this storage; their policy must allow {allowed}" + (
                ", and the role's trust policy must name their user" if role else ""
            )
        elif error.code in ("PackedPolicyTooLarge", "MalformedPolicyDocument"):
            advice = "use a shorter spec.storage.uri, of plain characters"
        elif error.code == "InvalidParameterValue":
            advice = "check spec.storage.scopedCredentials: roleArn, duration and stsEndpoint"
        else:
            advice = (
                "a store without a token service (AssumeRole) cannot limit keys to a trial: leave "
                "spec.storage.scopedCredentials out, and the pods mount the Secret itself; or name the service by "
                "stsEndpoint"
            )
        return Problem(reason=Reason.SCOPED_CREDENTIALS_REFUSED, message=f"{error}; {advice}", stalled=True)


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
    """Return the session policy for the keys of one attempt, as JSON.

    An attempt writes only its own trial's checkpoints. It reads those, the checkpoints of the trial that it starts
    from, and the pickled Trainable. Everything else of an experiment is written by the operator.
    `ListBucketMultipartUploads` cannot be limited to a prefix: MinIO shows an upload only to a caller that names its
    whole key; Amazon S3 shows the keys of unfinished uploads in the bucket.

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
    if len(text) > MAX_POLICY_CHARACTERS:
        raise InvalidInputError(
            f"the policy for the trial's keys would have {len(text)} characters, and {MAX_POLICY_CHARACTERS} are "
            f"allowed, because the names in {trial} are too long; use a shorter spec.storage.uri"
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
