"""What the API server refuses, as exceptions: one class for each answer that a caller handles.

ApiError                        any other status
UnreachableError              no answer
NotSentError                not sent, because this operator's Lease has expired
BadRequestError               400; the log of a container that has not started, say
UnauthorizedError             401
ForbiddenError                403
NotFoundError                 404: the object
KindNotFoundError           its kind: the definition is not installed
NamespaceNotFoundError      its namespace
AlreadyExistsError            409, the name is taken
ConflictError                 409, another version of the object, another object of that name, or another manager
GoneError                     410, the list or watch has to begin again
InvalidObjectError            422
TooManyRequestsError          429
ServerError                   408 and 5xx

Beside them stands `NotServedError`, which no caller handles: it ends the pass of an experiment that was given away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from trialpod.errors import TrialpodError


class ApiError(TrialpodError):
    """The API server refused a request, or could not be reached. Create one with `api_error`.

    Attributes:
        temporary: the same request may succeed later without any change.
        method: of the request.
        path: of the request.
        status: of the answer; 0 = there was none.
        reason: the API server's word for it, such as "AlreadyExists".
        detail: its message.
        retry_after_s: what it asks clients to wait.
    """

    temporary: ClassVar[bool] = False

    def __init__(
        self, method: str, path: str, status: int, body: Mapping[str, Any], retry_after_s: float = 0.0
    ) -> None:
        self.method = method
        self.path = path
        self.status = status
        self.reason = str(body.get("reason") or "")
        self.detail = str(body.get("message") or "no message")
        self.retry_after_s = retry_after_s
        super().__init__(f"{method} {path}: {status or 'no answer'} {self.reason}: {self.detail}")


class BadRequestError(ApiError):
    """The request makes no sense in the state of the object."""


class UnauthorizedError(ApiError):
    """The credentials are not valid, or no longer."""


class UnreachableError(ApiError):
    """There was no answer."""

    temporary = True


class NotSentError(UnreachableError):
    """It was not sent: this operator's Lease has expired, and another may be changing the object."""


class NotServedError(TrialpodError):
    """A change was not sent: the experiment that it was for is not this operator's any more.

    No error of the API server: nothing is retried or reported by this operator, which ends the pass and releases it.
    """

    def __init__(self, method: str, path: str) -> None:
        super().__init__(f"{method} {path} was not sent: this operator does not serve the experiment any more")


class NotFoundError(ApiError):
    """There is no such object, or no such kind."""


class KindNotFoundError(NotFoundError):
    """The server does not know the kind."""


class NamespaceNotFoundError(NotFoundError):
    """There is no such namespace."""


class AlreadyExistsError(ApiError):
    """An object of that name exists."""

    temporary = True


class ConflictError(ApiError):
    """The object has changed, or is another one of that name."""

    temporary = True


class GoneError(ApiError):
    """The version asked for is no longer kept."""


class InvalidObjectError(ApiError):
    """The server does not accept the object."""


class ForbiddenError(ApiError):
    """The user's permissions, a quota or an admission policy does not allow it."""


class TooManyRequestsError(ApiError):
    """The API server limits its clients."""

    temporary = True


class ServerError(ApiError):
    """The API server, its storage or a webhook failed."""

    temporary = True


_BY_STATUS: dict[int, type[ApiError]] = {
    0: UnreachableError,
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: ServerError,
    409: ConflictError,
    410: GoneError,
    422: InvalidObjectError,
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
    details = body.get("details") or {}
    kind = ServerError if status >= 500 else _BY_STATUS.get(status, ApiError)
    if status == 409 and body.get("reason") == "AlreadyExists":
        kind = AlreadyExistsError
    elif status == 404 and not details.get("name"):  # of an unknown kind the server names no object
        kind = KindNotFoundError
    elif status == 404 and details.get("kind") == "namespaces":
        kind = NamespaceNotFoundError
    return kind(method, path, status, body, retry_after_s)
