"""What the API server refuses, as exceptions: one class for each answer that a caller handles.

ApiError
UnreachableError       no answer, or not sent because this operator is no longer the leader
NotFoundError          404
AlreadyExistsError     409, the name is taken
ConflictError          409, another version of the object, or another object of that name
GoneError              410, the list or watch has to begin again
ForbiddenError         403
TooManyRequestsError   429
ServerError            408 and 5xx
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trialpod.errors import TrialpodError


class ApiError(TrialpodError):
    """The API server refused a request, or could not be reached. Create one with `api_error`.

    Attributes:
        temporary: the same request may succeed later without anybody changing anything.
        status: of the answer; 0 = there was none.
        reason: the API server's word for it, such as "AlreadyExists".
        detail: its message.
        retry_after_s: what it asks clients to wait.
    """

    temporary: ClassVar[bool] = False

    def __init__(
        self, method: str, path: str, status: int, body: Mapping[str, Any], retry_after_s: float = 0.0
    ) -> None:
        self.status = status
        self.reason = str(body.get("reason") or "")
        self.detail = str(body.get("message") or "no message")
        self.retry_after_s = retry_after_s
        super().__init__(f"{method} {path}: {status or 'no answer'} {self.reason}: {self.detail}")


class UnreachableError(ApiError):
    """There was no answer."""

    temporary = True


class NotFoundError(ApiError):
    """There is no such object, or no such kind."""


class AlreadyExistsError(ApiError):
    """An object of that name exists."""

    temporary = True


class ConflictError(ApiError):
    """The object has changed, or is another one of that name."""

    temporary = True


class GoneError(ApiError):
    """The version asked for is no longer kept."""


class ForbiddenError(ApiError):
    """The service account, a quota or an admission policy does not allow it."""


class TooManyRequestsError(ApiError):
    """The API server limits its clients."""

    temporary = True


class ServerError(ApiError):
    """The API server, its storage or a webhook failed."""

    temporary = True


_BY_STATUS: dict[int, type[ApiError]] = {
    0: UnreachableError,
    403: ForbiddenError,
    404: NotFoundError,
    408: ServerError,
    409: ConflictError,
    410: GoneError,
    429: TooManyRequestsError,
}


def api_error(method: str, path: str, status: int, body: Mapping[str, Any], retry_after_s: float = 0.0) -> ApiError:
    """Return the error that an answer means.

    Args:
        method: of the request.
        path: of the request.
        status: of the answer; 0 = there was none.
        body: the ``Status`` object of the answer, with its reason and message.
        retry_after_s: from the header of that name.
    """
    kind = ServerError if status >= 500 else _BY_STATUS.get(status, ApiError)
    if status == 409 and body.get("reason") == "AlreadyExists":
        kind = AlreadyExistsError
    return kind(method, path, status, body, retry_after_s)
