"""CEL for every field `uri`, from `uri.SCHEMES`."""

import re
from collections.abc import Iterator

from llmservice_operator.api import uri
from llmservice_operator.api.rule import Rule, cel_string

_REVISION = f"^[^@]*@{uri.HF_REVISION}$"


def uri_rules() -> tuple[Rule, ...]:
    """The rules of an object that has a field `uri`."""
    return tuple(_rules())


def _rules() -> Iterator[Rule]:
    schemes = "|".join(uri.SCHEMES)
    yield Rule(f"self.uri.matches('^({schemes})://')", f"must begin with a scheme that is served: {uri.FORMS}", ".uri")
    for name, scheme in uri.SCHEMES.items():
        # What is wrong with a revision has words of its own.
        pattern = f"{uri.HF_REPO}(@.*)?" if name == "hf" else scheme.pattern
        # The names of groups are for Python; here each letter costs.
        matches = cel_string(f"^{name}://{re.sub(r'[?]P<[a-z]+>', '', pattern)}$")
        yield Rule(
            f"!self.uri.startsWith('{name}://') || self.uri.matches({matches})", f"must be {scheme.form}", ".uri"
        )
    yield Rule(
        f"!self.uri.startsWith('hf://') || !self.uri.contains('@') || self.uri.matches({cel_string(_REVISION)})",
        "what follows @ must be one branch, tag or commit of at most 128 letters, digits and . _ / -, for example "
        "hf://ORG/NAME@main; without a revision leave the @ out",
        ".uri",
    )
    yield Rule(
        "!self.uri.contains('..') && !self.uri.matches('://.*//') && !self.uri.matches('[[:space:][:cntrl:]]')",
        "must hold no '..', no '//' and no white space; write the plain path",
        ".uri",
    )
