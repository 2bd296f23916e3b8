"""Parses obstore's errors and converts them into failures.

obstore has exception types for some errors of objects and none for those of listings. All have a text with the status
and the server's response, followed by a dump of the error. The text may hold signed URLs and tokens: only the parts
extracted here are passed on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmservice_fetch import failed
from llmservice_fetch.failed import HTTPStatusError, Unreachable, plain

_LONGEST = 300
_STATUS = re.compile(r"status code: (\d{3})")
_URL = re.compile(r"Error performing [A-Z]+ (\S+) in ")
_ADDRESS = re.compile(r"\bhttps?://[^\s\"'<>]+")
_CODE = re.compile(r"<(?:\w+:)?Code>([^<]*)<|\"error\":\s*\"([^\"]*)\"")
_MESSAGE = re.compile(r"<(?:\w+:)?Message>([^<]*)<|\"error_description\":\s*\"([^\"]*)\"")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,63})<")
# Causes in obstore's dump of an error, most specific first: operating system, TLS, HTTP library.
_CAUSES = (
    (re.compile(r"InvalidCertificate\(\s*(\w+)"), "its certificate is not trusted ({})"),
    (re.compile(r'message: "([^"\\]+)"'), "{}"),
    (re.compile(r'error: "([^"\\]+)"'), "{}"),
    (re.compile(r"source: (TimedOut)\b|kind: (TimedOut)\b"), "timed out"),
    (re.compile(r"kind: (UnexpectedEof|ConnectionReset|Interrupted)\b"), "the connection ended early"),
    (re.compile(r"source: (BadScheme)\b"), "http:// is not allowed, only https://"),
)
_ENTITIES = (
    ("&quot;", '"'),
    ("&#34;", '"'),
    ("&#39;", "'"),
    ("&apos;", "'"),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&amp;", "&"),
)
_BAD_KEYS = frozenset({
    "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired",
    "InvalidSecurity", "RequestTimeTooSkewed", "AuthorizationHeaderMalformed",
    "AuthenticationFailed", "InvalidAuthenticationInfo", "invalid_grant", "invalid_client", "unauthorized_client",
})  # fmt: skip
# Compatible servers have other codes for an unknown key.
_BAD_KEY = re.compile(r"access key|Signature (?:did not match|fields not well formed)", re.IGNORECASE)
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})


@dataclass(frozen=True)
class ParsedError:
    """The parts of an error, without secrets of URLs; texts are the server's."""

    status: int
    code: str
    text: str
    url: str
    """Of the request, without its query; empty where unknown."""
    region: str
    """The bucket's region where the server reports another one than requested."""
    bare_redirect: bool
    words: str
    """For messages: the server's text, or the problem of the connection."""
    is_request: bool
    """Whether a request failed; otherwise credentials are malformed or a listing is invalid."""
    is_body: bool
    """Whether the connection ended within a response body."""
    is_redacted: bool
    """Whether obstore hides the URL because it holds a signature or a token."""


def read(error: BaseException) -> ParsedError:
    """Parse an error of obstore."""
    summary, _, dump = str(error).partition("\n\nDebug source:")
    status = _STATUS.search(summary)
    body = summary[status.end() :] if status else ""
    url = _URL.search(summary)
    code, text = _found(_CODE, body), _found(_MESSAGE, body)
    region = _REGION.search(body)
    # A request that obstore refuses to send is not a network failure.
    is_request = bool(status or url or "HTTP error" in summary) and "BadScheme" not in dump
    cause = next((words.format(_first(found)) for sign, words in _CAUSES if (found := sign.search(dump))), "")
    if not (status or cause):
        cause = without_queries(summary.partition(": ")[2] or summary)
    return ParsedError(
        int(status[1]) if status else 0,
        _clean(code),
        _clean(text),
        plain(url[1]) if url and "://" in url[1] else "",
        region[1] if region else "",
        "redirect without LOCATION" in summary,
        _clean(text or code or (f"status {status[1]}" if status else cause)),
        is_request,
        "response body" in summary,
        bool(url and url[1] == "REDACTED"),
    )


