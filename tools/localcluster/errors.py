"""What may go wrong, said so that the reader knows what to do next."""

from __future__ import annotations


class ClusterError(Exception):
    """A problem and its remedy; the command line prints it without a traceback."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem}\n  {remedy}" if remedy else problem)
        self.problem = problem
        self.remedy = remedy
