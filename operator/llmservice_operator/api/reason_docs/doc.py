"""What is said of one reason, and of a group of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReasonDoc:
    """What happened, what to do about it, and where to look; each in whole sentences."""

    summary: str
    remedy: str
    look: str = ""
    """What to look at; empty where the group's says it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Reasons that are looked into in the same way: a section of the page. Keys are the reasons' words."""

    title: str
    intro: str = ""
    look: str = ""
    docs: Mapping[str, ReasonDoc] = field(default_factory=dict)
