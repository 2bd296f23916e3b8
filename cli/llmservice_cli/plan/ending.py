"""What `plan` ends with: one rule for every form of asking and answering."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmservice_operator.planner.plan import Fit

from llmservice_cli.errors import ExitCode

from .arguments import Options

_WORST_FIRST = (ExitCode.BAD_INPUT, ExitCode.DOES_NOT_FIT, ExitCode.UNKNOWN, ExitCode.DONE)


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit code of a verdict, by the two options that change it."""

    is_strict: bool = False
    """Tight counts as a no."""
    allows_unknown: bool = False
    """Unknown counts as a yes."""

    @classmethod
    def by(cls, options: Options) -> Ending:
        return cls(options.strict, options.allow_unknown)

    def code(self, verdict: Fit) -> ExitCode:
        codes = {
            Fit.FITS: ExitCode.DONE,
            Fit.TIGHT: ExitCode.DOES_NOT_FIT if self.is_strict else ExitCode.DONE,
            Fit.DOES_NOT_FIT: ExitCode.DOES_NOT_FIT,
            Fit.UNKNOWN: ExitCode.DONE if self.allows_unknown else ExitCode.UNKNOWN,
        }
        return codes[verdict]

    def best(self, verdicts: Iterable[Fit]) -> ExitCode:
        """Of alternatives, of which one is enough; a no where there are none."""
        found = {self.code(verdict) for verdict in verdicts}
        return next((code for code in reversed(_WORST_FIRST) if code in found), ExitCode.DOES_NOT_FIT)


def worst(codes: Iterable[ExitCode]) -> ExitCode:
    """Of several plans, which all count: bad input before a no, and a no before what is not known."""
    found = set(codes)
    return next((code for code in _WORST_FIRST if code in found), ExitCode.DONE)
