"""What a word names: a reason, a condition or a field. The models of the API are imported only for a field."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from llmservice_operator.api.conditions import ConditionType
from llmservice_operator.api.reasons import Reason

from llmservice_cli.errors import WrongUsage

if TYPE_CHECKING:
    from .fields import Field

ROOTS = ("spec", "status")
KINDS = ("llms", "llmservice", "llmservices")
LONGEST = 300
"""Characters of a word; every path is shorter."""


def reason_or_condition(word: str) -> Reason | ConditionType | None:
    """By its name, in upper or lower case."""
    wanted = _plain(word)
    named: dict[str, Reason | ConditionType] = {_plain(reason): reason for reason in Reason}
    conditions = {_plain(condition): condition for condition in ConditionType}
    return conditions.get(wanted) or named.get(wanted)


def field(word: str) -> tuple[Field, dict[str, Field]]:
    """The field, and all fields by path. WrongUsage, with what is similar, where the word names nothing at all."""
    from .fields import LIST, fields

    known = fields()
    wanted = _plain(word.replace(LIST, ""))
    for kind in KINDS:
        wanted = wanted.removeprefix(f"{kind}.")
    by_path = {_plain(path.replace(LIST, "")): path for path in known}
    ends = [path for plain, path in by_path.items() if plain.endswith(f".{wanted}")]
    flagged = [path for path, one in known.items() if wanted in (_plain(flag.lstrip("-")) for flag in one.flags)]
    whole = [by_path[path] for path in (wanted, f"spec.{wanted}") if path in by_path]
    for found in (whole, flagged, [path for path in ends if path.startswith("spec.")], ends):
        if len(found) == 1:
            return known[found[0]], known
    raise _unknown(word, ends or _similar(wanted, by_path))


def _similar(wanted: str, by_path: dict[str, str]) -> list[str]:
    names = {_plain(one): str(one) for one in (*Reason, *ConditionType)}
    if "." not in wanted:
        names |= {plain.rpartition(".")[2]: path for plain, path in reversed(by_path.items())}
    else:
        names |= by_path | {plain.removeprefix("spec."): path for plain, path in by_path.items()}
    close = get_close_matches(wanted[:LONGEST], names, n=4, cutoff=0.7)
    return list(dict.fromkeys(names[one] for one in close))


def _unknown(word: str, similar: list[str]) -> WrongUsage:
    listed = f"did you mean {' or '.join(similar[:4])}? " if similar else ""
    return WrongUsage(
        f"there is no reason, condition or field {word[:LONGEST]!r}",
        f"{listed}`llmservice explain` lists the reasons, `llmservice explain spec` the fields",
    )


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "").replace("-", "")
