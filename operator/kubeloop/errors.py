"""What can go wrong between us and the API server, and what the user can do about it.

KubeError
├── ConfigError          no usable credentials
├── NotLeader            this process may not write (any more)
├── Unreachable          no answer: connection refused, reset, timed out
│   └── SilentStream           a watch that was open, and on which nothing came
└── ApiError             the API server answered with a failure
    ├── Invalid          400, 422: the object was refused by its schema or by its API
    ├── Unauthorized     401: the credentials are not accepted
    ├── Forbidden        403: a right is missing; names it
    │   └── Refused      403 by admission, quota or a namespace that is going away: no right would help
    │       └── ForeignObject  by the chart's own policy: the object is somebody else's
    ├── NotFound         404
    ├── Conflict         409
    │   ├── FieldConflict    server-side apply: another manager owns the fields; names it
    │   └── AlreadyExists    create: somebody was faster
    ├── Gone             410: the resourceVersion or the continue token is too old
    ├── TooManyRequests          429: the API server is overloaded
    └── ServerError      5xx
        └── ProxyRefusal    4xx of something else on the way, such as a proxy: says nothing of the object or the right
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeGuard

JSON = Mapping[str, Any]

_CONFLICT_WITH = re.compile(r'conflict with "([^"]+)"')
_RBAC_REFUSAL = re.compile(r'cannot [a-z]+ resource "')


class KubeError(Exception):
    """Base of this package's errors."""

    remedy = ""

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if remedy is not None:
            self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message


class ConfigError(KubeError): ...


class NotLeader(KubeError): ...


class Unreachable(KubeError):
    remedy = "check that the API server is up and that this pod may reach it; the operator tries again by itself"


class SilentStream(Unreachable):
    """An open watch brought nothing for too long: no change, or a dead connection. Only the next request shows
    which."""


class ApiError(KubeError):
    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        reason: str = "",
        causes: tuple[JSON, ...] = (),
        retry_after: float | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code
        self.reason = reason
        self.causes = causes
        self.retry_after = retry_after

    @property
    def fields(self) -> tuple[str, ...]:
        """Paths of the fields that were refused, or that another manager owns."""
        return tuple(str(cause["field"]) for cause in self.causes if cause.get("field"))


class Invalid(ApiError): ...


class Unauthorized(ApiError):
    remedy = "check the service account's token, or the user in the kubeconfig"


class Forbidden(ApiError):
    def __init__(self, message: str, *, right: str = "", **details: Any) -> None:
        details.setdefault("remedy", f"grant it: {right} (the chart's role has every right that is needed)")
        super().__init__(message, **details)
        self.right = right


class Refused(Forbidden):
    """Admission, a quota or a terminating namespace refused the request: another permission would not help."""

    def __init__(self, message: str, **details: Any) -> None:
        details.setdefault("remedy", "see the message: a quota, an admission policy or a namespace that is going away")
        super().__init__(message, **details)


def lacks_right(error: BaseException | None) -> TypeGuard[Forbidden]:
    """Whether a right would help, which the error then names."""
    return isinstance(error, Forbidden) and not isinstance(error, Refused)


class ForeignObject(Refused):
    """The chart's policy for the operator's service account refused a change of an object that is not the
    operator's."""


FOREIGN_OBJECT = "is not one of the operator's own objects"
"""Part of the policy's message: templates/policy-operator.yaml of the chart."""


class NotFound(ApiError):
    """The object does not exist, or its kind does not."""


class Conflict(ApiError):
    """The object is not in the state that the request requires."""


class FieldConflict(Conflict):
    """Another field manager owns a field of the apply."""

    @property
    def managers(self) -> tuple[str, ...]:
        """Names of the managers that own the fields, each once."""
        found = (_CONFLICT_WITH.search(str(cause.get("message", ""))) for cause in self.causes)
        return tuple(dict.fromkeys(match.group(1) for match in found if match))


class AlreadyExists(Conflict):
    """Somebody created it first."""


class Gone(ApiError):
    """The resourceVersion or continue token is too old: list again from the start."""


class TooManyRequests(ApiError):
    remedy = "the operator waits and tries again by itself"


class ServerError(ApiError):
    remedy = "the operator tries again by itself; see the API server's log if it stays"


class ProxyRefusal(ServerError):
    """A proxy or gateway in front of the API server refused the request."""

    remedy = "see what is between: a proxy, a gateway, a firewall; the operator tries again by itself"


def from_status(code: int, status: JSON, *, right: str, retry_after: float | None = None) -> ApiError:
    """The error for an HTTP failure. `status` is the body: a metav1.Status, or anything where a proxy answered."""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"HTTP {code}")
    causes = _causes(status.get("details"))
    details: dict[str, Any] = {"code": code, "reason": reason, "causes": causes, "retry_after": retry_after}
    if not _is_from_server(code, status):
        kind = ServerError if code >= 500 else ProxyRefusal
        return kind(f"HTTP {code}, and not from the API server: {message}", **details)
    if code == 403:
        return _forbidden(message)(message, right=right, **details)
    if code == 409:
        return _conflict(reason, causes)(message, **details)
    if code == 500 and message.endswith(_UNKNOWN_FIELD):
        return Invalid(f"{message}: this version of Kubernetes does not know it; remove it, or upgrade", **details)
    return _BY_CODE.get(code, ServerError if code >= 500 else Invalid)(message, **details)


_UNKNOWN_FIELD = "field not declared in schema"
"""Message of a server-side apply, in every version so far with code 500 (typed, structured-merge-diff)."""


def _is_from_server(code: int, status: JSON) -> bool:
    """Whether the response is the API server's own. It sends plain text for paths that it does not serve, such as those
    of a CRD that is not installed, and under overload. A 401 counts always, so that the token is renewed."""
    is_no_path = code == 404 and status.get("message") == "404 page not found"
    return status.get("kind") == "Status" or is_no_path or code in (401, 429)


def _causes(details: object) -> tuple[JSON, ...]:
    """Causes of a metav1.Status; empty where a proxy's body has something else there."""
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return tuple(cause for cause in causes if isinstance(cause, Mapping)) if isinstance(causes, list) else ()


def _forbidden(message: str) -> type[Forbidden]:
    if _RBAC_REFUSAL.search(message):
        return Forbidden
    return ForeignObject if FOREIGN_OBJECT in message else Refused


def _conflict(reason: str, causes: tuple[JSON, ...]) -> type[Conflict]:
    if any(cause.get("reason") == "FieldManagerConflict" for cause in causes):
        return FieldConflict
    return AlreadyExists if reason == "AlreadyExists" else Conflict


_BY_CODE: Mapping[int, type[ApiError]] = {
    401: Unauthorized,
    404: NotFound,
    408: ServerError,
    410: Gone,
    429: TooManyRequests,
}
