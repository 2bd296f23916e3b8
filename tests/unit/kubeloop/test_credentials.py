"""Credentials of a pod and of kubeconfigs."""

import asyncio
import base64
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeloop import credentials as product
from kubeloop.credentials import IssuedToken, Token, load
from kubeloop.errors import ConfigError

from tests.support.kubeconfig import kubeconfig


def write_config(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    return kubeconfig(folder, user, namespace="team", **({"server": "https://api:6443/"} | cluster))


async def found(path: Path | str | None = None, context: str | None = None, **kwargs: Any) -> Any:
    kwargs.setdefault("service_account", Path("/nowhere"))
    kwargs.setdefault("environ", {})
    return await load(kubeconfig=str(path) if path else None, context=context, **kwargs)


async def test_inline_material(tmp_path: Path) -> None:
    data = {name: base64.b64encode(name.encode()).decode() for name in ("cert", "key", "ca")}
    user = {"client-certificate-data": data["cert"], "client-key-data": data["key"]}
    credentials = await found(write_config(tmp_path, user, **{"certificate-authority-data": data["ca"]}))
    assert (credentials.server, credentials.namespace) == ("https://api:6443", "team")
    assert (credentials.client_certificate, credentials.client_key, credentials.ca) == (b"cert", b"key", b"ca")


async def test_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"CA")
    (tmp_path / "token").write_text("from-file\n")
    credentials = await found(write_config(tmp_path, {"tokenFile": "token"}, **{"certificate-authority": "ca.crt"}))
    assert (credentials.ca, await credentials.token()) == (b"CA", "from-file")


async def test_another_context_and_its_default_namespace(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"token": "t"})
    config = yaml.safe_load(path.read_text())
    config["contexts"].append({"name": "two", "context": {"cluster": "c", "user": "u"}})
    path.write_text(yaml.safe_dump(config))
    assert (await found(path, context="two")).namespace == "default"


async def test_the_environment_names_the_kubeconfig(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"token": "t"})
    assert await (await found(environ={"KUBECONFIG": f"/other:{path}"})).token() == "t"


async def test_an_unknown_context_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no context 'three'; it has: one"):
        await found(write_config(tmp_path, {"token": "t"}), context="three")


@pytest.mark.parametrize("content", [None, b"just a word", b"\xff\xfe\x00", b"- a list"])
async def test_a_file_that_is_missing_or_no_kubeconfig_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="--kubeconfig" if content is None else "kubeconfig") as caught:
        await found(path)
    assert str(path) in str(caught.value)


def service_account(folder: Path, host: str = "10.96.0.1") -> dict[str, Any]:
    """How `load` finds that of a pod."""
    for name, text in {"token": "pod-token\n", "namespace": "system\n", "ca.crt": "CA"}.items():
        (folder / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    return {"service_account": folder, "environ": environ}


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
async def test_in_a_pod(tmp_path: Path, host: str, server: str) -> None:
    credentials = await found(**service_account(tmp_path, host))
    assert (credentials.server, credentials.namespace, await credentials.token()) == (server, "system", "pod-token")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder, environ: (folder / "ca.crt").unlink(), "ca.crt"),
        (lambda folder, environ: (folder / "token").write_text("\n"), "token is empty"),
        (lambda folder, environ: (folder / "namespace").write_bytes(b"\xff"), "utf-8"),
        (lambda folder, environ: environ.pop("KUBERNETES_SERVICE_PORT"), "KUBERNETES_SERVICE_PORT"),
        (lambda folder, environ: environ.update(KUBERNETES_SERVICE_HOST=""), "KUBERNETES_SERVICE_HOST"),
    ],
    ids=["no CA", "an empty token", "a namespace that is no text", "no port", "an empty host"],
)
async def test_what_a_pod_lacks_is_named(
    tmp_path: Path, spoil: Callable[[Path, dict[str, str]], object], named: str
) -> None:
    where = service_account(tmp_path)
    spoil(tmp_path, where["environ"])
    with pytest.raises(ConfigError, match=named) as caught:
        await found(**where)
    assert "--kubeconfig" in str(caught.value)


