"""A checkpoint's quantization_config: the forms of its weights, and the form of each module.

Most have one form for all linears. Tools differ in how they state exceptions; the interpretation follows vLLM's class
of the method (vllm/model_executor/layers/quantization).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from llmservice_api.dtypes import KVCache

from llmservice_planner.model import quantized
from llmservice_planner.model.architecture import UNQUANTIZED, InvalidModel, Quantization, printable
from llmservice_planner.model.config_keys import Keys

MOST_MODULES = 2**20
"""Some files list each expert of each layer."""
MOST_FORMS = 16
"""Forms of one checkpoint. Real ones have up to four."""
_KEY = "quantization_config"
_SCALED = ("modelopt", "compressed")
"""Methods whose checkpoints contain scales for the KV cache."""
_HEAD = "lm_head"
_UNQUANTIZED_BITS = 16
_SPECIAL = re.compile(r"[*+?^$()\[\]{}|\\]")
"""AutoRound treats a name with one of these as a regular expression."""


def read(keys: Keys) -> Quantization | None:
    """From quantization_config (formerly compression_config); None where the checkpoint is not quantized."""
    section = keys.section("quantization_config") or keys.section("compression_config")
    if section is None:
        return None
    nested = section.section("quantization") or section
    name = _method_of(section, nested)
    found = _READERS.get(name, _modelopt if name.startswith("modelopt") else _plain)(name, section, nested)
    found = replace(found, kept=_kept(section, nested))
    return replace(found, kv_cache=_kv_cache(section, nested)) if name.startswith(_SCALED) else found


def _method_of(section: Keys, nested: Keys) -> str:
    name = section.text("quant_method")
    if name is None and nested.has("quant_algo"):
        return "modelopt"
    if name is None and section.has("config_groups"):
        return "compressed-tensors"
    if name is None:
        raise InvalidModel("quantization_config.quant_method", "is missing")
    return printable(name.lower().replace("compressed_tensors", "compressed-tensors"))


def _kept(section: Keys, nested: Keys) -> tuple[str, ...]:
    for where in (section, nested):
        for name in (
            "ignore",
            "modules_to_not_convert",
            "ignored_layers",
            "exclude_modules",
            "exclude",
            "llm_int8_skip_modules",
        ):
            found = where.words(name, MOST_MODULES)
            if found is not None:
                return found
    return ()


def _kv_cache(section: Keys, nested: Keys) -> KVCache | None:
    """As vLLM resolves `auto` (utils/torch_utils.py, and the layers themselves for compressed-tensors)."""
    algorithms: Mapping[str, KVCache] = {"FP8": "fp8", "NVFP4": "nvfp4"}
    by_bits: Mapping[int, KVCache] = {8: "fp8", 4: "nvfp4"}
    for where in (nested, section):
        scheme = where.section("kv_cache_scheme") if isinstance(where.raw("kv_cache_scheme"), Mapping) else None
        if scheme is not None:
            return by_bits.get(scheme.integer("num_bits") or 8)
    for where in (nested, section):
        named = where.raw("kv_cache_quant_algo")
        if isinstance(named, str):
            return algorithms.get(named.upper())
    return None


class _Forms:
    """Distinct forms in order, and the rules that refer to them."""

    def __init__(self, first: Quantization | None = None) -> None:
        self.found = [] if first is None else [first]
        self.rules: list[tuple[str, int]] = []

    def number(self, form: Quantization | None) -> int:
        """Index of a form; KEPT for None."""
        if form is None:
            return UNQUANTIZED
        if form not in self.found:
            if len(self.found) >= MOST_FORMS:
                raise InvalidModel(_KEY, f"describes more than {MOST_FORMS} ways to store weights")
            self.found.append(form)
        return self.found.index(form)

    def add(self, pattern: str, form: Quantization | None) -> None:
        self.rules.append((pattern, self.number(form)))

    def head(self, default: int = UNQUANTIZED) -> int:
        """The form of the first rule that matches lm_head."""
        return next((form for pattern, form in self.rules if _HEAD in pattern), default)

    def whole(self, *, unmatched: int = 0, head: int = UNQUANTIZED) -> Quantization:
        """All forms as one value."""
        first, *others = self.found
        return replace(first, others=tuple(others), rules=tuple(self.rules), unmatched=unmatched, head=head)


def _items(section: Keys, name: str) -> Iterator[tuple[str, Keys | None]]:
    """An object of objects; None for a null."""
    inner = section.section(name)
    for key in () if inner is None else inner.names():
        if not key:
            raise InvalidModel(f"{_KEY}.{name}", "has a name without letters")
        yield key, inner.section(key) if inner is not None else None


def _plain(name: str, section: Keys, _: Keys) -> Quantization:
    """AWQ, fp8 and others with one bits and group_size."""
    found = quantized.by_bits(name, section)
    head = 0 if section.raw("lm_head") is True else UNQUANTIZED
    return replace(found, head=head, refused=_unsupported_bits(name, section, found))


def _unsupported_bits(name: str, section: Keys, form: Quantization) -> str:
    if name in ("awq", "awq_marlin", "auto_awq") and form.bits != 4:
        return f"is AWQ of {form.bits:g} bits, and vLLM has AWQ of 4 bits only"
    return ""


def _gptq(name: str, section: Keys, nested: Keys) -> Quantization:
    """GPTQModel's `dynamic`: patterns at the start of a name; "-:" excludes matches from quantization."""
    base = _plain(name, section, nested)
    forms = _Forms(base)
    refused = _refused_gptq(section, base, section)
    for pattern, values in _items(section, "dynamic"):
        if pattern.startswith("-:"):
            forms.add(f"re:{pattern[2:]}", None)
        elif values is not None:
            own = quantized.by_bits(name, values, base)
            refused = refused or _refused_gptq(values, own, section)
            forms.add(f"re:{pattern.removeprefix('+:')}", own)
    named = _flat(section, "modules_in_block_to_quantize")
    forms.rules += [(one, 0) for one in named]
    return replace(forms.whole(unmatched=UNQUANTIZED if named else 0, head=base.head), refused=refused)


