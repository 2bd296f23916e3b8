"""CEL rules for spec.runtime.extraArgs: flags with a field, and flags of the operator, are refused in every spelling.

Spellings (underscores, `=value`, short, dotted keys, abbreviations) come from the flag tables of all known versions.
The operator checks what depends on the version: whether a flag exists, and its number of values.
"""

from collections.abc import Iterable, Iterator

from llmservice_vllm.flags import Match
from llmservice_vllm.versions import flag_table, known_versions

from llmservice_api.base import Rule, cel_list, cel_string
from llmservice_api.flags import KEYED, OPERATOR_OWNED, TYPED

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
    return (*_shape(), *_typed(), *_keyed(), *_owned())


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


def _keyed() -> Iterator[Rule]:
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
