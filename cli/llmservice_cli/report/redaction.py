"""Takes secrets out of objects and texts, by names and by form. Pure.

What is a secret by its place (a variable, an option, a key named like one) is hidden in every other text too. Values of
fewer than six characters are hidden in their place only, because they are common words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from llmservice_runtime.redact import MASK, Redactor

from llmservice_cli.masking import redactor_of

# Which names denote secrets: of keys, options, headers and variables.

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DIVIDER = re.compile(r"[^a-z0-9]+")
_HARMLESS = re.compile(
    r"(?:max|num|per|first|output|next|bos|eos|pad|unk|sep|cls|mask|stop|special|image|audio|video)_?token"
    r"|bypass|compass|(?:forward|backward)_pass|pass_(?:config|through)"
    r"|tokens?_?(?:ids?|threshold|budget|limit|count|len|length|rate|level|usage|type|parser|probs?)(?![a-z])"
    r"|key_value|^_?(?:old_?)?pwd_?$"
)
_OF_SOMETHING = re.compile(r"(?:refs?|names?|files?|paths?|dirs?)_?$")
"""Names of what holds a secret, such as secretName, rather than of a secret."""
_SECRET = re.compile(
    r"token(?!s(?![a-z])|i[sz])|(?:api|auth|access|bearer|refresh)_?tokens"
    r"|secret(?!s_?$)|passw(?:or)?d|passphrase|passcode|[a-z0-9]_pass(?![a-z])|(?:db|my|user|root|admin|sql|smtp)pass_?$"
    r"|pwd|credential|cookie|authorization|connection_?string"
    r"|(?:api|access|private|account|signing|encryption|master|shared|ssh|license)_?keys?(?![a-z])"
)
_SECRET_VARIABLE = re.compile(r"secret|pass(?![a-z])|_keys?(?![a-z])|(?<![a-z])keys?_")
_HEADER = re.compile(r"(?:authorization|cookies?)_?$")


def is_secret_key(name: str) -> bool:
    """Whether a key of this name holds a secret itself, rather than the name of one, or a number of tokens.
    One in upper case is a variable."""
    return _is_secret(name, is_variable=name.isupper())


def is_secret_variable(name: str) -> bool:
    """The same of an environment variable: of these, more words are likely to be secrets."""
    return _is_secret(name, is_variable=True)


def is_header(name: str) -> bool:
    """Whether the whole line after it is a secret."""
    return _HEADER.search(_plain(name)) is not None


@lru_cache(maxsize=1024)
def _is_secret(name: str, *, is_variable: bool) -> bool:
    plain = _plain(name)
    if _OF_SOMETHING.search(plain):
        return False
    plain = _HARMLESS.sub("-", plain)
    return _SECRET.search(plain) is not None or (is_variable and _SECRET_VARIABLE.search(plain) is not None)


def _plain(name: str) -> str:
    """Words in lower case with one underscore between them."""
    return _DIVIDER.sub("_", _HUMP.sub("_", name).lower())


# Where a text shows secrets: after names of secrets. A text is gone through once from left to right, and no pattern
# goes back over what it has read: whoever writes lines into a log decides how long they are.

_NAME = re.compile(
    r"(?<![\w.-])(?P<dashes>--)?(?P<name>[\w.-]++)(?P<end>\\{0,8}['\"]?)"
    r"(?:[ \t]{0,4}(?:=>|[=:])[ \t]{0,4}"
    r"|(?P<list>,[ \t]{0,4}(?=b?\\{0,8}['\"]))"
    r"|(?P<space>(?(dashes)[ \t]{1,4}(?=[^\s-]|-[^\s-])|(?!))))"
)
"""A name and what separates it from its value; a space does after an option, a comma between two quoted words."""
_OPENED = re.compile(r"(?:\w{1,16}\()?[bfru]?(?P<escape>\\{0,8})(?P<quote>['\"])", re.IGNORECASE)
_QUOTED = {quote: re.compile(rf"(?:\\.|[^\\\n{quote}])*+") for quote in "'\""}
_ITEMS = re.compile(r"[\[(](?:'(?:\\.|[^'\\\n])*+'|\"(?:\\.|[^\"\\\n])*+\"|['\"][^\n]*+|[^\])\n'\"]++)*+")
_MAPPING = re.compile(r"\{[ \t]{0,4}(?:\\{0,8}['\"]|\}|$)", re.MULTILINE)
_LINE = {quote: re.compile(rf"[^\n{quote}]*+") for quote in ("", "'", '"')}
_WORD = {"": re.compile(r"\S*+"), **{quote: re.compile(rf"(?:\\\S|[^\s\\{quote}])*+") for quote in "'\""}}


def places(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each value after a name of a secret, in their order."""
    done = 0
    for hit in _NAME.finditer(text):
        if hit.start() < done or not _is_shown(hit):
            continue
        start, done = _value(text, hit)
        if start < done:
            yield start, done


def _is_shown(hit: re.Match[str]) -> bool:
    is_word_of_list = hit["list"] is not None and not hit["end"]
    return not is_word_of_list and is_secret_key(hit["name"])


def _value(text: str, hit: re.Match[str]) -> tuple[int, int]:
    """To the closing quote or bracket; without one to the next space, and of headers to the end of the line."""
    at = hit.end()
    if opened := _OPENED.match(text, at):
        start = opened.end()
        if hit["list"] is not None and text.startswith("--", start):
            return at, at
        if opened["escape"]:
            return start, _end(_escaped(opened["escape"] + opened["quote"]), text, start)
        return start, _end(_QUOTED[opened["quote"]], text, start)
    if text.startswith(("[", "("), at):
        return at + 1, _end(_ITEMS, text, at)
    if _MAPPING.match(text, at):
        return at, at
    before = text[hit.start() - 1 : hit.start()]
    around = before if before in ("'", '"') and not hit["end"] else ""
    return at, _end((_LINE if is_header(hit["name"]) else _WORD)[around], text, at)


@lru_cache(maxsize=16)
def _escaped(closing: str) -> re.Pattern[str]:
    """What stands before this quote with the backslashes before it."""
    return re.compile(rf"(?:(?!{re.escape(closing)})[^\n])*+")


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where what the pattern takes from here on ends."""
    found = pattern.match(text, at)
    return found.end() if found else at


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
