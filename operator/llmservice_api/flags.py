"""vLLM flags with a field, from the fields' declarations, and flags that only the operator sets.

CEL rules refuse both in spec.runtime.extraArgs in every spelling (underscores, `=value`, short, dotted keys,
abbreviations), from the flag tables of all known versions. The operator checks what depends on the version: whether a
flag exists, and its number of values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from llmservice_vllm.flags import Match
from llmservice_vllm.versions import flag_table, known_versions

from llmservice_api.base import ApiModel, Knob, Rule, cel_list, cel_string
from llmservice_api.spec import LLMServiceSpec

_NO_KNOB = Knob()


@dataclass(frozen=True, slots=True)
class FieldFlag:
    """A flag, or a key of a flag's JSON (`--flag.key`), and its field."""

    name: str
    field: str
    """As in a manifest: spec.batching.maxNumSeqs."""
    path: tuple[str, ...]
    """Attributes from the spec to the field."""
    vllm_default: tuple[object, ...]
    """Values that are not rendered: vLLM's defaults."""
    is_switch: bool
    """Whether it is a switch that is rendered with another flag's value."""

    def read(self, spec: LLMServiceSpec) -> Any:
        """The value to render; None: no flag."""
        value: Any = spec
        for name in self.path:
            value = getattr(value, name, None)  # an absent section has no fields
        if value is None or value in self.vllm_default:
            return None
        return True if self.is_switch else value


def _flags(model: type[ApiModel], path: tuple[str, ...] = (), field: str = "spec") -> Iterator[FieldFlag]:
    for name, info in model.model_fields.items():
        where, words = (*path, name), f"{field}.{info.alias}"
        knob = next((one for one in info.metadata if isinstance(one, Knob)), _NO_KNOB)
        vllm_default = (info.default, knob.vllm_default)
        for flag in knob.flags:
            yield FieldFlag(flag, words, where, vllm_default, is_switch=flag != knob.flags[-1])
        for kind in (info.annotation, *get_args(info.annotation)):
            if isinstance(kind, type) and issubclass(kind, ApiModel):
                yield from _flags(kind, where, words)


# Rendered in the order of the spec, the accelerator last. Another order would change pod templates.
FLAGS: tuple[FieldFlag, ...] = tuple(sorted(_flags(LLMServiceSpec), key=lambda flag: flag.path[0] == "accelerator"))

# Flags that are refused but never rendered: the operator, the supervisor or another flag does the same.
_NEVER_RENDERED: Mapping[str, str] = MappingProxyType(
    {
        "--attention-config.backend": "spec.attention.backend",
        "--revision": "spec.model.uri",
        "--api-key": "spec.endpoint.apiKeySecretRef",
        "--hf-token": "spec.model.hfTokenSecretRef",
        "--lora-modules": "spec.adapters",
        "--spec-method": "spec.speculativeDecoding",
        "--spec-model": "spec.speculativeDecoding",
        "--spec-tokens": "spec.speculativeDecoding",
    }
)
# Flags with a field that extraArgs may set all the same, while the field is absent: they could before there was one.
_OLDER = ("--kv-events-config",)
_FIELDS = {
    **{flag.name: flag.field for flag in FLAGS if flag.name.partition(".")[0] not in _OLDER},
    **_NEVER_RENDERED,
}

TYPED: Mapping[str, str] = MappingProxyType({flag: field for flag, field in _FIELDS.items() if "." not in flag})
"""Flags with a field of their own, and the field."""


