"""What `kubernetes.config` does by itself, and the operator may not. Where a test fails here, our own code may go."""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, kube_config, load_kube_config

from tests.support.kubeconfig import kubeconfig

EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable}


def loaded(folder: Path, user: Any, *more: Path) -> Configuration:
    path = kubeconfig(folder, server="https://api:6443")
    users = "" if user is None else yaml.safe_dump({"users": [{"name": "u", **user}]})
    path.write_text(path.read_text().partition("users:")[0] + users)
    configuration = Configuration()
    load_kube_config(":".join(map(str, (path, *more))), client_configuration=configuration)
    return configuration


def sent(configuration: Configuration) -> str | None:
    """The header of the next request."""
    header: str | None = configuration.get_api_key_with_prefix("BearerToken")
    return header


def test_it_goes_on_without_credentials_where_the_program_fails(tmp_path: Path) -> None:
    program = {**EXEC, "args": ["-IS", "-c", "import sys; sys.exit('please log in')"]}
    assert sent(loaded(tmp_path, {"user": {"exec": program}})) is None


def test_it_runs_the_program_for_each_request_where_tokens_hold_for_minutes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    script = (
        "import datetime, json\n"
        f"open({str(runs)!r}, 'a').write('x')\n"
        "ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=4)\n"
        "status = {'token': 't', 'expirationTimestamp': ends.strftime('%Y-%m-%dT%H:%M:%SZ')}\n"
        f"print(json.dumps({{'apiVersion': {EXEC['apiVersion']!r}, 'kind': 'ExecCredential', 'status': status}}))"
    )
    configuration = loaded(tmp_path, {"user": {"exec": {**EXEC, "args": ["-IS", "-c", script]}}})
    assert [sent(configuration) for _ in range(3)] == ["Bearer t"] * 3
    assert len(runs.read_text()) == 4


def test_it_never_reads_a_token_file_again_and_sends_its_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    configuration = loaded(tmp_path, {"user": {"tokenFile": "token"}})
    (tmp_path / "token").write_text("two\n")
    assert sent(configuration) == "Bearer one\n"


def test_it_leaves_keys_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(kube_config, "_temp_files", {})
    key = base64.b64encode(b"KEY").decode()
    configuration = loaded(tmp_path, {"user": {"client-certificate-data": key, "client-key-data": key}})
    assert Path(configuration.key_file).read_bytes() == b"KEY"
    kube_config._cleanup_temp_files()


def test_it_looks_for_a_users_files_beside_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    other = tmp_path / "users" / "config"
    other.write_text(yaml.safe_dump({"users": [{"name": "u", "user": {"client-certificate": "me.crt"}}]}))
    (tmp_path / "users" / "me.crt").write_text("CERT")
    with pytest.raises(ConfigException, match="File does not exist"):
        loaded(tmp_path, None, other)


def test_it_quotes_whole_users_in_errors_and_ignores_impersonation(tmp_path: Path) -> None:
    with pytest.raises(ConfigException, match="s3cret"):
        loaded(tmp_path, {"token": "s3cret"})
    configuration = loaded(tmp_path, {"user": {"token": "t", "as": "viewer"}})
    assert sent(configuration) == "Bearer t"
    assert "viewer" not in str(vars(configuration))