def _refused_gptq(values: Keys, form: Quantization, base: Keys) -> str:
    """Conditions under which AutoGPTQConfig raises (auto_gptq.py, TYPE_MAP; utils/gptq_utils.py)."""
    by_activation = values.raw("desc_act") if values.has("desc_act") else base.raw("desc_act")
    symmetric = values.raw("sym") if values.has("sym") else base.raw("sym")
    if by_activation is True and form.group_size:
        return "is GPTQ in groups in the order of activations (desc_act), which vLLM dropped with 0.32"
    if form.bits not in (4, 8):
        return f"is GPTQ of {form.bits:g} bits, and vLLM has GPTQ of 4 and 8 bits only"
    return "is GPTQ with sym: false, and vLLM has symmetric GPTQ only" if symmetric is False else ""


def _flat(section: Keys, name: str) -> tuple[str, ...]:
    """A list of names, or of lists of them."""
    value = section.raw(name)
    flat = (
        [one for inner in value for one in (inner if isinstance(inner, list | tuple) else (inner,))]
        if (isinstance(value, list | tuple) and len(value) <= MOST_MODULES)
        else []
    )
    if not all(isinstance(one, str) for one in flat):
        raise InvalidModel(f"{_KEY}.{name}", "must be a list of strings")
    return tuple(flat)


def _auto_round(name: str, section: Keys, nested: Keys) -> Quantization:
    """`extra_config`: exact names, suffixes, and regular expressions that match anywhere."""
    base = _plain(name, section, nested)
    forms = _Forms(base)
    patterns = []
    for module, values in _items(section, "extra_config"):
        if values is None:
            continue
        bits = values.number("bits") or base.bits
        own = None if bits >= _UNQUANTIZED_BITS else quantized.by_bits(name, values, base)
        if _SPECIAL.search(module):
            patterns.append((f"re:.*(?:{module})", forms.number(own)))
        else:
            forms.add(module, own)
    forms.rules += patterns
    return forms.whole(head=forms.head(base.head))


