"""Typed access to a model's config.json: invalid values are reported with their key."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llmservice_planner.model.architecture import Incomplete, InvalidModel

LARGEST = 2**40
"""Above any real width, count or length; a larger one is a mistake."""
MOST_PARAMETERS = 2**48
"""Of a whole model, stated or counted: a hundred times the largest trained one."""
MOST_LAYERS = 1024
"""Maximum of layers in spec.model.architecture, and of entries in a list."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "hidden_size": ("n_embd", "n_embed", "d_model", "model_dim"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": (
        "n_head_kv",
        "num_kv_heads",
        "n_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "intermediate_size": ("n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocab_size": ("padded_vocab_size",),
    "head_dim": ("hidden_size_per_head", "kv_channels", "attention_head_dim"),
    "num_experts": ("num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"),
    "num_experts_per_tok": ("num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k", "moe_k"),
    "moe_intermediate_size": ("moe_ffn_hidden_size", "expert_ffn_hidden_size"),
    "num_shared_experts": ("n_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "shared_expert_intermediate_size": (
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
    ),
    "first_k_dense_replace": ("first_k_dense",),
    "dtype": ("torch_dtype",),
}
"""Names of the same fact in config.json, newest first."""


class Keys:
    """Typed access to a config.json, or a part of it. Null means absent."""

    def __init__(self, document: Mapping[str, Any], defaults: Mapping[str, Any] | None = None, path: str = "") -> None:
        self._document = document
        self._defaults = defaults or {}
        self._path = path
        self._lists: dict[str, tuple[Any, ...]] = {}

    def raw(self, name: str) -> Any:
        """The value under a name or an alias; else the family's default; else None."""
        for one in (name, *ALIASES.get(name, ())):
            value = self._document.get(one)
            if value is not None:
                return value
        return self._defaults.get(name)

    def names(self) -> tuple[str, ...]:
        """The keys of an object; InvalidModel unless all are strings."""
        found = tuple(self._document)
        if not all(isinstance(name, str) for name in found):
            raise InvalidModel(self._path.removesuffix("."), "must have names that are strings")
        return found

    def has(self, *names: str) -> bool:
        """Whether one of the names has a value, including defaults."""
        return any(self.raw(name) is not None for name in names)

    def stated(self, name: str) -> bool:
        """Whether the document itself has a value under the name or an alias."""
        return any(self._document.get(one) is not None for one in (name, *ALIASES.get(name, ())))

    def integer(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """The first of the names with a value, as an integer; InvalidModel otherwise."""
        for name in names:
            value = self.raw(name)
            if value is not None:
                return self.checked(name, value, least, most)
        return None

    def needed(self, *names: str, least: int = 1, most: int = LARGEST) -> int:
        """As `integer`, for a required value: Incomplete names the first of the names."""
        value = self.integer(*names, least=least, most=most)
        if value is None:
            raise Incomplete(self._path + names[0])
        return value

    def count(self, *names: str, default: int = 0) -> int:
        """A number that may be 0."""
        value = self.integer(*names, least=0)
        return default if value is None else value

    def number(self, name: str) -> float | None:
        """A positive number."""
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
            raise InvalidModel(self._path + name, f"must be a positive number, not {shown(value)}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidModel(self._path + name, f"must be true or false, not {shown(value)}")
        return value

    def text(self, name: str) -> str | None:
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            raise InvalidModel(self._path + name, f"must be a string, not {shown(value)}")
        return value

    def section(self, name: str) -> Keys | None:
        """An object, with the same checks."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InvalidModel(self._path + name, f"must be an object, not {shown(value)}")
        return Keys(value, path=f"{self._path}{name}.")

    def values(self, name: str, most: int = MOST_LAYERS) -> tuple[Any, ...] | None:
        """A list, expanded if it is run-length encoded: [["full", 3], ["sliding", 1]]."""
        if name in self._lists:
            return self._lists[name]
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InvalidModel(self._path + name, f"must be a list, not {shown(value)}")
        # It is requested for each layer.
        found = self._lists[name] = tuple(self._written_out(name, value, most))
        return found

    def words(self, name: str, most: int = MOST_LAYERS) -> tuple[str, ...] | None:
        """A list of strings."""
        found = self.values(name, most)
        if found is not None and not all(isinstance(one, str) for one in found):
            raise InvalidModel(self._path + name, "must be a list of strings")
        return found

    def checked(self, name: str, value: Any, least: int = 0, most: int = LARGEST) -> int:
        """An integer within bounds; floats without a fraction count, since JSON does not distinguish them."""
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidModel(self._path + name, f"must be a whole number from {least} to {most}, not {shown(value)}")
        return value

    def _written_out(self, name: str, value: Sequence[Any], most: int) -> Iterable[Any]:
        total = 0
        for one in value:
            run = _run(one)
            total += 1 if run is None else run[1]
            if total > most:
                raise InvalidModel(self._path + name, f"has more than {most} elements")
            if run is None:
                yield one
            else:
                yield from [run[0]] * run[1]


def _run(element: Any) -> tuple[Any, int] | None:
    """A value and its number of repeats. No list that is read here contains lists otherwise."""
    if isinstance(element, Sequence) and not isinstance(element, str) and len(element) == 2:
        value, count = element
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return value, count
    return None


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 60, 60


def shown(value: Any) -> str:
    """A value for a message, truncated before it is formatted: it may have any depth and length."""
    if isinstance(value, int) and abs(value) > MOST_PARAMETERS:
        return f"a number of {value.bit_length()} bits"
    text = _SHORT.repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