async def test_a_named_kubeconfig_wins_over_the_service_account(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"token": "t"})
    assert await (await found(path, **service_account(tmp_path))).token() == "t"


@pytest.mark.parametrize("kind", ["pod", "kubeconfig"])
async def test_a_token_file_is_read_again_every_minute_without_waiting_and_when_refused(
    tmp_path: Path, kind: str
) -> None:
    by_file = {"tokenFile": "token", "token": "older"}
    where = service_account(tmp_path) if kind == "pod" else {"path": write_config(tmp_path, by_file)}
    path, now = tmp_path / "token", [0.0]
    path.write_text("one\n")
    token = (await found(clock=lambda: now[0], **where)).token
    assert await token() == "one"
    path.write_text("two\n")
    now[0] = 59.0
    assert await token() == "one"
    now[0] = 60.0
    assert await token() == "one", "it is being read"
    await token.renewed()
    assert await token() == "two"
    path.write_text("three\n")
    token.forget()
    assert await token() == "three"


async def test_a_refusal_in_the_meantime_leaves_no_request_without_a_token() -> None:
    """It may come between the next token and a request that waits for it."""

    async def fetch() -> IssuedToken:
        asyncio.get_running_loop().call_soon(token.forget)
        return IssuedToken("next")

    token = Token(IssuedToken("first"), fetch)
    token.forget()
    assert await token() == "next"


async def test_a_refused_token_of_a_kubeconfig_is_read_again(tmp_path: Path) -> None:
    """A new login writes it into the same file."""
    token = (await found(write_config(tmp_path, {"token": "one"}))).token
    write_config(tmp_path, {"token": "two"})
    assert await token() == "one"
    token.forget()
    assert await token() == "two"


@pytest.mark.parametrize(
    ("passed", "refused", "sent", "fetches"),
    [(0, False, "old", 0), (575, False, "old", 1), (596, False, "new", 1), (0, True, "new", 1)],
    ids=["valid", "about to expire, and still sent", "too near its end", "refused"],
)
async def test_another_token_is_fetched_before_the_end_or_after_a_refusal(
    passed: int, refused: bool, sent: str, fetches: int
) -> None:
    fetched: list[IssuedToken] = []

    async def fetch() -> IssuedToken:
        fetched.append(IssuedToken("new"))
        return fetched[-1]

    token = Token(IssuedToken("old", renew_at=570, expires_at=595), fetch, lambda: passed)
    if refused:
        token.forget()
    assert await token() == sent
    await asyncio.sleep(0)
    assert len(fetched) == fetches
    assert await token() == ("new" if fetches else "old")


