"""CEL for spec.runtime.extraArgs: what has a field, or belongs to the operator, is refused in every spelling.

The spellings are those that vLLM's parser takes (underscores, `=value`, short, dotted keys, abbreviations), from its
table of flags. What depends on the version (does a flag exist, how many values does it take) the operator checks.
"""

from collections.abc import Iterable, Iterator

from llmservice_runtime.flags import OPERATOR_OWNED, TYPED, FlagTable, Match, flag_table, known_versions

from llmservice_operator.api.rule import Rule, cel_list, cel_string

# The token without its value and its dotted keys; vLLM takes underscores for dashes.
_NAME = "self.split('=')[0].split('.')[0].replace('_', '-')"

ARGUMENTS = (
    Rule(
        "self.size() == 0 || self[0].matches('^--?[A-Za-z]')",
        "the first item must be a flag: vLLM would take a plain value for the model; set spec.model.uri, or put the "
        "value behind its flag",
    ),
)


def argument_rules() -> tuple[Rule, ...]:
    """The rules of one item."""
    table = flag_table(known_versions()[0])
    return (*_shape(), *_typed(table), *_owned(table))


def _shape() -> Iterator[Rule]:
    yield Rule(
        "self != '--'",
        "`--` ends the flags, so that vLLM would ignore what follows; remove it",
    )
    yield Rule(
        "!self.matches('^--?[A-Za-z][A-Za-z0-9_.-]*[ \\t]')",
        "a flag and its value are two items: write `- --flag` and `- value`, or `- --flag=value`",
    )


def _typed(table: FlagTable) -> Iterator[Rule]:
    fields: dict[str, list[str]] = {}
    for flag, field in TYPED.items():
        fields.setdefault(field, []).append(flag)
    for field, flags in fields.items():
        yield Rule(_none_of(flags, table), f"{' and '.join(flags)} may not be given here: set {field} instead")


def _owned(table: FlagTable) -> Iterator[Rule]:
    reasons: dict[str, list[str]] = {}
    for flag, reason in OPERATOR_OWNED.items():
        reasons.setdefault(reason, []).append(flag)
    for reason, flags in reasons.items():
        yield Rule(_none_of(flags, table), f"{', '.join(flags)}: belongs to the operator; remove it ({reason})")


def _none_of(flags: Iterable[str], table: FlagTable) -> str:
    flags = list(flags)
    names = sorted({name for flag in flags for name in _names(flag, table)})
    rule = f"!({_NAME} in {cel_list(names)})"
    for letter in sorted({letter for flag in flags for letter in _letters(flag, table)}):
        rule += f" && !self.startsWith({cel_string(letter)})"
    return rule


def _names(flag: str, table: FlagTable) -> Iterator[str]:
    """Full spellings and unambiguous abbreviations, long and short."""
    entry = table.by_spelling[flag]
    yield from entry.spellings
    yield from table.abbreviations(entry.name)
    for short in (s for s in entry.spellings if not s.startswith("--")):
        for end in range(2, len(short)):
            match = table.resolve(short[:end])
            if isinstance(match, Match) and match.flag is entry:
                yield short[:end]


def _letters(flag: str, table: FlagTable) -> Iterator[str]:
    """Flags of one letter take their value without a space: `-qfp8`."""
    for spelling in table.by_spelling[flag].spellings:
        if len(spelling) == 2:
            others = [s for s in table.by_spelling if s.startswith(spelling) and s != spelling]
            if others:
                raise ValueError(f"{spelling} cannot be told from {others} by its beginning")
            yield spelling
