"""`llmservice explain`: what a word names, and its page: rows for a terminal, and the same as a document.

The models of the API are imported only for a field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from textwrap import shorten, wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from llmservice_api.conditions import ConditionType
from llmservice_api.reasons import SECTIONS, Reason

from llmservice_cli.documents import answer
from llmservice_cli.errors import ExitCode, WrongUsage
from llmservice_cli.explain import Options
from llmservice_cli.help import WIDEST, indent, two_columns
from llmservice_cli.terminal import Row, width

from .reported import MEANINGS, fields_of, reasons_of, reported

if TYPE_CHECKING:
    from .fields import Field


def run(options: Options) -> ExitCode:
    """Print it. WrongUsage for what there is not."""
    if options.topic is None:
        found = every_reason()
    elif (named := reason_or_condition(options.topic)) is None:
        found = of_field(*field(options.topic))
    else:
        found = of_reason(named) if isinstance(named, Reason) else of_condition(named)
    answer(options.output, found.rows, found.document)
    return ExitCode.DONE


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


VERSION = 1
_LABEL = 14


class Page(NamedTuple):
    """One answer in both forms."""

    rows: Callable[[], Iterator[Row]]
    document: Callable[[], dict[str, Any]]


def every_reason() -> Page:
    """A line for each, by section."""

    def rows() -> Iterator[Row]:
        for section in SECTIONS:
            yield ((f"{section.title}:", "bold"),)
            for reason in Reason:
                if reason.row.section is section:
                    yield from _line(reason, reason.summary)
            yield ()
        yield (("llmservice explain REASON says more; conditions: " + ", ".join(ConditionType), ""),)

    return Page(rows, lambda: {"version": VERSION, "reasons": [_reason(reason) for reason in Reason]})


def of_reason(reason: Reason) -> Page:
    """What happened, where it is reported, what to look at and to do, how it ends."""

    def rows() -> Iterator[Row]:
        section = reason.row.section
        yield (str(reason), "bold"), (f": {section.title.lower()}", "")
        yield ()
        yield from _paragraph(reason.summary)
        yield from _paragraph(section.intro)
        yield ()
        yield from _labelled("what to do", reason.remedy)
        yield from _labelled("look at", reason.row.look)
        yield from _labelled("reported in", "; ".join(reported(reason).sentences()))
        yield from _labelled("how it ends", reason.row.ends.value if reported(reason).is_failure else "")
        yield from _labelled("fields", ", ".join(fields_of(reason)))

    return Page(rows, lambda: {"version": VERSION, **_reason(reason)})


def of_condition(condition: ConditionType) -> Page:
    """What it says, and the reasons that it may have. One has the name of a reason, which follows."""
    reasons = reasons_of(condition)
    namesake = of_reason(Reason(condition)) if str(condition) in set(map(str, Reason)) else None

    def rows() -> Iterator[Row]:
        yield (str(condition), "bold"), (": a condition of the status", "")
        yield ()
        yield from _paragraph(MEANINGS[condition])
        yield ()
        yield (("reasons:", "bold"),)
        for reason in reasons:
            yield from _line(reason, reason.summary)
        if namesake is not None:
            yield ()
            yield from namesake.rows()

    def document() -> dict[str, Any]:
        found = {"condition": str(condition), "summary": MEANINGS[condition], "reasons": list(map(str, reasons))}
        more = {} if namesake is None else {"namesake": _reason(Reason(condition))}
        return {"version": VERSION, **found, **more}

    return Page(rows, document)


def of_field(field: Field, known: dict[str, Field]) -> Page:
    """Type, bounds, default and flag, and the fields below it."""
    below = [known[path] for path in field.below]

    def rows() -> Iterator[Row]:
        yield (field.path, "bold"), (f": {field.type}{', required' if field.is_required else ''}", "")
        yield ()
        yield from _paragraph(field.description)
        yield ()
        yield from _labelled("vLLM's flag", " ".join(field.flags))
        yield from _labelled("default", _short(field.default))
        yield from _labelled("example", _short(field.example))
        if below:
            yield (("fields:", "bold"),)
        for each in below:
            yield from _line(each.path.rpartition(".")[2], f"{each.type}: {_first_sentence(each.description)}")

    def document() -> dict[str, Any]:
        return {"version": VERSION, **field.to_object(), "fields": [each.to_object() for each in below]}

    return Page(rows, document)


def _reason(reason: Reason) -> dict[str, Any]:
    return {
        "reason": str(reason),
        "section": reason.row.section.title,
        "summary": reason.summary,
        "remedy": reason.remedy,
        "look": reason.row.look,
        "ends": reason.row.ends.name,
        "reportedIn": reported(reason).to_object(),
        "fields": list(fields_of(reason)),
    }


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False)


def _columns() -> int:
    return min(width(), WIDEST)


def _line(name: str, text: str) -> Iterator[Row]:
    """One line, or two where the name is long."""
    columns = _columns()
    yield from two_columns(name, shorten(_first_sentence(text), columns - indent(columns), placeholder=" ..."), columns)


def _first_sentence(text: str) -> str:
    head, dot, _ = text.partition(". ")
    return head + "." if dot else text


def _paragraph(text: str) -> Iterator[Row]:
    yield from (((line, ""),) for line in wrap(text, _columns(), break_on_hyphens=False))


def _labelled(label: str, text: str) -> Iterator[Row]:
    """Nothing for an empty text."""
    for number, line in enumerate(
        wrap(text, max(_columns() - _LABEL, 20), break_long_words=False, break_on_hyphens=False)
    ):
        yield (f"{'' if number else label:<{_LABEL}}", "cyan"), (line, "")