async def test_a_token_is_fetched_once_for_all_requests_that_wait() -> None:
    fetches, release = [], asyncio.Event()

    async def fetch() -> IssuedToken:
        fetches.append(True)
        await release.wait()
        return IssuedToken("new")

    token = Token(IssuedToken("old", expires_at=0), fetch)
    waiting = [asyncio.create_task(token()) for _ in range(50)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    release.set()
    assert await asyncio.gather(*waiting) == ["new"] * 50
    assert len(fetches) == 1


async def test_a_failed_fetch_is_not_repeated_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = []

    async def fetch() -> IssuedToken:
        fetches.append(True)
        raise ConfigError("please log in")

    token = Token(IssuedToken("old", expires_at=0), fetch)
    for _ in range(10):
        with pytest.raises(ConfigError, match="please log in"):
            await token()
    assert len(fetches) == 1
    monkeypatch.setattr(product, "RETRY_SECONDS", 0.0)
    with pytest.raises(ConfigError):
        await token()
    assert len(fetches) == 2


async def test_several_kubeconfigs_are_merged(tmp_path: Path) -> None:
    """As by kubectl: files are relative to the one that names them."""
    users = tmp_path / "users"
    users.mkdir()
    (users / "me.crt").write_text("CERT")
    (users / "me.key").write_text("KEY")
    first = write_config(tmp_path, {})
    first.write_text(first.read_text().partition("users:")[0])
    user = {"client-certificate": "me.crt", "client-key": "me.key"}
    (users / "config").write_text(yaml.safe_dump({"users": [{"name": "u", "user": user}]}))
    credentials = await found(environ={"KUBECONFIG": f"{first}:{users / 'config'}"})
    assert (credentials.client_certificate, credentials.client_key) == (b"CERT", b"KEY")


async def test_no_file_with_keys_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenSSL reads key pairs from files only; one that stayed would outlive a process that is killed."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    data = {key: base64.b64encode(b"KEY").decode() for key in ("client-certificate-data", "client-key-data")}
    for _ in range(2):
        assert (await found(write_config(tmp_path, data))).client_key == b"KEY"
    assert list(folder.rglob("*")) == []


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "provider": ({"auth-provider": {"x": "s3cret"}}, {}, ["auth-provider", "kubectl create token"]),
    "impersonation": ({"token": "s3cret", "as": "viewer"}, {}, ["as, not supported"]),
    "password": ({"username": "me", "password": "s3cret"}, {}, ["username", "kubectl create token"]),
    "socks": ({}, {"proxy-url": "socks5://me:s3cret@p:1"}, ["proxy-url", "http://proxy:3128"]),
    "a proxy's password": ({}, {"proxy-url": "http://me:s3cret@p:1"}, ["proxy-url", "passwords"]),
    "no proxy": ({}, {"proxy-url": "no url"}, ["proxy-url"]),
    "no server": ({}, {"server": ""}, ["the cluster 'c'", "no server"]),
    "no base64": ({"client-key-data": "s3cret!"}, {}, ["cannot read the kubeconfig"]),
    "no key file": ({"client-key": "nowhere"}, {}, ["No such file", "nowhere"]),
    "no token file": ({"tokenFile": "nowhere"}, {}, ["No such file", "nowhere"]),
    "no program": ({"exec": {"args": ["s3cret"]}}, {}, ["missing key 'command'"]),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_each_refusal_has_its_cause_and_quotes_no_secret(tmp_path: Path, case: str) -> None:
    user, cluster, texts = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        await found(write_config(tmp_path, user, **cluster))
    assert [text for text in texts if text not in str(caught.value)] == []
    assert "s3cret" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "users",
    [
        "[{name: u, token: s3cret}]",
        "[{name: u, user: {token: *s3cret}}]",
        "s3cret",
        "[s3cret]",
        "[{user: {token: s3cret}}]",
        "[{name: u, user: s3cret}]",
        "[{name: u, user: {token: s3cret, x: !!int ''}}]",
        "[" * 25_000 + "s3cret" + "]" * 25_000,
    ],
)
async def test_unreadable_users_are_not_quoted(tmp_path: Path, users: str) -> None:
    path = write_config(tmp_path, {})
    path.write_text(f"{path.read_text().partition('users:')[0]}users: {users}\n")
    with pytest.raises(ConfigError, match="config") as caught:
        await found(path)
    assert "s3cret" not in str(caught.value)


async def test_a_name_for_tls_and_a_proxy_of_the_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://of-the-environment:1")
    cluster = {"tls-server-name": "kubernetes", "insecure-skip-tls-verify": True}
    credentials = await found(write_config(tmp_path, {"token": "t"}, **cluster))
    assert (credentials.tls_server_name, credentials.insecure, credentials.proxy) == ("kubernetes", True, None)
    credentials = await found(write_config(tmp_path, {"token": "t"}, **{"proxy-url": "http://proxy:3128"}))
    assert credentials.proxy == "http://proxy:3128"
