"""Whether a call can be what an attempt says: its bytes, and those of its numbers and names that matter.

What is taken in here is journaled, shown, and sent to other attempts. A name of a checkpoint becomes part of a path,
so it is one that trialpod gives; a number goes up by one, so it leaves room for that.

Invariant: whatever the bytes, there is a message or a `BadRequestError` that says what was wrong with them.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from trialpod.errors import TrialpodError
from trialpod.protocol.messages import CheckpointInfo, ReportRequest
from trialpod.storage.layout import checkpoint_name

T = TypeVar("T")

MAX_COUNT = 2**53
"""No number that counts something is larger: JSON carries whole numbers up to here."""

MAX_ERROR = 8_000
"""Characters of an error's line that are kept, the first ones: it stands in objects that Kubernetes limits."""

MAX_ACCEPTED_TRACEBACK = 100_000
"""Characters of a traceback that are kept, the last ones."""

_SCALARS = (str, int, float, bool, type(None))


class BadRequestError(TrialpodError):
    """A call that no attempt makes (400)."""


def decode_request(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    """Return the message in `body`.

    Raises:
        BadRequestError: there is none.
    """
    try:
        message = decoder.decode(body)
    except UnicodeDecodeError as error:
        raise BadRequestError(f"the request cannot be read: a text in it is not UTF-8 ({error.reason})") from error
    except RecursionError as error:
        raise BadRequestError("the request cannot be read: it is nested too deep") from error
    except msgspec.MsgspecError as error:
        raise BadRequestError(f"the request cannot be read: {error}") from error
    if isinstance(message, ReportRequest):
        check_report(message)
    return message


def check_report(request: ReportRequest) -> None:
    """Cut off what is too long; raise BadRequestError when numbers and names of a report cannot be an attempt's."""
    if not 1 <= request.first <= MAX_COUNT:
        raise BadRequestError(f"`first` is {request.first}; the results of an attempt are numbered from 1 on")
    for info in request.checkpoints:
        _check_checkpoint(info, request.attempt)
    if request.end is not None:
        request.end.error = request.end.error[:MAX_ERROR]
        request.end.traceback = request.end.traceback[-MAX_ACCEPTED_TRACEBACK:]


def _check_checkpoint(info: CheckpointInfo, attempt: int) -> None:
    if not 0 <= info.index <= MAX_COUNT or info.name != checkpoint_name(info.index):
        raise BadRequestError(
            f"a checkpoint with the index {info.index} cannot be called {info.name[:100]!r}: it is called "
            "checkpoint_ and its index in six digits"
        )
    if not 1 <= info.attempt <= attempt:
        raise BadRequestError(f"{info.name} cannot be of attempt {info.attempt}: attempt {attempt} reports it")
    if not 0 <= info.size <= MAX_COUNT or not abs(info.iteration) <= MAX_COUNT:
        raise BadRequestError(f"{info.name} cannot have {info.size} bytes at iteration {info.iteration}")
    for key, value in info.metrics.items():
        if not isinstance(value, _SCALARS):
            raise BadRequestError(
                f"the metric {key[:60]!r} of {info.name} must be a number or a string, not nested data"
            )
