"""Who may read /metrics: everybody, or whoever the API server says may; over TLS where there is a certificate."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubeloop import health
from kubeloop.errors import ConfigError, Forbidden
from kubeloop.health import (
    ACCESS_REVIEW,
    TOKEN_REVIEW,
    Access,
    Certificate,
    HealthServer,
    Readiness,
    Refusal,
)

from tests.support.ports import free_port
from tests.unit.api_server import ApiServer, Connection

USERS = {"prometheus": "system:serviceaccount:monitoring:prometheus", "tenant": "system:serviceaccount:team-a:default"}


class Reviews(Connection):
    """An API server that knows two tokens, by their users' names, and lets one of them read metrics."""

    def __init__(self) -> None:
        super().__init__(ApiServer())
        self.server.reviews = {"TokenReview": self.identified, "SubjectAccessReview": self.reviewed}
        self.delay = lambda: asyncio.sleep(0)
        self.allowed = {USERS["prometheus"]}

    def identified(self, spec: dict[str, Any]) -> dict[str, Any]:
        name = USERS.get(spec["token"])
        if name is None:
            return {"error": "unknown"}
        return {"authenticated": True, "user": {"username": name, "groups": ["g"]}}

    def reviewed(self, spec: dict[str, Any]) -> dict[str, Any]:
        return {"allowed": spec["user"] in self.allowed}


@contextlib.asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[tuple[aiohttp.ClientSession, int, int]]:
    health, metrics = free_port(), free_port()
    server = HealthServer(
        alive=lambda: None,
        ready=lambda: Readiness(True),
        metrics=lambda: b"figures",
        health_port=health,
        metrics_port=metrics,
        **more,
    )
    await server.start("127.0.0.1")
    try:
        async with aiohttp.ClientSession() as session:
            yield session, health, metrics
    finally:
        await server.stop()


ASKED: dict[str, tuple[str | None, int, str]] = {
    "nobody": (None, 401, "bearer token"),
    "another scheme": ("Basic abc", 401, "bearer token"),
    "an empty token": ("Bearer ", 401, "bearer token"),
    "a made-up token": ("Bearer nonsense", 401, "does not know this token"),
    "somebody without the right": ("Bearer tenant", 403, "team-a:default may not get /metrics"),
    "somebody with the right": ("Bearer prometheus", 200, "figures"),
}


@pytest.mark.parametrize("case", ASKED)
async def test_only_those_who_may_get_the_path_read_the_metrics(case: str) -> None:
    header, status, words = ASKED[case]
    async with serving(guard=Access(Reviews())) as (session, health, metrics):
        headers = {"Authorization": header} if header is not None else {}
        async with session.get(f"http://127.0.0.1:{metrics}/metrics", headers=headers) as response:
            assert (response.status, words in await response.text()) == (status, True)
            assert ("WWW-Authenticate" in response.headers) is (status == 401)
        async with session.get(f"http://127.0.0.1:{health}/readyz") as response:
            assert response.status == 200, "the kubelet has no token"


async def test_what_is_asked_of_the_api_server() -> None:
    reviews = Reviews()
    assert await Access(reviews)("bearer prometheus") is None
    user = {"user": USERS["prometheus"], "uid": "", "groups": ["g"], "extra": {}}
    assert [(path, body["kind"], body["spec"]) for _, path, _, body in reviews.server.requests] == [
        (TOKEN_REVIEW.path(None), "TokenReview", {"token": "prometheus"}),
        (
            ACCESS_REVIEW.path(None),
            "SubjectAccessReview",
            {**user, "nonResourceAttributes": {"path": "/metrics", "verb": "get"}},
        ),
    ]


def status_of(refusal: Refusal | None) -> int:
    return 200 if refusal is None else refusal.status


async def test_an_answer_is_kept_for_a_while_and_no_longer() -> None:
    reviews, now = Reviews(), [0.0]
    guard = Access(reviews, clock=lambda: now[0])
    for _ in range(3):
        assert await guard("Bearer prometheus") is None
    assert len(reviews.server.calls) == 2
    reviews.allowed.clear()
    now[0] += health.ALLOWED_SECONDS
    assert status_of(await guard("Bearer prometheus")) == 403, "the right was taken away"
    reviews.allowed.add(USERS["prometheus"])
    now[0] += health.REFUSED_SECONDS
    assert await guard("Bearer prometheus") is None


async def test_made_up_tokens_flood_neither_the_api_server_nor_the_memory_and_lock_nobody_out() -> None:
    reviews = Reviews()
    guard = Access(reviews)
    assert await guard("Bearer prometheus") is None
    reviews.server.calls.clear()
    answers = await asyncio.gather(*(guard(f"Bearer {number}") for number in range(1000)))
    statuses = [answer.status for answer in answers if answer is not None]
    assert (statuses.count(401), statuses.count(429)) == (health.MAX_WAITING, 1000 - health.MAX_WAITING)
    assert reviews.most_at_once <= health.CONCURRENT_REVIEWS
    for number in range(1000):
        await guard(f"Bearer x{number}")
    assert len(guard._refused) == health.CACHE_SIZE
    reviews.server.calls.clear()
    assert await guard("Bearer prometheus") is None
    assert reviews.server.calls == []


async def test_without_the_right_to_ask_nobody_reads_them_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reviews = Reviews()
    no_right = Forbidden("no", right="create tokenreviews.authentication.k8s.io")
    reviews.server.fails["create TokenReview"] = [no_right] * 3
    guard = Access(reviews)
    for _ in range(3):
        assert status_of(await guard("Bearer prometheus")) == 503
    assert sum("create tokenreviews" in record.message for record in caplog.records) == 1
    assert await guard("Bearer prometheus") is None


async def make_certificate(folder: Path, name: str) -> Path:
    """Self-signed, as a Secret is mounted."""
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    made = await asyncio.create_subprocess_exec(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(folder / "tls.key"), "-out", str(folder / "tls.crt"),
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await made.wait() == 0
    return folder


async def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path) -> None:
    certificate = Certificate(await make_certificate(tmp_path / "tls", "one"))
    async with serving(metrics_tls=certificate.context) as (session, health, metrics):

        async def read() -> str:
            trusted = ssl.create_default_context(cafile=str(tmp_path / "tls" / "tls.crt"))
            async with session.get(f"https://127.0.0.1:{metrics}/metrics", ssl=trusted) as response:
                return await response.text()

        assert await read() == "figures"
        await make_certificate(tmp_path / "tls", "two")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await read()
        assert certificate.refresh()
        assert not certificate.refresh()
        assert await read() == "figures"
        async with session.get(f"http://127.0.0.1:{health}/healthz") as response:
            assert response.status == 200


def test_a_folder_without_a_certificate_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read the certificate in {tmp_path}"):
        Certificate(tmp_path)
