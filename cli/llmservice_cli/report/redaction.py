"""Takes secrets out of objects and texts, by names and by form. Pure.

What is a secret by its place (a variable, an option, a key named like one) is hidden in every other text too. Values of
fewer than six characters are hidden in their place only, because they are common words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from llmservice_runtime.redact import MASK, Redactor

from llmservice_cli.masking import redactor_of

from .places import places
from .secret_names import is_secret_key, is_secret_variable

_OPTION = re.compile(r"--?(?P<name>[\w.-]++)(?P<value>=.*)?", re.DOTALL)
_DROPPED_ANNOTATIONS = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
"""It repeats the whole object as one text."""
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_FORMS = tuple(
    re.compile(form)
    for form in (
        r"\bhf_[A-Za-z0-9]{8,256}",  # Hugging Face
        r"\b(?:AKIA|ASIA)[A-Z0-9]{12,64}",  # AWS
        r"\bsk-[A-Za-z0-9_-]{8,256}",  # OpenAI and others
        r"\b(?:gh[oprsu]_|github_pat_|glpat-|xox[abprs]-|nvapi-)[A-Za-z0-9_-]{8,256}",
        r"\bAIza[A-Za-z0-9_-]{20,64}",  # Google
        # A JSON web token, with what stands before it in the same word: so each word is read once.
        r"(?<![\w-])(?=[\w-]*\beyJ[\w-]{8})[\w-]++\.[\w-]{8,}+(?:\.[\w-]*+)?",
    )
)
_MARKED = tuple(
    re.compile(place, re.IGNORECASE)
    for place in (
        r"(?P<before>://)(?P<value>[^\s/@'\"]{1,1024})(?=@)",  # of a URL
        r"(?P<before>\bbearer\s{1,4})(?P<value>[A-Za-z0-9._~+/=-]{6,4096})",
        r"(?P<before>\bbasic\s{1,4})(?P<value>[A-Za-z0-9+/=]{12,4096})",
        r"(?P<before>[?&](?:sig|signature|x-amz-(?:signature|credential|security-token)|key|code)=)"
        r"(?P<value>[^&\s\"']{1,4096})",
    )
)
_LONGEST_LINE, _MORE = 16 * 1024, " [the line is longer]"
_LEARNED = re.compile(r"(?=.*\d).{12,}", re.DOTALL)
"""What a place shows is hidden elsewhere only where it does not look like a word."""
MOST_LEARNED = 500
"""Of all texts; each is looked for in everything."""


class Cleaner:
    """Hides the secrets of these objects and texts, wherever they are."""

    def __init__(self, objects: Iterable[Any], texts: Iterable[str] = ()) -> None:
        objects = tuple(objects)
        self._redactor: Redactor = redactor_of(*objects)
        for secret in _placed(objects):
            self._redactor.hide(secret)
        learned = chain.from_iterable(map(_shown, texts))
        for secret in islice(learned, MOST_LEARNED):
            self._redactor.hide(secret)

    def text(self, text: str) -> str:
        """The text without secrets; lines of more than 16 KiB are cut."""
        text = _cut(self._redactor.clean(_PRIVATE_KEY.sub(MASK, text)))
        for form in _FORMS:
            text = form.sub(MASK, text)
        for place in _MARKED:
            text = place.sub(rf"\g<before>{MASK}", text)
        return _without(text)

    def object(self, value: Any, name: str = "") -> Any:
        """The value without secrets, managedFields and last-applied-configuration. `name` is the key that holds it."""
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return self._items(value, name)
        if isinstance(value, str):
            return MASK if value and is_secret_key(name) else self.text(value)
        return value

    def _mapping(self, value: Mapping[str, Any]) -> dict[str, Any]:
        dropped = {"managedFields"} | _DROPPED_ANNOTATIONS
        found = {self.text(str(key)): self.object(one, str(key)) for key, one in value.items() if key not in dropped}
        if _is_secret_variable(value):
            found["value"] = MASK
        return found

    def _items(self, value: Sequence[Any], name: str) -> list[Any]:
        """Of a command line the word after an option that is named like a secret is one."""
        found = []
        is_secret = False
        for one in value:
            option = _option(one)
            if is_secret and isinstance(one, str) and not one.startswith("--"):
                found.append(MASK)
            elif option is not None and option["value"]:
                found.append(f"{one[: option.start('value')]}={MASK}")
            else:
                found.append(self.object(one, name))
            is_secret = option is not None and option["value"] is None
        return found


def _option(word: Any) -> re.Match[str] | None:
    """An option that is named like a secret, with the group `value` where it is in the same word."""
    found = _OPTION.fullmatch(word) if isinstance(word, str) else None
    return found if found is not None and is_secret_key(found["name"]) else None


def _without(text: str) -> str:
    kept: list[str] = []
    done = 0
    for start, end in places(text):
        kept += text[done:start], MASK
        done = end
    return "".join((*kept, text[done:]))


def _is_secret_variable(value: Mapping[str, Any]) -> bool:
    return (
        isinstance(value.get("name"), str) and is_secret_variable(value["name"]) and isinstance(value.get("value"), str)
    )


def _cut(text: str) -> str:
    if len(text) <= _LONGEST_LINE:
        return text
    lines = (line if len(line) <= _LONGEST_LINE else line[:_LONGEST_LINE] + _MORE for line in text.split("\n"))
    return "\n".join(lines)


def _placed(value: Any) -> Iterator[str]:
    """The texts of an object that are secrets by their place."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        name, one = left.pop()
        if isinstance(one, Mapping):
            if _is_secret_variable(one):
                yield one["value"]
            left += ((str(key), below) for key, below in one.items())
        elif isinstance(one, list | tuple):
            yield from _of_command_line(one)
            left += ((name, below) for below in one)
        elif isinstance(one, str):
            if is_secret_key(name):
                yield one
            yield from _shown(one)


def _of_command_line(words: Sequence[Any]) -> Iterator[str]:
    for index, word in enumerate(words):
        option = _option(word)
        if option is not None and option["value"]:
            yield option["value"][1:]
        elif option is not None and index + 1 < len(words):
            after = words[index + 1]
            if isinstance(after, str) and not after.startswith("--"):
                yield after


def _shown(text: str) -> Iterator[str]:
    """Values in places of secrets that are long and have a digit."""
    whole = _cut(text)
    found = chain(
        (hit["value"] for place in _MARKED for hit in place.finditer(whole)),
        (whole[start:end] for start, end in places(whole)),
    )
    for value in found:
        # Headers and lists have several words, and in code there is a comma or bracket after one.
        parts = (part.strip("\"'()[],;") for part in (value, *value.split()))
        yield from (part for part in dict.fromkeys(parts) if _LEARNED.fullmatch(part))
