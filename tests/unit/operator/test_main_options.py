"""How the operator is started: arguments, environment and settings file, and what they refuse."""

from pathlib import Path
from typing import Any

import pytest
from llmservice_operator.options import load


def file(folder: Path, text: str) -> str:
    path = folder / "settings.yaml"
    path.write_text(text)
    return str(path)


EVERYTHING = """\
namespaces: [team-a, team-b]
leaderElection: {enabled: true, leaseName: mine, leaseNamespace: system}
health: {port: 9001}
metrics: {port: 9002}
logging: {format: console, level: debug}
operator: {maxConcurrentUpdates: 3, shards: 1}
services: {operatorImage: "op:1", defaultCpuImage: "cpu:1", runAsUser: 4000, surgeDeadlineSeconds: 30}
"""


def test_defaults() -> None:
    options = load([], {"POD_NAMESPACE": "system", "POD_NAME": "op-1"})
    assert (options.namespaces, options.leader_elect, options.lease_name) == ((), True, "llmservice-operator")
    assert (options.health_port, options.metrics_port, options.log_format) == (8081, 8080, "json")
    assert options.lease_namespace == "system"
    assert options.identity.startswith("op-1_")
    assert options.identity != load([], {"POD_NAME": "op-1"}).identity, "another process of a restarted container"
    assert options.state_dir is None


def test_everything_can_come_from_the_file(tmp_path: Path) -> None:
    options = load(["--settings", file(tmp_path, EVERYTHING)], {})
    assert options.namespaces == ("team-a", "team-b")
    assert (options.leader_elect, options.lease_name, options.lease_namespace) == (True, "mine", "system")
    assert (options.health_port, options.metrics_port) == (9001, 9002)
    assert (options.log_format, options.log_level) == ("console", "debug")
    assert (options.services.operator_image, options.services.run_as_user) == ("op:1", 4000)
    assert (options.max_concurrent_updates, options.services.surge_deadline_seconds) == (3, 30)


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, EVERYTHING)
    environ = {
        "LLMSERVICE_SETTINGS": path,
        "LLMSERVICE_HEALTH_PORT": "9101",
        "LLMSERVICE_METRICS_PORT": "9102",
        "LLMSERVICE_LEADER_ELECT": "false",
        "LLMSERVICE_SHARDS": "1",
        "LLMSERVICE_NAMESPACE": "from, environment",
        "LLMSERVICE_DEFAULT_CPU_IMAGE": "cpu:2",
    }
    options = load(["--health-port", "9201", "--run-as-user", "5000"], environ)
    assert (options.health_port, options.metrics_port, options.leader_elect) == (9201, 9102, False)
    assert options.namespaces == ("from", "environment")
    assert options.services.operator_image == "op:1"
    assert (options.services.default_cpu_image, options.services.run_as_user) == ("cpu:2", 5000)


def test_namespaces_may_be_repeated() -> None:
    assert load(["--namespace", "a", "--namespace", "b", "--namespace", "a"], {}).namespaces == ("a", "b")


def refused(arguments: list[str], environ: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed."""
    with pytest.raises(SystemExit) as end:
        load(arguments, environ)
    assert end.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("nonsense: 1", ["unknown nonsense", "leaderElection"], id="unknown key"),
        pytest.param("health: {prot: 1}", ["health.prot is unknown", "port"], id="unknown key in a section"),
        pytest.param("health: {port: high}", ["health.port", "'high'", "wrong type"], id="wrong type"),
        pytest.param("health: {port: true}", ["health.port", "wrong type"], id="a boolean is no port"),
        pytest.param("logging: {format: xml}", ["'xml'", "json, console"], id="no such format"),
        pytest.param("services: {image: x}", ["unknown settings: image", "operatorImage"], id="unknown for services"),
        pytest.param("- a\n- b", ["not a mapping"], id="a list"),
        pytest.param("{", ["expected"], id="no YAML"),
        pytest.param("metrics: !!bool x", ["the value is no bool"], id="a value that is not of its type"),
    ],
)
def test_a_wrong_file_is_refused_by_name(
    tmp_path: Path, text: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = refused(["--settings", file(tmp_path, text)], {}, capsys)
    assert [word for word in words if word not in printed] == []


@pytest.mark.parametrize(
    ("arguments", "environ", "words"),
    [
        ("", {"HEALTH_PORT": "http"}, ["LLMSERVICE_HEALTH_PORT", "not an integer"]),
        ("", {"LEADER_ELECT": "perhaps"}, ["LLMSERVICE_LEADER_ELECT", "neither true nor false"]),
        ("", {"LOG_LEVEL": "loud"}, ["LLMSERVICE_LOG_LEVEL", "debug, info"]),
        ("", {"SETTINGS": "/nowhere"}, ["/nowhere"]),
        ("--max-concurrent-updates 0", {}, ["--max-concurrent-updates: at least 1"]),
        ("--shards 0", {}, ["--shards: 1, and not 0"]),
        ("", {"SHARDS": "2"}, ["--shards: 1, and not 2", "a release each, with watch.namespaces"]),
        ("--metrics-tls /tls --metrics-port 8081", {}, ["give the metrics a port of their own"]),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str | dict) else "",
)
def test_a_wrong_value_is_refused_by_name(
    arguments: str, environ: dict[str, str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    printed = refused(arguments.split(), {f"LLMSERVICE_{name}": value for name, value in environ.items()}, capsys)
    assert [word for word in words if word not in printed] == []


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        load(["--help"], {})
    printed = capsys.readouterr().out
    assert [w for w in ("examples:", "--no-leader-elect", "LLMSERVICE_LOG_LEVEL") if w not in printed] == []


def test_an_empty_value_counts_as_not_given() -> None:
    options: Any = load([], {"LLMSERVICE_NAMESPACE": "", "LLMSERVICE_HF_ENDPOINT": ""})
    assert (options.namespaces, options.services.hf_endpoint) == ((), None)


def test_where_the_record_of_what_is_in_work_lies() -> None:
    assert load(["--state-dir", "/var/lib/x"], {}).state_dir == Path("/var/lib/x")
    assert load([], {"LLMSERVICE_STATE_DIR": "/var/lib/y"}).state_dir == Path("/var/lib/y")
