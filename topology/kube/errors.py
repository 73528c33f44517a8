"""The two ways in which a request to the API server fails, and which of them a given failure is.

It decides what an answer or a broken connection is called. It must never know what was asked for, nor try again.
Every text is one line and bounded: it ends up in logs and in front of people.
"""

from __future__ import annotations

import re
from typing import Final

import aiohttp
import msgspec

from topology.objects import StatusObject

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\s]+")
_MESSAGE_CAP: Final = 1000


class ApiFailure(RuntimeError):  # noqa: N818  # the family's name; ApiError is one of the two kinds
    """Base of ApiError and ApiUnreachable; `str()` is one line that names the request."""


class ApiError(ApiFailure):
    """The API server answered, and the answer is no (or too large: then the reason is `ResponseTooLarge`)."""

    def __init__(
        self, status: int, reason: str, message: str, *, request: str = "", retry_after_s: float | None = None
    ) -> None:
        self.status, self.reason, self.message, self.retry_after_s = status, reason, message, retry_after_s
        super().__init__(f"{request or 'request'}: {status} {reason}: {message}")

    @property
    def conflict(self) -> bool:
        """409 about the state of an existing object (a precondition, a field manager, a newer version)."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def already_exists(self) -> bool:
        """409 on create: there is one of that name."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def not_found(self) -> bool:
        """404: no such object, or no such kind."""
        return self.status == 404

    @property
    def gone(self) -> bool:
        """410: the resourceVersion or continue token is too old; list again."""
        return self.status == 410 or self.reason in ("Expired", "Gone")

    @property
    def forbidden(self) -> bool:
        """403: a right is missing, or the namespace is being deleted."""
        return self.status == 403

    @property
    def invalid(self) -> bool:
        """422: validation said no, or a `test` of a JSON patch did not hold."""
        return self.status == 422


class ApiUnreachable(ApiFailure):  # says what is the matter
    """No answer came: refused, cut, too slow or silent. `sent` False means the server cannot have acted on it."""

    def __init__(self, request: str, why: str, *, sent: bool) -> None:
        self.sent = sent
        super().__init__(f"{request}: {why}")


def refused(request: str, answer: aiohttp.ClientResponse, content: bytes) -> ApiError:
    """The error for an answer outside 2xx; `content` is its body, the server's Status object or a proxy's own words."""
    try:
        status = msgspec.json.decode(content, type=StatusObject)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        status = StatusObject(message=content[:_MESSAGE_CAP].decode(errors="replace"))
    after = answer.headers.get("Retry-After", "")
    return ApiError(
        answer.status,
        status.reason or answer.reason or "Unknown",
        one_line(status.message) or "no further words",
        request=request,
        retry_after_s=float(after)
        if after.isdecimal()
        else None,  # a date is allowed by HTTP, never sent by Kubernetes
    )


def unreachable(request: str, error: Exception, limit_s: float) -> ApiUnreachable:
    """The error for a connection that was not made, broke, or kept silent for `limit_s` seconds."""
    sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = getattr(error, "certificate_error", None) or error.os_error
        why = f"no connection to {error.host}:{error.port}: {getattr(cause, 'strerror', None) or cause}"
    elif isinstance(error, TimeoutError):
        why = f"no answer within {limit_s:g} s" if sent else "no connection in time"
    elif isinstance(error, aiohttp.ClientPayloadError):
        why = "the connection was cut in the middle of the answer"
    elif isinstance(error, aiohttp.ServerDisconnectedError):
        why = "the connection was closed without an answer"
    else:
        why = str(error) or type(error).__name__
    return ApiUnreachable(request, one_line(why), sent=sent)


def one_line(text: str) -> str:
    """Without line breaks and control characters, at most 1,000 characters."""
    return _CONTROL.sub(" ", text).strip()[:_MESSAGE_CAP]