def _keyed() -> Mapping[str, Mapping[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for flag, field in _FIELDS.items():
        name, _, key = flag.partition(".")
        if key:
            found.setdefault(name, {})[key] = field
    return MappingProxyType(found)


KEYED = _keyed()
"""Flags with fields for single keys, and the fields. extraArgs may set other keys, in the dotted form."""


def in_force(section: ApiModel) -> dict[str, Any]:
    """A section as JSON with the effective values of absent fields; fields that vLLM decides stay absent."""
    fields = section.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name, effective in _effective(type(section)):
        value = effective(section) if callable(effective) else effective
        if value is not None:
            fields.setdefault(name, value)
    return {name: value for name, value in fields.items() if value != {}}


@functools.cache
def _effective(section: type[ApiModel]) -> tuple[tuple[str, object], ...]:
    """Effective values of absent fields, by JSON name."""
    fields = ((info.alias or name, info.metadata) for name, info in section.model_fields.items())
    found = ((name, one.effective) for name, metadata in fields for one in metadata if isinstance(one, Knob))
    return tuple((name, effective) for name, effective in found if effective is not None)


_NO_TLS = "the supervisor speaks plain HTTP to vLLM; end TLS in front of the Service"
_ONE_POD = "every replica is one pod; use spec.parallelism and spec.scaling.replicas"
_BALANCED = "the Service balances over replicas; use spec.scaling.replicas"

# Flags that the operator depends on, with the conflict or the alternative.
OPERATOR_OWNED: Mapping[str, str] = MappingProxyType(
    {
        "--host": "vLLM listens at all addresses of the pod already, of IPv4 and IPv6, and the Service relies on it",
        "--port": "the Service and the probes rely on the operator's port; spec.endpoint.port is the Service's",
        "--uds": "the Service reaches vLLM over TCP",
        "--allowed-local-media-path": "clients could have files of the pod read; send media within the request",
        "--grpc": "the Service serves the HTTP API",
        "--config": "a file could say anything that fields and checks cover; write its entries as fields or extraArgs",
        "--middleware": "draining is done by the operator's middleware",
        "--shutdown-timeout": "the supervisor waits for streams; set spec.drain.timeoutSeconds",
        "--disable-access-log-for-endpoints": "it keeps probes and scrapes out of the log",
        "--ssl-keyfile": _NO_TLS,
        "--ssl-certfile": _NO_TLS,
        "--ssl-ca-certs": _NO_TLS,
        "--ssl-cert-reqs": _NO_TLS,
        "--ssl-ciphers": _NO_TLS,
        "--enable-ssl-refresh": _NO_TLS,
        "--headless": "every replica is a whole server; use spec.scaling.replicas",
        "--api-server-count": "the server runs one API process; use spec.scaling.replicas",
        "--nnodes": _ONE_POD,
        "--node-rank": _ONE_POD,
        "--master-addr": _ONE_POD,
        "--master-port": _ONE_POD,
        "--data-parallel-rank": _ONE_POD,
        "--data-parallel-start-rank": _ONE_POD,
        "--data-parallel-size-local": _ONE_POD,
        "--data-parallel-address": _ONE_POD,
        "--data-parallel-rpc-port": _ONE_POD,
        "--data-parallel-external-lb": _BALANCED,
        "--data-parallel-hybrid-lb": _BALANCED,
        "--data-parallel-multi-port-external-lb": _BALANCED,
        "--help": "vLLM would print its help and end",
    }
)


_TABLES = tuple(flag_table(version) for version in known_versions())
# The token without its value and dotted keys; vLLM accepts underscores for dashes.
_NAME = "{}.split('=')[0].split('.')[0].replace('_', '-')"

ARGUMENTS = (
    Rule(
        "self.size() == 0 || self[0].matches('^--?[A-Za-z]')",
        "the first item must be a flag: vLLM would take a plain value for the model; set spec.model.uri, or put the "
        "value behind its flag",
    ),
)


def argument_rules() -> tuple[Rule, ...]:
    return (*_shape(), *_typed(), *_keyed_rules(), *_owned())


def none_of(flags: Iterable[str], token: str = "self") -> str:
    """CEL: a token is none of these flags, in any spelling of a known version."""
    flags = list(flags)
    names = sorted({name for flag in flags for name in _names(flag)})
    rule = f"!({_NAME.format(token)} in {cel_list(names)})"
    for letter in sorted({letter for flag in flags for letter in _letters(flag)}):
        rule += f" && !{token}.startsWith({cel_string(letter)})"
    return rule


def _shape() -> Iterator[Rule]:
    yield Rule("self != '--'", "`--` ends the flags, so that vLLM would ignore what follows; remove it")
    yield Rule(
        "!self.matches('^--?[A-Za-z][A-Za-z0-9_.-]*[ \\t]')",
        "a flag and its value are two items: write `- --flag` and `- value`, or `- --flag=value`",
    )


def _typed() -> Iterator[Rule]:
    fields: dict[str, list[str]] = {}
    for flag, field in TYPED.items():
        fields.setdefault(field, []).append(flag)
    for field, flags in fields.items():
        yield Rule(none_of(flags), f"{' and '.join(flags)} may not be given here: set {field} instead")


def _keyed_rules() -> Iterator[Rule]:
    """Rules for JSON keys with a field, in the dotted form; the operator checks the JSON form."""
    for flag, fields in KEYED.items():
        for key, field in fields.items():
            dotted = cel_string(rf"^[^.=]*[.]{key}([.+=]|$)")
            yield Rule(
                f"{none_of([flag])} || !self.matches({dotted})",
                f"{flag}.{key} may not be given here: set {field} instead",
            )


def _owned() -> Iterator[Rule]:
    reasons: dict[str, list[str]] = {}
    for flag, reason in OPERATOR_OWNED.items():
        reasons.setdefault(reason, []).append(flag)
    for reason, flags in reasons.items():
        yield Rule(none_of(flags), f"{', '.join(flags)}: belongs to the operator; remove it ({reason})")


def _names(flag: str) -> Iterator[str]:
    """Full spellings and unambiguous abbreviations, long and short, of each version with the flag."""
    for table in _TABLES:
        entry = table.by_spelling.get(flag)
        if entry is None:
            continue
        yield from entry.spellings
        yield from table.abbreviations(entry.name)
        for short in (s for s in entry.spellings if not s.startswith("--")):
            for end in range(2, len(short)):
                match = table.resolve(short[:end])
                if isinstance(match, Match) and match.flag is entry:
                    yield short[:end]


def _letters(flag: str) -> Iterator[str]:
    """One-letter flags, which take their value without a space: `-qfp8`. vLLM rewrites -O before parsing."""
    if flag == "--optimization-level":
        yield "-O"
    for table in _TABLES:
        entry = table.by_spelling.get(flag)
        for spelling in (s for s in (entry.spellings if entry else ()) if len(s) == 2):
            others = [s for s in table.by_spelling if s.startswith(spelling) and s != spelling]
            if others:
                raise ValueError(f"{spelling} cannot be told from {others} by its beginning")
            yield spelling
