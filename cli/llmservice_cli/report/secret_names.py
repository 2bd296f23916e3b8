"""Which names denote secrets: of keys, options, headers and variables. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

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
