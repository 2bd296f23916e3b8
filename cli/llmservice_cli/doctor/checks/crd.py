"""The CRD in the cluster against the one that this program was built with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from llmservice_api.constants import CRD_NAME, VERSION
from llmservice_api.crd import schema
from llmservice_runtime.bounded_json import clean

from llmservice_cli.api import Json
from llmservice_cli.doctor.facts import Facts, status_of
from llmservice_cli.doctor.findings import Check, Finding, names, ok, problem, warning

from .operator import CRD_VERSION

_INSTALL = "upgrade the chart's release, or: kubectl apply --server-side -f crds/llmservices.llmservice.dev.yaml"
_DEEPEST = 64


def crd(facts: Facts) -> Iterator[Finding]:
    if not facts.crd:
        yield problem(f"the CRD {CRD_NAME} is not installed", _INSTALL)
        return
    found = facts.crd[0]
    said = (found["metadata"].get("annotations") or {}).get(CRD_VERSION)
    shown = f"{CRD_NAME} of version {clean(said)[:60]}" if said else f"{CRD_NAME}, installed without the chart"
    established = {each.get("type"): each.get("status") for each in status_of(found).get("conditions") or ()}
    if established.get("Established") != "True":
        yield problem(
            f"{shown} is not established: the API server serves no LLMServices", f"kubectl describe crd {CRD_NAME}"
        )
    others = [one for one in status_of(found).get("storedVersions") or () if one != VERSION]
    if others:
        yield warning(
            f"{shown}: objects may be stored in {names(others)}, which this version does not have",
            f"write each LLMService again, then take the others out of status.storedVersions of {CRD_NAME}",
        )
    yield _compared(shown, _schema_of(found), facts.program)


def _schema_of(found: Json) -> Mapping[str, Any] | None:
    for each in found["spec"].get("versions") or ():
        if each.get("name") == VERSION and each.get("served"):
            schema_found: Mapping[str, Any] = (each.get("schema") or {}).get("openAPIV3Schema") or {}
            return schema_found
    return None


def _compared(shown: str, live: Mapping[str, Any] | None, program: str) -> Finding:
    if live is None:
        return problem(f"{shown} does not serve {VERSION}", _INSTALL)
    own = _own()
    if live == own:
        return ok(f"{shown} has the fields and rules of this program ({program})")
    there, here = set(fields(live)), set(fields(own))
    if missing := sorted(here - there):
        return problem(f"{shown} lacks fields of version {program}, which are dropped: {names(missing)}", _INSTALL)
    if more := sorted(there - here):
        return warning(
            f"{shown} has fields that this program ({program}) does not know: {names(more)}",
            "use the program of the operator's version",
        )
    return warning(f"{shown} has the fields of version {program} with other bounds, rules or texts", _INSTALL)


@lru_cache(maxsize=1)
def _own() -> Mapping[str, Any]:
    return schema()


def fields(part: Mapping[str, Any], path: str = "", depth: int = _DEEPEST) -> Iterator[str]:
    """The paths of all fields of a schema."""
    if depth == 0:
        return
    for name, below in (part.get("properties") or {}).items():
        where = f"{path}.{name}".lstrip(".")
        yield where
        yield from fields(below, where, depth - 1)
    for name in ("items", "additionalProperties"):
        if isinstance(below := part.get(name), Mapping):
            yield from fields(below, f"{path}[]", depth - 1)


CHECKS = (
    Check("CRD", "it is installed and established, with this program's fields; storedVersions", ("crd",), crd, True),
)