def _compressed(name: str, section: Keys, _: Keys) -> Quantization:
    """Targets of groups are names or patterns, which come first, or a class of modules: Linear."""
    forms, unmatched, head = _Forms(), UNQUANTIZED, UNQUANTIZED
    by_name: list[tuple[str, int]] = []
    by_class: list[tuple[str, int]] = []
    packing = section.text("format") or ""
    for _group_name, group in _items(section, "config_groups"):
        weights = None if group is None else group.section("weights")
        own = None if weights is None else quantized.compressed(weights, (group and group.text("format")) or packing)
        targets = () if group is None else group.words("targets", MOST_MODULES)
        for target in ("Linear",) if targets is None else targets:
            (by_class if _is_class(target) else by_name).append((target, forms.number(own)))
    if not forms.found:
        return Quantization(name, 8)
    for target, form in by_class:
        if "linear" in target.lower() and unmatched == UNQUANTIZED:
            unmatched = form
        head = form if "head" in target.lower() else head
    forms.rules += by_name
    if not by_name and unmatched == 0:
        return forms.whole(head=head)
    return forms.whole(unmatched=unmatched, head=forms.head(head))


def _is_class(target: str) -> bool:
    """Module names contain lower-case initials or dots, as `lm_head` and `model.layers.0.mlp.down_proj`."""
    return target[:1].isupper() and "." not in target


def _modelopt(name: str, section: Keys, nested: Keys) -> Quantization:
    """A list of modules with an algorithm each (MIXED_PRECISION); others stay in 16 bit."""
    forms = _Forms()
    for module, values in _items(nested, "quantized_layers"):
        if values is not None and values.has("quant_algo"):
            forms.add(module, quantized.modelopt("modelopt_mixed", values))
    if forms.found and "MIXED" in (nested.text("quant_algo") or "MIXED").upper():
        return forms.whole(unmatched=UNQUANTIZED, head=forms.head())
    return quantized.modelopt(name, nested)


def _quark(name: str, section: Keys, _: Keys) -> Quantization:
    """`layer_quant_config` has globs of names; others follow `global_quant_config`."""
    overall = section.section("global_quant_config")
    base = quantized.quark(overall) or quantized.METHODS[name]
    forms = _Forms(base)
    for pattern, values in _items(section, "layer_quant_config"):
        if values is not None and not _is_cache(pattern, section):
            forms.add(pattern, quantized.quark(values))
    return forms.whole(head=forms.head())


def _is_cache(pattern: str, section: Keys) -> bool:
    """Quark states the type of the KV cache as that of its projections' outputs."""
    return pattern in (section.words("kv_cache_group") or ())


def _torchao(name: str, section: Keys, _: Keys) -> Quantization:
    """One configuration, or one for each name or full pattern of a module (ModuleFqnToConfig)."""
    kinds = section.section("quant_type") if isinstance(section.raw("quant_type"), Mapping) else None
    default = kinds.section("default") if kinds is not None else None
    if default is None:
        found = quantized.torchao(section.raw("quant_type"), section.section("quant_type_kwargs") or Keys({}))
        return replace(found, refused="describes torchao in an old way that vLLM does not read (quant_type as text)")
    data = default.section("_data") or Keys({})
    named = next((one for one in ("module_fqn_to_config", "fqn_to_config") if data.has(one)), None)
    if named is None:
        return quantized.torchao(default.raw("_type"), data)
    forms = _Forms()
    by_module: list[tuple[str, Quantization | None]] = []
    for module, values in _items(data, named):
        inner = None if values is None else values.section("_data") or Keys({})
        by_module.append(
            (module, None if values is None else quantized.torchao(values.raw("_type"), inner or Keys({})))
        )
    rest = dict(by_module).get("_default")
    unmatched = forms.number(rest)
    for module, form in sorted(by_module, key=lambda one: one[0].startswith("re:")):
        if module != "_default":
            forms.add(f"re:(?:{module[3:]})$" if module.startswith("re:") else module, form)
    return forms.whole(unmatched=unmatched) if forms.found else Quantization(name, _UNQUANTIZED_BITS)


def _bitsandbytes(_: str, section: Keys, __: Keys) -> Quantization:
    return quantized.bitsandbytes(section)


_READERS: Mapping[str, Callable[[str, Keys, Keys], Quantization]] = {
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
    "torchao": _torchao,
    **dict.fromkeys(("gptq", "gptq_marlin", "auto_gptq"), _gptq),
    **dict.fromkeys(("auto-round", "inc"), _auto_round),
}
