"""What obstore's errors say, and what they mean to whoever asked for a model.

obstore has a type for some refusals of objects and none for those of listings. Both have a text with the status and the
server's answer, followed by a dump of the error. The text may hold signed URLs and tokens: only the parts that are
taken out here are passed on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmservice_fetch import failed
from llmservice_fetch.errors import Refused, Unreachable, plain

_LONGEST = 300
_STATUS = re.compile(r"status code: (\d{3})")
_URL = re.compile(r"Error performing [A-Z]+ (\S+) in ")
_ADDRESS = re.compile(r"\bhttps?://[^\s\"'<>]+")
_CODE = re.compile(r"<(?:\w+:)?Code>([^<]*)<|\"error\":\s*\"([^\"]*)\"")
_MESSAGE = re.compile(r"<(?:\w+:)?Message>([^<]*)<|\"error_description\":\s*\"([^\"]*)\"")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,63})<")
# In obstore's dump of an error, best first: words of the operating system, of TLS, of the HTTP library.
_CAUSES = (
    (re.compile(r"InvalidCertificate\(\s*(\w+)"), "its certificate is not trusted ({})"),
    (re.compile(r'message: "([^"\\]+)"'), "{}"),
    (re.compile(r'error: "([^"\\]+)"'), "{}"),
    (re.compile(r"source: (TimedOut)\b|kind: (TimedOut)\b"), "timed out"),
    (re.compile(r"kind: (UnexpectedEof|ConnectionReset|Interrupted)\b"), "the connection ended early"),
    (re.compile(r"source: (BadScheme)\b"), "it is not asked by http://, only by https://"),
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
# Servers that are not the clouds' own have other codes for a key that they do not know.
_BAD_KEY = re.compile(r"access key|Signature (?:did not match|fields not well formed)", re.IGNORECASE)
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"})


@dataclass(frozen=True)
class Answer:
    """An error, taken apart. Nothing in it is a secret that a URL held; the texts are the server's own words."""

    status: int
    code: str
    text: str
    url: str
    """Of the request, without its query; empty where the error does not say."""
    region: str
    """Where the bucket is, where the server says that it is elsewhere."""
    bare_redirect: bool
    words: str
    """For people: the server's words, or what is wrong with the connection."""
    is_request: bool
    """Whether it came of a request, answered or not; else of malformed credentials or of what a server listed."""
    is_body: bool
    """Whether the connection ended within an answer."""
    is_redacted: bool
    """Whether obstore hides the URL, which held a signature or a token."""


def read(error: BaseException) -> Answer:
    """The parts of an error of obstore."""
    told, _, dump = str(error).partition("\n\nDebug source:")
    status = _STATUS.search(told)
    body = told[status.end() :] if status else ""
    url = _URL.search(told)
    code, text = _found(_CODE, body), _found(_MESSAGE, body)
    region = _REGION.search(body)
    # What obstore refuses to send is no failure of the network.
    is_request = bool(status or url or "HTTP error" in told) and "BadScheme" not in dump
    cause = next((words.format(_first(found)) for sign, words in _CAUSES if (found := sign.search(dump))), "")
    if not (status or cause):
        cause = without_queries(told.partition(": ")[2] or told)
    return Answer(
        int(status[1]) if status else 0,
        _clean(code),
        _clean(text),
        plain(url[1]) if url and "://" in url[1] else "",
        region[1] if region else "",
        "redirect without LOCATION" in told,
        _clean(text or code or (f"status {status[1]}" if status else cause)),
        is_request,
        "response body" in told,
        bool(url and url[1] == "REDACTED"),
    )


def passing(answer: Answer, place: str) -> Unreachable | Refused:
    """For whoever repeats requests: no answer, or one that may be another in a moment."""
    where = answer.url or place
    if answer.status:
        return Refused(answer.status, where, code=answer.code, text=answer.text)
    return Unreachable(f"{where}: {answer.words}")


def unreachable(place: str, words: str) -> Unreachable:
    """No answer."""
    return Unreachable(f"{place}: {words}")


def without_queries(text: str) -> str:
    """A text whose addresses are plain."""
    return _ADDRESS.sub(lambda found: plain(found[0]), text)


@dataclass(frozen=True)
class Wording:
    """How a kind of bucket and its fields are called in messages."""

    server: str
    name: str
    own: str
    """Who answers where no endpoint is named."""
    section: str
    rights: str

    @property
    def secret(self) -> str:
        """The field that names the Secret."""
        return f"{self.section}.credentialsSecretRef"


WORDING = {
    "s3": Wording("The S3 server", "bucket", "AWS", "spec.model.s3", "s3:ListBucket and s3:GetObject"),
    "gs": Wording(
        "Google Cloud Storage", "bucket", "Google Cloud", "spec.model.gcs",
        "storage.objects.list and storage.objects.get",
    ),
    "az": Wording(
        "Azure Blob Storage", "container", "Azure", "spec.model.azure",
        "the role Storage Blob Data Reader, or a SAS with the permissions rl",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a refusal is about."""

    scheme: str
    bucket: str
    uri: str
    field: str
    endpoint: str
    account: str
    signed: bool


def explained(answer: Answer, asked: Asked, *, listing: bool) -> Exception:
    """The refusals of a bucket, told apart: FetchFailed, or what may be tried again."""
    wording = WORDING[asked.scheme]
    known = answer.status == 401 or "failed to authenticate" in answer.text
    if answer.code in _BAD_KEYS or _BAD_KEY.search(answer.text) or (known and asked.signed):
        return failed.token_refused(
            f"{wording.server} does not accept the credentials ({answer.code or answer.status}): {answer.words}",
            remedy(asked.scheme),
        )
    if answer.code in _NO_BUCKET or (answer.status == 404 and listing):
        where = asked.endpoint or (f"the account {asked.account} of Azure" if asked.account else wording.own)
        hint = f"A {wording.name} of another server needs {wording.section}.endpoint."
        private = "" if asked.signed or asked.scheme == "s3" else f" A private one needs {wording.secret}."
        return failed.not_found(asked.field, f"There is no {wording.name} {asked.bucket} at {where}.", hint + private)
    if answer.status in (401, 403, 409):
        who = "these credentials" if asked.signed else "anybody without credentials"
        return failed.access_denied(
            f"{wording.server} does not let {who} read {asked.uri}: {answer.words}",
            f"Give credentials in {wording.secret} that may list the {wording.name} and read its objects "
            f"({wording.rights}).",
        )
    if answer.status in (404, 412):
        return changed(asked.uri)
    return passing(answer, asked.uri)


def changed(uri: str) -> failed.FetchFailed:
    """Another content than was listed."""
    return failed.download_failed(f"{uri} changed while it was fetched.", "whoever writes there")


def no_credentials(answer: Answer, scheme: str) -> Exception:
    """Whoever was to give the credentials does not, or they are malformed."""
    if answer.is_request and (answer.status == 0 or answer.status >= 500):
        return passing(answer, "the server that gives the role's credentials")
    told = f" ({answer.code})" if answer.code and answer.code != answer.words else ""
    message = f"The credentials for {scheme}:// cannot be used, or their role gives none{told}: {answer.words}"
    return failed.token_refused(message, remedy(scheme))


def remedy(scheme: str) -> str:
    """What to do about credentials that are wrong."""
    kind = "keys" if scheme != "gs" else "key"
    return (
        f"Check the {kind} in the Secret that {WORDING[scheme].secret} names, or the service account's role, and the "
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
    # Azure adds a number and the time of each request, which would make each message another one.
    text = without_queries(text).partition("RequestId:")[0]
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
