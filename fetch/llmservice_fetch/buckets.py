"""s3://BUCKET/PREFIX, gs://BUCKET/PREFIX and az://CONTAINER/PREFIX, by obstore.

Clouds' own servers, or any that speaks their API (AWS_ENDPOINT_URL_S3, GOOGLE_BASE_URL, AZURE_STORAGE_ENDPOINT).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypeVar

import obstore
from obstore.exceptions import BaseError, InvalidPathError

from llmservice_fetch import bucket_errors, failed
from llmservice_fetch.bucket_headers import digest_of, head, region_of
from llmservice_fetch.bucket_stores import SCHEMES, Access, Identity, Store, access_of
from llmservice_fetch.files import Digest, Listing, RemoteFile, is_file_path, is_inside

T = TypeVar("T")
# Larger ones cost more: obstore gathers each from many small ones.
_CHUNK_BYTES = 256 << 10
_PAGE = 1000
_MOST_FILES = 50_000
_LARGEST_BYTES = 1 << 50
_HEAD_SECONDS = 30.0
_SIGNED_FOR = timedelta(minutes=5)
# What obstore raises: its own types, and two of Python's for what is not there and for malformed arguments.
_ERRORS = (BaseError, FileNotFoundError, ValueError)


@dataclass(frozen=True)
class Bucket:
    """The objects below a prefix. `field` is the field of the spec that names them."""

    access: Access
    prefix: str
    field: str
    asked: str = "latest"
    pinned: str | None = None
    timeout: float | None = None
    """Seconds without a byte; None: as long as a fetch waits."""

    @classmethod
    def of(cls, uri: str, field: str, environment: Mapping[str, str], hide: Callable[[str], None]) -> Bucket | None:
        """From a URI; None where it names no bucket."""
        scheme, _, rest = uri.partition("://")
        if scheme not in SCHEMES or not is_inside(rest):
            return None
        bucket, _, prefix = rest.partition("/")
        access = access_of(scheme, bucket, environment, hide)
        if scheme == "az" and not access.account:
            raise failed.not_found(
                field, f"{uri} does not say in which storage account it is.", "Set spec.model.azure.account."
            )
        return cls(access, prefix.strip("/"), field)

    @property
    def uri(self) -> str:
        """For messages."""
        return f"{self.access.scheme}://{self.access.bucket}/{self.prefix}".rstrip("/")

    @property
    def folder(self) -> str:
        """One for each server, account, bucket and prefix."""
        account = (self.access.account,) if self.access.account else ()
        return f"{self.access.scheme}/{self.access.bucket}--{_hash(self.access.endpoint, *account, self.prefix)[:12]}"

    def listing(self) -> Listing:
        """All objects. Their names, sizes and ETags are the revision."""
        files = self._ask(self._listed, listing=True)
        if not files:
            section = bucket_errors.WORDING[self.access.scheme].section
            other = f" Or {section}.endpoint names something else." if self.access.endpoint else ""
            hint = f"The prefix is the model's folder.{other}"
            raise failed.not_found(self.field, f"There is nothing in {self.uri}.", hint)
        return Listing(_hash(*(f"{file.path} {file.blob}" for file in files)), tuple(files))

    def digest(self, file: RemoteFile) -> Digest | None:
        """The object's MD5 where the server publishes one, to a request that can be signed here or needs no signature.

        obstore does not pass on the headers that say so.
        """
        url = self._ask(lambda store: self._head_address(store, self._key(file)))
        if url is None:
            return None
        try:
            status, headers = head(url, self.timeout or _HEAD_SECONDS)
        except (OSError, ValueError) as error:
            # Not the error's own text, which may hold the signed URL.
            raise bucket_errors.unreachable(self.uri, str(getattr(error, "reason", type(error).__name__))) from None
        return digest_of(self.access.scheme, headers, file.version) if status == 200 else None

    @contextmanager
    def read(self, listing: Listing, file: RemoteFile, start: int, end: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """A part of an object, while it is the one that was listed."""
        result = self._ask(lambda store: self._get(store, file, start, end))
        if result.meta["size"] != file.size or _tag(result.meta["e_tag"] or file.version) != _tag(file.version):
            # Some servers do not know If-Match.
            raise bucket_errors.changed(self.uri)
        yield result.range[0], self._chunks(result)

    def _listed(self, store: Store) -> list[RemoteFile]:
        found: list[Mapping[str, Any]] = []
        for page in obstore.list(store, self.prefix or None, chunk_size=_PAGE):
            found += page
            if len(found) > _MOST_FILES:
                message = f"{self.uri} holds more than {_MOST_FILES} objects."
                raise failed.not_found(self.field, message, "The prefix is the model's folder, and not all models'.")
        return files_of(found, self.prefix, self.uri)

    def _get(self, store: Store, file: RemoteFile, start: int, end: int) -> obstore.GetResult:
        options: obstore.GetOptions = {"if_match": file.version} if file.version else {}
        if (start, end) == (0, file.size):
            return obstore.get(store, self._key(file), options=options)
        try:
            return obstore.get(store, self._key(file), options={**options, "range": (start, end)})
        except BaseError as error:
            if "non-partial response" not in str(error):
                raise
            # A server that does not know Range sends everything, and the caller starts anew.
            return obstore.get(store, self._key(file), options=options)

    def _chunks(self, result: obstore.GetResult) -> Iterator[bytes]:
        try:
            yield from result.stream(min_chunk_size=_CHUNK_BYTES)
        except _ERRORS as error:
            raise bucket_errors.passing(bucket_errors.read(error), self.uri) from None

    def _head_address(self, store: Store, key: str) -> str | None:
        if self.access.identity is Identity.NOBODY:
            return self.access.address(key)
        # A signature of Azure's names rights, and obstore gives none to HEAD.
        method: Literal["GET", "HEAD"] = "GET" if self.access.scheme == "az" else "HEAD"
        return obstore.sign(store, method, key, _SIGNED_FOR) if self.access.signs else None

    def _key(self, file: RemoteFile) -> str:
        return f"{self.prefix}/{file.path}" if self.prefix else file.path

    def _ask(self, action: Callable[[Store], T], *, listing: bool = False) -> T:
        """The result of an action, repeated where the answer says who or where to ask instead."""
        while True:
            try:
                result = action(self.access.store(self.timeout))
            except _ERRORS as error:
                answer = bucket_errors.read(error)
                if not self._goes_elsewhere(answer):
                    raise self._explained(error, answer, listing=listing) from None
            else:
                self.access.answered = True
                return result

    def _goes_elsewhere(self, answer: bucket_errors.Answer) -> bool:
        """Each at most once: without credentials where the machine has none, and to the bucket's own region."""
        access = self.access
        # A role that worked once is there: its failure now is a failure, and not a machine without a role.
        if access.identity is Identity.MACHINE and not access.answered and self._is_about_credentials(answer):
            access.identity = Identity.NOBODY
            return True
        if access.scheme != "s3" or access.moved or not (answer.region or answer.bare_redirect):
            return False
        region = answer.region or region_of(access.address(), self.timeout or _HEAD_SECONDS)
        access.moved, changed, access.region = True, region not in ("", access.region), region or access.region
        return changed

    def _is_about_credentials(self, answer: bucket_errors.Answer) -> bool:
        """Whether another server failed than the bucket's, or none was asked.

        The URLs that obstore hides are those of Azure with a SAS, and of AWS' token service.
        """
        hidden = answer.is_redacted and self.access.scheme == "az"
        of_bucket = hidden or answer.url.startswith(self.access.address().rstrip("/"))
        return not (of_bucket or answer.is_body or answer.bare_redirect)

    def _explained(self, error: BaseException, answer: bucket_errors.Answer, *, listing: bool) -> Exception:
        access = self.access
        if isinstance(error, InvalidPathError):
            return failed.unusable(answer.words, self.uri)
        if "invalid list response" in str(error):
            wording = bucket_errors.WORDING[access.scheme]
            where, name = access.endpoint or wording.own, wording.server.removeprefix("The ")
            message = f"{where} does not answer a listing as {name} does."
            return failed.not_found(self.field, message, f"Check {wording.section}.endpoint.")
        signed = access.identity is not Identity.NOBODY
        if signed and self._is_about_credentials(answer):
            return bucket_errors.no_credentials(answer, access.scheme)
        asked = bucket_errors.Asked(
            access.scheme, access.bucket, self.uri, self.field, access.endpoint, access.account, signed
        )
        return bucket_errors.explained(answer, asked, listing=listing)


def files_of(found: Sequence[Mapping[str, Any]], prefix: str, uri: str) -> list[RemoteFile]:
    """What was listed, by path. FetchFailed for anything that is no file below the prefix.

    An empty object that has others below it is what some programs call a folder.
    """
    start = f"{prefix}/" if prefix else ""
    files: dict[str, RemoteFile] = {}
    folders: set[str] = set()
    for item in found:
        key, size = str(item["path"]), item["size"]
        if key == prefix and size == 0:
            continue
        path = key[len(start) :]
        tag = item["e_tag"] or ""
        sound = tag.isascii() and tag.isprintable() and 0 <= size <= _LARGEST_BYTES
        if not (sound and key.startswith(start) and is_file_path(path)):
            raise failed.unusable(key, uri)
        files[path] = RemoteFile(path, size, _hash(path, tag or str(item["last_modified"]), str(size)), version=tag)
        folders.update(path[:at] for at, character in enumerate(path) if character == "/")
    if both := [path for path in folders & files.keys() if files[path].size]:
        raise failed.unusable(min(both), uri)
    return [files[path] for path in sorted(files.keys() - folders)]


def _tag(text: str) -> str:
    return text.removeprefix("W/").strip('"')


def _hash(*words: str) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:40]
