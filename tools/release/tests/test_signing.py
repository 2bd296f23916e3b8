"""How cosign is called, and what of a release's commands may be shown."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from localcluster.errors import ClusterError
from release.references import Reference
from release.signing import KEYLESS, Signer, Verifier
from release.tools import Tools, shown

DIGEST = f"sha256:{'a' * 64}"
IMAGE = Reference.parse(f"r.example.com/llm/x:1@{DIGEST}")


@dataclass(frozen=True)
class Recorded(Tools):
    """Programs that only note how they were called, and print `answer`."""

    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    calls: list[tuple[str, ...]] = field(default_factory=list)
    answer: str = ""

    def run(self, *command: str, cwd: Path | None = None, more: Mapping[str, str] | None = None) -> str:
        configs = [word for before, word in pairwise(command) if before == "--signing-config"]
        assert all(json.loads(Path(name).read_text())["rekorTlogConfig"] == {} for name in configs)
        self.calls.append(command)
        return self.answer


@pytest.mark.parametrize(
    ("key", "logged", "has", "has_not"),
    [
        ("KEY", False, {"--key", "--signing-config", "--yes"}, set()),
        ("KEY", True, {"--key", "--yes"}, {"--signing-config"}),
        (KEYLESS, False, {"--yes"}, {"--key", "--signing-config"}),
        ("env://COSIGN_PRIVATE_KEY", False, {"--key", "--signing-config"}, set()),
        ("awskms:///alias/x", False, {"--key"}, set()),
    ],
)
def test_who_signs_and_what_the_transparency_log_gets(
    tmp_path: Path, key: str, logged: bool, has: set[str], has_not: set[str]
) -> None:
    (tmp_path / "cosign.key").write_text("")
    tools = Recorded()
    signer = Signer(str(tmp_path / "cosign.key") if key == "KEY" else key, tools, logged=logged)
    signer.image(IMAGE)
    (call,) = tools.calls
    assert call[-1] == f"r.example.com/llm/x@{DIGEST}", "by digest: a tag may move between push and signature"
    assert has <= set(call)
    assert not has_not & set(call)


def test_a_key_that_is_not_there_is_refused_before_anything_is_built() -> None:
    with pytest.raises(ClusterError, match="there is no key"):
        Signer("/nonexistent/cosign.key", Recorded())


@pytest.mark.parametrize(
    ("verifier", "words"),
    [
        ({"key": "cosign.pub"}, ("--key", "cosign.pub", "--insecure-ignore-tlog=true")),
        ({"key": "cosign.pub", "logged": True}, ("--key", "cosign.pub")),
        (
            {"identity": "^x$", "issuer": "https://i.example.com"},
            ("--certificate-identity-regexp", "^x$", "--certificate-oidc-issuer", "https://i.example.com"),
        ),
    ],
)
def test_whose_signatures_count(verifier: dict[str, str | bool], words: tuple[str, ...]) -> None:
    tools = Recorded()
    Verifier(tools, **verifier).image(IMAGE)  # type: ignore[arg-type]
    assert tools.calls == [("cosign", "verify", *words, f"r.example.com/llm/x@{DIGEST}")]


def envelope(digest: str, predicate: object) -> str:
    statement = {"subject": [{"name": "x", "digest": {"sha256": digest}}], "predicate": predicate}
    return json.dumps({"payload": base64.b64encode(json.dumps(statement).encode()).decode()})


def test_an_attestation_counts_for_its_own_subject_only() -> None:
    lines = [envelope("a" * 64, {"its": "own"}), envelope("b" * 64, {"of": "another"}), "Verification for x --", ""]
    verifier = Verifier(Recorded(answer="\n".join(lines)), key="cosign.pub")
    assert verifier.predicates(IMAGE, "cyclonedx") == [{"its": "own"}]


def test_a_failed_command_is_named_without_its_options() -> None:
    assert shown(("cosign", "sign", "--key", "k", "x")) == "cosign sign"
    assert shown(("crane", "digest", "r.example.com/x:1")) == "crane digest r.example.com/x:1"


def test_a_program_that_is_missing_and_one_that_fails(tmp_path: Path) -> None:
    tools = Tools((tmp_path,), {"PATH": "/usr/bin:/bin"})
    with pytest.raises(ClusterError, match="nonexistent-program is not on the PATH"):
        tools.run("nonexistent-program")
    with pytest.raises(ClusterError, match=r"(?s)sh failed.*the reason"):
        tools.run("sh", "-c", "echo the reason >&2; exit 3")
    assert tools.digest("printf", "abc").startswith("ba7816bf")
