"""Where the API server is: in a pod, or by a kubeconfig."""

import asyncio
import base64
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_operator.kube import single_flight
from llmservice_operator.kube.credentials import Issued, Token, load
from llmservice_operator.kube.errors import ConfigError

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


async def test_an_unknown_context_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no context 'three'; it has: one"):
        await found(write_config(tmp_path, {"token": "t"}), context="three")


async def test_no_kubeconfig_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--kubeconfig"):
        await found(tmp_path / "none")


@pytest.mark.parametrize("content", [b"just a word", b"\xff\xfe\x00", b"- a list"])
async def test_a_file_that_is_no_kubeconfig_is_reported_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="kubeconfig") as caught:
        await found(path)
    assert str(path) in str(caught.value)


def service_account(tmp_path: Path) -> Path:
    for name, text in {"token": "pod-token\n", "namespace": "system\n", "ca.crt": "CA"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("host", "server"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
async def test_in_a_pod(tmp_path: Path, host: str, server: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    credentials = await found(service_account=service_account(tmp_path), environ=environ)
    assert (credentials.server, credentials.namespace, await credentials.token()) == (server, "system", "pod-token")


async def test_a_named_kubeconfig_wins_over_the_service_account(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"token": "t"})
    assert await (await found(path, service_account=service_account(tmp_path))).token() == "t"


def in_a_pod(tmp_path: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    """The file of the token, and how `load` finds it."""
    if kind == "pod":
        environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
        return tmp_path / "token", {"service_account": service_account(tmp_path), "environ": environ}
    return tmp_path / "token", {"path": write_config(tmp_path, {"tokenFile": "token", "token": "older"})}


@pytest.mark.parametrize("kind", ["pod", "kubeconfig"])
async def test_the_token_is_read_again_every_minute_and_nobody_waits_for_it(tmp_path: Path, kind: str) -> None:
    path, where = in_a_pod(tmp_path, kind)
    path.write_text("one\n")
    now = [0.0]
    token = (await found(clock=lambda: now[0], **where)).token
    assert await token() == "one"
    path.write_text("two\n")
    now[0] = 59.0
    assert await token() == "one"
    now[0] = 60.0
    assert await token() == "one", "it is being read"
    await token._flight.wait()
    assert await token() == "two"


async def test_a_refusal_of_another_request_leaves_none_without_a_token() -> None:
    """It may come between the next token and whoever waits for it."""

    async def fetch() -> Issued:
        asyncio.get_running_loop().call_soon(token.forget)
        return Issued("next")

    token = Token(Issued("first"), fetch)
    token.forget()
    assert await token() == "next"


@pytest.mark.parametrize("kind", ["pod", "kubeconfig"])
async def test_a_refused_token_is_read_again_at_once(tmp_path: Path, kind: str) -> None:
    path, where = in_a_pod(tmp_path, kind)
    path.write_text("one")
    token = (await found(clock=lambda: 0.0, **where)).token
    path.write_text("two")
    token.forget()
    assert await token() == "two"


async def test_a_refused_token_of_a_kubeconfig_is_read_again(tmp_path: Path) -> None:
    """Who logs in anew has it written into the same file."""
    token = (await found(write_config(tmp_path, {"token": "one"}))).token
    write_config(tmp_path, {"token": "two"})
    assert await token() == "one"
    token.forget()
    assert await token() == "two"


@pytest.mark.parametrize(
    ("passed", "forgotten", "sent", "fetches"),
    [
        pytest.param(0, False, "old", 0, id="still good"),
        pytest.param(575, False, "old", 1, id="about to end, and still sent"),
        pytest.param(596, False, "new", 1, id="too near its end"),
        pytest.param(0, True, "new", 1, id="not accepted"),
    ],
)
async def test_another_token_is_fetched_when_it_must(passed: int, forgotten: bool, sent: str, fetches: int) -> None:
    fetched: list[Issued] = []

    async def fetch() -> Issued:
        fetched.append(Issued("new"))
        return fetched[-1]

    token = Token(Issued("old", renew_at=570, ends_at=595), fetch, lambda: passed)
    if forgotten:
        token.forget()
    assert await token() == sent
    await asyncio.sleep(0)
    assert len(fetched) == fetches
    assert await token() == ("new" if fetches else "old")


async def test_a_token_is_fetched_once_for_all_who_wait_and_nothing_else_waits() -> None:
    fetches, release = 0, asyncio.Event()

    async def fetch() -> Issued:
        nonlocal fetches
        fetches += 1
        await release.wait()
        return Issued("new")

    token = Token(Issued("old", ends_at=0), fetch)
    waiting = [asyncio.create_task(token()) for _ in range(50)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    release.set()
    assert await asyncio.gather(*waiting) == ["new"] * 50
    assert fetches == 1


async def test_one_that_cannot_be_fetched_is_not_asked_for_at_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    fetches = 0

    async def fetch() -> Issued:
        nonlocal fetches
        fetches += 1
        raise ConfigError("please log in")

    token = Token(Issued("old", ends_at=0), fetch)
    for _ in range(10):
        with pytest.raises(ConfigError, match="please log in"):
            await token()
    assert fetches == 1
    monkeypatch.setattr(single_flight, "AFTER_FAILURE", 0.0)
    with pytest.raises(ConfigError):
        await token()
    assert fetches == 2


async def test_several_kubeconfigs_are_one(tmp_path: Path) -> None:
    """As kubectl merges them: files beside the one that names them, the first of a name wins."""
    for folder in ("clusters", "users"):
        (tmp_path / folder).mkdir()
    (tmp_path / "users" / "me.crt").write_text("CERT")
    (tmp_path / "users" / "me.key").write_text("KEY")
    first, second = tmp_path / "clusters" / "config", tmp_path / "users" / "config"
    first.write_text(
        yaml.safe_dump(
            {
                "current-context": "one",
                "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://api:6443"}}],
            }
        )
    )
    user = {"client-certificate": "me.crt", "client-key": "me.key"}
    second.write_text(yaml.safe_dump({"users": [{"name": "u", "user": user}]}))
    credentials = await found(environ={"KUBECONFIG": f"{first}:{second}"})
    assert (credentials.client_certificate, credentials.client_key) == (b"CERT", b"KEY")


async def test_keys_are_left_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package writes inline keys into files that stay until the process ends, or for ever where it is killed."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    data = {key: base64.b64encode(b"KEY").decode() for key in ("client-certificate-data", "client-key-data")}
    for _ in range(2):
        assert (await found(write_config(tmp_path, data))).client_key == b"KEY"
    assert list(folder.rglob("*")) == []


@pytest.mark.parametrize(
    ("user", "cluster", "words"),
    [
        pytest.param({"auth-provider": {"x": "s3cret"}}, {}, ["auth-provider", "kubectl create token"], id="provider"),
        pytest.param({"token": "s3cret", "as": "viewer"}, {}, ["as, not supported"], id="impersonation"),
        pytest.param({"username": "me", "password": "s3cret"}, {}, ["username", "kubectl create token"], id="password"),
        pytest.param({}, {"proxy-url": "socks5://me:s3cret@p:1"}, ["proxy-url", "http://proxy:3128"], id="socks"),
        pytest.param({}, {"proxy-url": "http://me:s3cret@p:1"}, ["proxy-url", "passwords"], id="a proxy's password"),
        pytest.param({}, {"proxy-url": "no url"}, ["proxy-url"], id="no proxy"),
        pytest.param({}, {"server": ""}, ["the cluster 'c'", "no server"], id="no server"),
        pytest.param({"client-key-data": "s3cret!"}, {}, ["cannot read the kubeconfig"], id="no base64"),
        pytest.param({"client-key": "nowhere"}, {}, ["File does not exist", "nowhere"], id="no key file"),
        pytest.param({"tokenFile": "nowhere"}, {}, ["No such file", "nowhere"], id="no token file"),
        pytest.param({"exec": {"args": ["s3cret"]}}, {}, ["missing key 'command'"], id="no program"),
    ],
)
async def test_each_refusal_says_why_and_quotes_no_secret(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        await found(write_config(tmp_path, user, **cluster))
    for word in words:
        assert word in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("users: [{name: u, token: s3cret}]\n", id="a token in the wrong place"),
        pytest.param("users: [{name: u, user: {token: *s3cret}}]\n", id="no YAML"),
        pytest.param("users: s3cret\n", id="no list"),
        pytest.param("users: [s3cret]\n", id="no users"),
        pytest.param("users: [{user: {token: s3cret}}]\n", id="no name"),
        pytest.param("users: [{name: u, user: s3cret}]\n", id="no user"),
    ],
)
async def test_what_cannot_be_read_is_not_quoted(tmp_path: Path, text: str) -> None:
    path = write_config(tmp_path, {})
    path.write_text(path.read_text().partition("users:")[0] + text)
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