def retryable(parsed: ParsedError, place: str) -> Unreachable | HTTPStatusError:
    """The exception for the retry loop: Unreachable without a response, HTTPStatusError with one."""
    where = parsed.url or place
    if parsed.status:
        return HTTPStatusError(parsed.status, where, code=parsed.code, text=parsed.text)
    return Unreachable(f"{where}: {parsed.words}")


def without_queries(text: str) -> str:
    """The text with queries and passwords removed from its URLs."""
    return _ADDRESS.sub(lambda found: plain(found[0]), text)


@dataclass(frozen=True, kw_only=True)
class Wording:
    """A cloud's terms in messages, and its own error codes."""

    server: str
    name: str
    """bucket or container"""
    own: str
    """The cloud that is used without an endpoint."""
    section: str
    """Of the spec, as spec.model.NAME."""
    rights: str
    """For listing and reading."""
    keys: str = "keys"
    """The content of the Secret."""
    hides_private: bool = True
    """Whether an unsigned request for a private bucket is answered as if there were none."""
    bad_keys: frozenset[str] = frozenset()
    """Codes, beside those of every cloud, for credentials that are not accepted."""
    no_bucket: frozenset[str] = frozenset()
    """Codes, beside those of every cloud, for a bucket that does not exist."""

    @property
    def secret(self) -> str:
        return f"{self.section}.credentialsSecretRef"


@dataclass(frozen=True)
class AccessedBucket:
    """The bucket that an error is about, and whether requests were signed."""

    wording: Wording
    bucket: str
    uri: str
    field: str
    endpoint: str
    account: str
    signed: bool


def explained(parsed: ParsedError, target: AccessedBucket, *, listing: bool) -> Exception:
    """The exception for a bucket's error: FetchFailed for a classified one, else one that may be retried."""
    wording = target.wording
    known = parsed.status == 401 or "failed to authenticate" in parsed.text
    if parsed.code in _BAD_KEYS | wording.bad_keys or _BAD_KEY.search(parsed.text) or (known and target.signed):
        return failed.token_refused(
            f"{wording.server} does not accept the credentials ({parsed.code or parsed.status}): {parsed.words}",
            remedy(wording),
        )
    if parsed.code in _NO_BUCKET | wording.no_bucket or (parsed.status == 404 and listing):
        where = target.endpoint or (f"the account {target.account} of {wording.own}" if target.account else wording.own)
        hint = f"A {wording.name} of another server needs {wording.section}.endpoint."
        private = "" if target.signed or not wording.hides_private else f" A private one needs {wording.secret}."
        return failed.not_found(target.field, f"There is no {wording.name} {target.bucket} at {where}.", hint + private)
    if parsed.status in (401, 403, 409):
        who = "these credentials" if target.signed else "anybody without credentials"
        return failed.access_denied(
            f"{wording.server} does not let {who} read {target.uri}: {parsed.words}",
            f"Give credentials in {wording.secret} that may list the {wording.name} and read its objects "
            f"({wording.rights}).",
        )
    if parsed.status in (404, 412):
        return changed(target.uri)
    return retryable(parsed, target.uri)


def changed(uri: str) -> failed.FetchFailed:
    """The content changed since it was listed."""
    return failed.download_failed(f"{uri} changed during the fetch.", "the programs that write there")


def no_credentials(parsed: ParsedError, scheme: str, wording: Wording) -> Exception:
    """The exception for credentials that are malformed or cannot be obtained."""
    if parsed.is_request and (parsed.status == 0 or parsed.status >= 500):
        return retryable(parsed, "the server of the role's credentials")
    code = f" ({parsed.code})" if parsed.code and parsed.code != parsed.words else ""
    message = f"The credentials for {scheme}:// cannot be used, or their role gives none{code}: {parsed.words}"
    return failed.token_refused(message, remedy(wording))


def remedy(wording: Wording) -> str:
    return (
        f"Check the {wording.keys} in the Secret that {wording.secret} names, or the service account's role, and the "
        "clock of the node."
    )


def _found(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return _first(found) if found else ""


def _first(found: re.Match[str]) -> str:
    return next((group for group in found.groups() if group), "")


def _clean(text: str) -> str:
    """One printable line of limited length."""
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    # Azure adds an id and the time of each request; messages must be stable.
    text = without_queries(text).partition("RequestId:")[0]
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
