"""What a new user may type or give by mistake: one message that says what is wrong, and never Python's own words."""

from __future__ import annotations

import pytest
from llmservice_cli import errors
from llmservice_cli.errors import ExitCode

from tests.unit.cli_world import Command

FILES: dict[str, tuple[bytes, str]] = {
    "binary": (b"\x7fELF\xda\x00", "it is not UTF-8 text"),
    "a date of month 13": (b"kind: X\nx: 2001-13-45\n", "is no YAML: the value is no timestamp"),
    "a word that is to be a number": (b"a: !!int x\n", "is no YAML: the value is no int"),
    "a number of 5,000 digits": (b"a: " + b"9" * 5000, "is no YAML: the value is no int"),
    "a number of base 60": (b"a: 1" + b":00" * 250 + b".5", "is no YAML: the value is no float"),
    "what is to be true or false": (b"foo: !!bool foo\n", "is no YAML: the value is no bool"),
    "100,000 lists": (b"[" * 100_000, "is no YAML: it is nested too deeply"),
    "a list as a key": (b"? [a, {b: c}]\n: 1\n", "is no YAML: while constructing a mapping"),
    "empty": (b"", "it holds no LLMService"),
}
COMMANDS = (("plan", "-f"), ("render", "-f"), ("diff", "-f"))


@pytest.mark.parametrize(("content", "why"), FILES.values(), ids=FILES)
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_file_that_is_no_manifest(words: tuple[str, ...], content: bytes, why: str, llmservice: Command) -> None:
    place = llmservice.folder / "given"
    place.write_bytes(content)
    ran = llmservice(*words, str(place))
    assert (ran.code, ran.out) == (ExitCode.BAD_INPUT, "")
    assert why in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.errors) == 1


def test_a_file_that_is_too_long(llmservice: Command) -> None:
    place = llmservice.text("long.yaml", "x: " + "y" * errors.MOST_CHARACTERS)
    ran = llmservice("plan", "-f", place)
    assert (ran.code, "has more than 16,777,216 characters" in ran.err) == (ExitCode.BAD_INPUT, True)


CONFIGS: dict[str, tuple[bytes, str]] = {
    "binary": (b"\xda\x00", "it is not UTF-8 text"),
    "100,000 objects": (b'{"a":' * 100_000, "is no JSON: it is nested too deeply"),
    "half of it": (b'{"a":', "is no JSON: Expecting value"),
}


@pytest.mark.parametrize(("content", "why"), CONFIGS.values(), ids=CONFIGS)
def test_a_file_that_is_no_configuration(content: bytes, why: str, llmservice: Command) -> None:
    place = llmservice.folder / "config.json"
    place.write_bytes(content)
    ran = llmservice("plan", "--config", str(place))
    assert (ran.code, why in ran.err) == (ExitCode.BAD_INPUT, True), ran.err


URLS = ("notaurl", "ftp://x", "http://", "://", "http:/x", "", "http://[::1")


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize(
    "words", [("bench", "-q"), ("chat", "-m", "x"), ("probe", "-q")], ids=["bench", "chat", "probe"]
)
def test_what_is_no_url(words: tuple[str, ...], url: str, llmservice: Command) -> None:
    ran = llmservice(*words, "--url", url)
    assert (ran.code, ran.out) == (ExitCode.USAGE, ""), ran.err
    assert "http://127.0.0.1:8000" in ran.err or not url
    assert len(ran.errors) == 2


@pytest.mark.parametrize("command", ["logs", "status", "bench", "top", "report"])
@pytest.mark.parametrize("namespace", ["a/b", "../kube-system", "A", "x" * 64, "a b", "-"])
def test_what_is_no_namespace(command: str, namespace: str, llmservice: Command) -> None:
    """Not asked for at all: it would be another path of the API server."""
    ran = llmservice(command, "chat", "-n", namespace)
    assert (ran.code, ran.out) == (ExitCode.USAGE, ""), ran.err
    assert "is no name of a namespace" in ran.err


@pytest.mark.parametrize("words", [("bench", "--help"), ("explain",), ("explain", "Ready"), ("plan", "--help")])
def test_a_narrow_terminal_breaks_no_words(
    words: tuple[str, ...], llmservice: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    wide = {*llmservice(*words).out.replace("...", " ").split()}
    monkeypatch.setenv("COLUMNS", "40")
    narrow = llmservice(*words).out
    assert {*narrow.replace("...", " ").split()} <= wide
    described = [line for line in narrow.splitlines() if line.startswith("      ") and not line.startswith("       ")]
    assert described, "a name has a line of its own"
    assert max(map(len, described)) <= 40
