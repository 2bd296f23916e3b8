"""hf://ORG/NAME[@REVISION]: the Hugging Face hub, or the mirror that HF_ENDPOINT names."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from llmservice_runtime.contract import HF_TOKEN_ENV

from llmservice_fetch import failed
from llmservice_fetch.files import Digest, Listing, RemoteFile, is_inside
from llmservice_fetch.http import (
    LINKED_TAG,
    Refused,
    Unreachable,
    ask,
    begins_at,
    chunks,
    range_header,
    wait_of,
)

HUB = "https://huggingface.co"
DEFAULT_REVISION = "main"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TOKEN_NAMES = (HF_TOKEN_ENV, "HUGGING_FACE_HUB_TOKEN")
_BAD_TOKEN = "invalid credentials"
_ANSWER_LIMIT = 64 << 20


@dataclass(frozen=True)
class Hub:
    """One repository. `field` is the field of the spec that names it."""

    repo: str
    asked: str
    field: str
    endpoint: str
    token: str
    offline: bool
    timeout: float | None = None
    """Seconds without a byte; None: as long as a fetch waits."""

    @classmethod
    def of(cls, rest: str, field: str, environment: Mapping[str, str]) -> Hub:
        """From what stands behind hf://."""
        repo, _, revision = rest.partition("@")
        return cls(
            repo,
            revision or DEFAULT_REVISION,
            field,
            (environment.get("HF_ENDPOINT") or HUB).rstrip("/"),
            next((environment[name].strip() for name in _TOKEN_NAMES if environment.get(name)), ""),
            environment.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"),
        )

    @property
    def uri(self) -> str:
        """For messages."""
        return f"hf://{self.repo}"

    @property
    def folder(self) -> str:
        """As huggingface_hub calls it below HF_HOME."""
        return f"hub/models--{self.repo.replace('/', '--')}"

    @property
    def pinned(self) -> str | None:
        """A commit needs nobody who resolves it."""
        return self.asked if _COMMIT.fullmatch(self.asked) else None

    def listing(self) -> Listing:
        """The revision's commit and its files."""
        document = self._json(f"/api/models/{self.repo}/revision/{quote(self.asked, safe='')}?blobs=true")
        commit = str(document["sha"])
        if not is_inside(commit) or "/" in commit:
            raise failed.unusable(commit, self.uri)
        files = []
        for item in document.get("siblings") or ():
            path = str(item["rfilename"])
            if not is_inside(path):
                raise failed.unusable(path, self.uri)
            files.append(_listed(path, item) or self._looked_up(commit, path))
        return Listing(commit, tuple(files))

    def digest(self, file: RemoteFile) -> Digest | None:
        """As it was listed."""
        return file.digest

    @contextmanager
    def read(self, listing: Listing, file: RemoteFile, start: int, end: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """A part of a file of the listed commit."""
        with self._ask(self._address(listing.revision, file.path), Range=range_header(start, end)) as answer:
            yield begins_at(answer), chunks(answer)

    def _looked_up(self, commit: str, path: str) -> RemoteFile:
        """For mirrors whose listing has names only."""
        with self._ask(self._address(commit, path), method="HEAD") as answer:
            headers = answer.headers
            size = headers.get("X-Linked-Size") or headers.get("Content-Length")
            tag = (headers.get(LINKED_TAG) or headers.get("ETag") or "").removeprefix("W/").strip('"')
        if not size or not re.fullmatch(r"[\w.-]+", tag):
            raise Unreachable(f"{self.endpoint} tells neither size nor ETag of {path}")
        return RemoteFile(path, int(size), tag, _digest_of(tag))

    def _address(self, commit: str, path: str) -> str:
        return f"{self.endpoint}/{self.repo}/resolve/{commit}/{quote(path)}"

    def _json(self, path: str) -> dict[str, Any]:
        with self._ask(self.endpoint + path) as answer:
            body = answer.read(_ANSWER_LIMIT)
        try:
            document = json.loads(body)
        except ValueError:
            document = None
        if not isinstance(document, dict) or "sha" not in document:
            raise failed.not_found(
                self.field,
                f"{self.endpoint} does not answer like a model hub.",
                "HF_ENDPOINT (services.hfEndpoint of the chart, or spec.runtime.env) must name the hub or a mirror.",
            )
        return document

    @contextmanager
    def _ask(self, url: str, *, method: str = "GET", **headers: str) -> Iterator[http.client.HTTPResponse]:
        if self.offline:
            message = f"HF_HUB_OFFLINE is set: nobody is asked for {self.uri}."
            raise failed.download_failed(message, "HF_HUB_OFFLINE in spec.runtime.env") from Unreachable("not asked")
        # Compressed bytes could not be counted, nor asked for from the middle.
        headers |= {"Accept-Encoding": "identity", "User-Agent": "llmservice"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        with ask(url, headers, method=method, timeout=self.timeout) as answer:
            if answer.status >= 400:
                raise self._explained(_refused(url, answer))
            yield answer

    def _explained(self, refused: Refused) -> Exception:
        """The hub's refusals, told apart. It answers 401 for what is private and for what is not there at all."""
        secret = "spec.model.tokenSecretRef"
        if refused.code == "RevisionNotFound":
            return failed.revision_not_found(self.field, self.uri, self.asked)
        if _BAD_TOKEN in refused.text.lower() or (refused.status == 401 and not refused.code and self.token):
            return failed.token_refused(
                f"{self.endpoint} does not accept the token: {refused.text or refused.status}.",
                f"Put a valid token into the Secret that {secret} names (it may have expired or been revoked).",
            )
        if refused.code == "GatedRepo":
            return failed.access_denied(
                f"{self.uri} is gated, and {'this token' if self.token else 'nobody without a token'} may read it: "
                f"{refused.text or refused.status}.",
                f"Accept the model's licence on the hub with the token's account, and give its token in {secret}.",
            )
        if refused.code == "RepoNotFound" or refused.status == 404:
            who = "or the token may not see it" if self.token else "or it is private"
            return failed.not_found(
                self.field, f"{self.endpoint} has no model {self.repo}, {who}.", f"A private model needs {secret}."
            )
        if refused.status in (401, 403):
            return failed.access_denied(
                f"{self.endpoint} refuses {self.uri}: {refused.text or refused.status}.",
                f"Give a token that may read it in {secret}.",
            )
        return refused


def _refused(url: str, answer: http.client.HTTPResponse) -> Refused:
    headers = answer.headers
    code, text = headers.get("X-Error-Code") or "", headers.get("X-Error-Message") or ""
    return Refused(answer.status, url, code=code, text=text.strip().rstrip("."), wait=wait_of(answer))


def _listed(path: str, item: Mapping[str, Any]) -> RemoteFile | None:
    """A file of the listing; None where its size and identity are missing."""
    large = item.get("lfs")
    blob, size = (large.get("sha256"), large.get("size")) if large else (item.get("blobId"), item.get("size"))
    if not isinstance(blob, str) or not isinstance(size, int) or not _digest_of(blob):
        return None
    return RemoteFile(path, size, blob, _digest_of(blob))


def _digest_of(tag: str) -> Digest | None:
    """The hub's ETags are hashes: git's of a small file, SHA-256 of a large one."""
    algorithm = {40: "git-sha1", 64: "sha256"}.get(len(tag))
    return Digest(algorithm, tag) if algorithm and re.fullmatch(r"[0-9a-f]+", tag) else None
