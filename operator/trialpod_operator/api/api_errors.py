"""Refusals of the Kubernetes API server as exception types, so that callers tell them apart by class.

ApiError                      any other status
BadRequestError             400; a log of a container that has not started, say
UnauthorizedError           401
ForbiddenError              403
NotFoundError               404: the object
KindNotFoundError         its kind: the definition is not installed
NamespaceNotFoundError    its namespace
ConflictError               409
AlreadyExistsError        the name is taken
ExpiredError                410: a list or a watch is too old to continue
InvalidObjectError          422
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trialpod.errors import TrialpodError


class ApiError(TrialpodError):
    """The API server refused a request.

    Attributes:
        status: of the HTTP answer.
        reason: `reason` of the Status object, such as "NotFound".
        causes: `details.causes` of the Status object.
    """

    def __init__(self, message: str, *, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.reason = str(body.get("reason") or "")
        self.causes: list[dict[str, Any]] = list((body.get("details") or {}).get("causes") or [])


class BadRequestError(ApiError):
    """400: the request makes no sense as things are."""


class UnauthorizedError(ApiError):
    """401: the credentials are not valid, or no longer."""


class ForbiddenError(ApiError):
    """403: the user may not do that."""


class NotFoundError(ApiError):
    """404: there is no such object."""


class KindNotFoundError(NotFoundError):
    """404: the server does not know the kind."""


class NamespaceNotFoundError(NotFoundError):
    """404: there is no such namespace."""


class ConflictError(ApiError):
    """409: the object was changed meanwhile, or another manager owns a field."""


class AlreadyExistsError(ConflictError):
    """409: there is an object of that name."""


class ExpiredError(ApiError):
    """410: the resource version or the continue token is too old."""


class InvalidObjectError(ApiError):
    """422: the server does not accept the object."""


_CLASSES: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    409: ConflictError,
    410: ExpiredError,
    422: InvalidObjectError,
}


def error_class(status: int, body: Mapping[str, Any]) -> type[ApiError]:
    """Return the class for an answer.

    Args:
        status: of the HTTP answer.
        body: the Status object; empty where the answer was none.
    """
    details = body.get("details") or {}
    if status == 404:
        if not details.get("name"):  # of an unknown kind the server names no object
            return KindNotFoundError
        return NamespaceNotFoundError if details.get("kind") == "namespaces" else NotFoundError
    if status == 409 and body.get("reason") == "AlreadyExists":
        return AlreadyExistsError
    return _CLASSES.get(status, ApiError)
