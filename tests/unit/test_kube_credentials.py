"""Where the API server is: in a pod, or by a kubeconfig."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from llmservice_operator.kube.credentials import TokenSource, load
from llmservice_operator.kube.errors import ConfigError


def write_config(folder: Path, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "one",
                "contexts": [
                    {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
                    {"name": "two", "context": {"cluster": "c", "user": "u"}},
                ],
                "clusters": [{"name": "c", "cluster": {"server": "https://api:6443/", **cluster}}],
                "users": [{"name": "u", "user": user}],
            }
        )
    )
    return path


def found(path: Path | str | None = None, context: str | None = None, **kwargs: Any) -> Any:
    kwargs.setdefault("service_account", Path("/nowhere"))
    kwargs.setdefault("environ", {})
    return load(clock=lambda: 0.0, kubeconfig=str(path) if path else None, context=context, **kwargs)


def test_inline_material(tmp_path: Path) -> None:
    data = {name: base64.b64encode(name.encode()).decode() for name in ("cert", "key", "ca")}
    user = {"client-certificate-data": data["cert"], "client-key-data": data["key"]}
    credentials = found(write_config(tmp_path, user, **{"certificate-authority-data": data["ca"]}))
    assert (credentials.server, credentials.namespace) == ("https://api:6443", "team")
    assert (credentials.client_certificate, credentials.client_key, credentials.ca) == (b"cert", b"key", b"ca")


async def test_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_bytes(b"CA")
    (tmp_path / "token").write_text("from-file\n")
    credentials = found(write_config(tmp_path, {"tokenFile": "token"}, **{"certificate-authority": "ca.crt"}))
    assert (credentials.ca, await credentials.token()) == (b"CA", "from-file")


def test_another_context_and_its_default_namespace(tmp_path: Path) -> None:
    assert found(write_config(tmp_path, {"token": "t"}), context="two").namespace == "default"


async def test_the_environment_names_the_kubeconfig(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"token": "t"})
    assert await found(environ={"KUBECONFIG": f"{path}:/other"}).token() == "t"


@pytest.mark.parametrize(
    ("user", "context", "words"),
    [
        pytest.param({"auth-provider": {}}, None, ["auth-provider", "kubectl create token"], id="auth provider"),
        pytest.param({"token": "t"}, "three", ["'three'", "one, two"], id="unknown context"),
    ],
)
def test_what_cannot_be_used_says_what_would_help(
    tmp_path: Path, user: dict[str, Any], context: str | None, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        found(write_config(tmp_path, user), context=context)
    for word in words:
        assert word in str(caught.value)


def test_no_kubeconfig_says_how_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--kubeconfig"):
        found(tmp_path / "none")


@pytest.mark.parametrize("content", [b"just a word", b"\xff\xfe\x00", b"- a list"])
def test_a_file_that_is_no_kubeconfig_is_told_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="kubeconfig") as caught:
        found(path)
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
    credentials = found(service_account=service_account(tmp_path), environ=environ)
    assert (credentials.server, credentials.namespace, await credentials.token()) == (server, "system", "pod-token")


async def test_a_named_kubeconfig_wins_over_the_service_account(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"token": "t"})
    assert await found(path, service_account=service_account(tmp_path)).token() == "t"


async def test_the_token_is_read_again_every_minute_and_nobody_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    now = [0.0]
    path.write_text("one")
    token = TokenSource(None, path, lambda: now[0])
    assert await token() == "one"
    path.write_text("two")
    now[0] = 59.0
    assert await token() == "one"
    now[0] = 60.0
    assert await token() == "one", "it is being read"
    await token._flight.wait()
    assert await token() == "two"


async def test_a_refused_token_is_read_again_at_once(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one")
    token = TokenSource(None, path, lambda: 0.0)
    await token()
    path.write_text("two")
    token.forget()
    assert await token() == "two"
