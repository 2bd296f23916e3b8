"""The command line stops reading a config.json that takes too long."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from llmservice_cli.plan.reading import read
from llmservice_cli.plan.values import Refused
from llmservice_operator.planner.model import config_json

from tests.unit.decide_world import QWEN_7B


def test_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(_: Any) -> None:
        while True:
            pass

    monkeypatch.setattr(config_json, "read", endless)
    before = signal.getsignal(signal.SIGPROF)
    with pytest.raises(Refused, match=r"more than 0\.05 s of processor time"):
        read(QWEN_7B, seconds=0.05)
    assert signal.getsignal(signal.SIGPROF) is before
    assert signal.getitimer(signal.ITIMER_PROF)[0] == 0
