"""CEL rules across fields, by the path in the spec to which they are attached. `[]` is each item of a list.

The API server skips them while the object has a structural error. Tests check each rule's estimated cost.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from llmservice_api import uri
from llmservice_api.engine_rules import ENGINE_RULES
from llmservice_api.flag_rules import ARGUMENTS, argument_rules
from llmservice_api.pod_rules import POD_RULES
from llmservice_api.rule import Rule, cel_string
from llmservice_api.spec_rules import AUTOSCALING, HOLDING, SPEC

# CEL for every field `uri`, from `uri.SCHEMES`.

_REVISION = f"^[^@]*@{uri.HF_REVISION}$"


def uri_rules() -> tuple[Rule, ...]:
    """The rules of an object with a field `uri`."""
    return tuple(_rules())


def _rules() -> Iterator[Rule]:
    schemes = "|".join(uri.SCHEMES)
    yield Rule(f"self.uri.matches('^({schemes})://')", f"must begin with a scheme that is served: {uri.FORMS}", ".uri")
    for name, scheme in uri.SCHEMES.items():
        # An invalid revision has a message of its own.
        pattern = f"{uri.HF_REPO}(@.*)?" if name == "hf" else scheme.pattern
        # Group names are for Python; in CEL each character adds cost.
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


_NAME = "metadata.name must be a DNS label of at most 50 characters, because the Service has this name"

# As in Kubernetes: lowercase letters, digits, dashes and dots. Three cheap rules, since the cost estimate has no bound
# for the length of a name.
ROOT = (
    Rule(
        "!self.metadata.name.contains('.')",
        f"{_NAME}: write dashes for dots",
        field=".metadata.name",
        message_expression=f"'{_NAME}: use ' + self.metadata.name.replace('.', '-')",
    ),
    Rule(
        "self.metadata.name >= 'a'",
        f"{_NAME}: begin with a letter",
        field=".metadata.name",
        message_expression=f"'{_NAME}: use m-' + self.metadata.name",
    ),
    Rule(
        "self.metadata.name.size() <= 50",
        f"{_NAME}: shorten it",
        field=".metadata.name",
        message_expression=f"'{_NAME}: use ' + (self.metadata.name.substring(49, 50) == '-' ? "
        "self.metadata.name.substring(0, 49) : self.metadata.name.substring(0, 50))",
    ),
    Rule(
        "!has(self.spec.adapters) || has(self.spec.model.servedModelNames) || "
        "self.spec.adapters.all(adapter, adapter.name != self.metadata.name)",
        "the model itself has the LLMService's name: give the adapter another one, or set spec.model.servedModelNames",
        field=".spec.adapters",
    ),
)

MODEL = (
    *uri_rules(),
    Rule(
        "!has(self.convert) || self.convert in ['auto', 'none'] || (has(self.runner) && self.runner == 'pooling')",
        "only for the pooling runner: set spec.model.runner to pooling, or remove convert",
        ".convert",
    ),
)

CACHE = (
    Rule(
        "has(self.claimName) != has(self.size)",
        "give either claimName (a claim that exists) or size (of a claim that the operator makes), and not both",
    ),
    *(
        Rule(
            f"has(self.size) || !has(self.{field})",
            f"{why}: remove {field}, or give size instead of claimName",
            f".{field}",
        )
        for field, why in (
            ("storageClassName", "an existing claim has its storage class already"),
            ("accessModes", "an existing claim has its access modes already"),
            ("retentionPolicy", "a claim that you made is never deleted"),
        )
    ),
    Rule(
        "!has(self.size) || !has(oldSelf.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
        "a claim cannot shrink: give at least the size that it has; for a smaller one remove spec.model.cache first, "
        "delete the claim, and set it again",
        ".size",
    ),
    Rule(
        "!has(self.size) || !has(oldSelf.size) || (has(self.storageClassName) == has(oldSelf.storageClassName) && "
        "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName))",
        "a claim cannot change its storage class: put the old value back; for another one remove spec.model.cache "
        "first, delete the claim, and set it again",
        ".storageClassName",
    ),
    Rule(
        "!has(self.size) || !has(oldSelf.size) || (has(self.accessModes) == has(oldSelf.accessModes) && "
        "(!has(self.accessModes) || (self.accessModes.all(mode, mode in oldSelf.accessModes) && "
        "oldSelf.accessModes.all(mode, mode in self.accessModes))))",
        "a claim cannot change its access modes: put the old ones back; for others remove spec.model.cache first, "
        "delete the claim, and set it again",
        ".accessModes",
    ),
)

START_CACHE = (
    Rule(
        "quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0 && "
        "(has(self.storageClassName) ? self.storageClassName : '') == "
        "(has(oldSelf.storageClassName) ? oldSelf.storageClassName : '') && "
        "has(self.accessModes) == has(oldSelf.accessModes) && "
        "(!has(self.accessModes) || self.accessModes == oldSelf.accessModes)",
        "a claim can only grow: put the old values back, or remove spec.startCache, wait until the claim is gone, and "
        "set it again",
    ),
)

ARCHITECTURE = (
    Rule(
        "!has(self.numKeyValueHeads) || !has(self.numAttentionHeads) || "
        "self.numAttentionHeads % self.numKeyValueHeads == 0",
        "must divide numAttentionHeads: copy both numbers from the model's config.json",
        ".numKeyValueHeads",
    ),
)

RULES: Mapping[str, tuple[Rule, ...]] = MappingProxyType(
    {
        "": ROOT,
        "spec": SPEC,
        "spec.scaling.autoscaling": AUTOSCALING,
        "spec.scaling.holding": HOLDING,
        "spec.model": MODEL,
        "spec.model.cache": CACHE,
        "spec.startCache": START_CACHE,
        "spec.model.architecture": ARCHITECTURE,
        "spec.speculativeDecoding.model": uri_rules(),
        "spec.adapters[]": uri_rules(),
        **ENGINE_RULES,
        "spec.runtime.extraArgs": ARGUMENTS,
        "spec.runtime.extraArgs[]": argument_rules(),
        **POD_RULES,
    }
)
