"""What a command line asks for: the questions that can be answered, and what is wrong with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmservice_operator.api.errors import Problem

from llmservice_cli.errors import ExitCode, print_problems

if TYPE_CHECKING:
    from .given import Given
    from .questions import Question


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions, and the problems of LLMServices that cannot be planned for."""

    given: Given
    questions: Sequence[Question]
    problems: Sequence[Problem] = ()
    is_list: bool = False
    """Of several LLMServices, even where one is left."""

    def ended(self, code: ExitCode) -> ExitCode:
        """Print the problems after the answers; the worst counts."""
        from .ending import worst

        print_problems(self.problems)
        return worst((code, ExitCode.BAD_INPUT)) if self.problems else code
