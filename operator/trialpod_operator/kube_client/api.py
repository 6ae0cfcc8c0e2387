"""Requests to the API server for scripts and commands, by the official client.

Every error says what to do. Only a request that reads is ever sent twice. Paths are given as they are: trialpod's own
kinds, Kueue's and the core's are asked in the same way, and no request is spent on discovery.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trialpod.errors import InvalidInputError, TrialpodError
from trialpod_operator.api.api_errors import ApiError, api_error
from trialpod_operator.kube_client.kubeconfig import Access

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

TIMEOUT_S = 30.0
FOLLOW_TIMEOUT_S = 6 * 3600.0
"""Maximum time without a line of a log that is followed."""

MAX_PART_BYTES = 64 * 1024
"""Of a line of which parts are yielded."""

_LINE_END = re.compile(rb"(?<=\n)")
_PART_END = re.compile(rb"(?<=\n)|(?<=\r)(?=[^\n])")  # a newline may follow what ends with a carriage return

BEARER_TOKEN = ["BearerToken"]
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
Json = dict[str, Any]


class ClusterUnreachableError(TrialpodError):
    """The API server cannot be reached; it may be retried."""


class KubeClient:
    """Requests to one API server.

    Args:
        access: which one, and as whom.
        timeout_s: for one answer.
    """

    def __init__(self, access: Access, *, timeout_s: float = TIMEOUT_S) -> None:
        self.access = access
        self._timeout_s = timeout_s
        self._client = access.client()
        self.date = ""
        """The server's clock in its latest answer, as in HTTP's header."""

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Json:
        """Send one request and return what is answered.

        Raises:
            ApiError: the server refuses.
            ClusterUnreachableError: it does not answer.
            InvalidInputError: what it answers is nested too deeply.
        """
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type
        with self._unreachable():
            response = self._send(method, path, query, headers, body, self._timeout_s)
            answer = response.data
        self.date = response.headers.get("Date", self.date)
        if response.status >= 400:
            raise _refused(method, path, response.status, answer)
        try:
            found = json.loads(answer) if answer else {}
        except ValueError:
            found = None
        except RecursionError as error:
            raise InvalidInputError(
                f"{method} {path}: an object is nested too deeply to be read; find it with kubectl, and delete it"
            ) from error
        if not isinstance(found, dict):
            raise _refused(method, path, response.status, answer)
        return found

    def lines(self, path: str, *, query: Mapping[str, str] | None = None, partial: bool = False) -> Iterator[bytes]:
        """Yield the lines of an answer that is text, as they come, each with its end; a log that is followed, say.

        Args:
            path: of the text.
            query: parameters.
            partial: yield parts of lines too: what ends with a carriage return, as progress bars do, or is long.

        Raises:
            ApiError: the server refuses.
            ClusterUnreachableError: it does not answer, or breaks off.
        """
        with self._unreachable():
            response = self._send("GET", path, query, {"Accept": "*/*"}, None, FOLLOW_TIMEOUT_S)
            try:
                if response.status >= 400:
                    raise _refused("GET", path, response.status, response.data)
                yield from split_lines(response.stream(None), partial=partial)
            finally:
                response.close()

    def close(self) -> None:
        """Close the connections; the next request opens another one."""
        self._client.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: dict[str, str],
        body: Any,
        timeout_s: float,
    ) -> BaseHTTPResponse:
        from urllib3 import HTTPHeaderDict

        client = self._client
        method, url, found, *rest = client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=BEARER_TOKEN,
        )
        every = HTTPHeaderDict(found)  # the client's own headers have each name once
        for name, value in self.access.headers:
            every.add(name, value)
        response: BaseHTTPResponse = client.call_api(
            method, url, every, *rest, _request_timeout=(self._timeout_s, timeout_s)
        ).response
        return response

    def _unreachable(self) -> _Unreachable:
        return _Unreachable(self.access)


class _Unreachable:
    """Turns what the connection raises into a ClusterUnreachableError."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        from urllib3.exceptions import HTTPError, MaxRetryError, SSLError

        if not isinstance(error, (OSError, HTTPError)):
            return
        cause = error.reason if isinstance(error, MaxRetryError) and error.reason else error
        text = str(cause) or type(cause).__name__
        remedy = "is the cluster up, and does `kubectl version` work?"
        if isinstance(cause, SSLError) and isinstance(cause.args[0], ssl.SSLCertVerificationError):
            remedy = "its certificate is not the one that the kubeconfig expects; get a new kubeconfig"
        raise ClusterUnreachableError(
            f"the cluster at {self._access.server} cannot be reached: {text}; {remedy} (from {self._access.source})"
        ) from error


def split_lines(pieces: Iterable[bytes], *, partial: bool) -> Iterator[bytes]:
    """Yield the lines of a text that comes in pieces, each with its end; `partial` as for `KubeClient.lines`."""
    end = _PART_END if partial else _LINE_END
    held: list[bytes] = []  # of the line that has not ended
    for piece in pieces:
        held.append(piece)
        if not partial and b"\n" not in piece:
            continue
        *whole, rest = end.split(b"".join(held))
        yield from whole
        if partial and len(rest) > MAX_PART_BYTES:
            yield rest
            rest = b""
        held = [rest]
    if rest := b"".join(held):
        yield rest


def _refused(method: str, path: str, status: int, answer: bytes) -> ApiError:
    try:
        found = json.loads(answer)
    except ValueError:
        found = {"message": answer[:300].decode(errors="replace")}
    return api_error(method, path, status, found if isinstance(found, dict) else {})
