"""The web page: what fits where, planned in a process that is ended where a configuration keeps it busy."""

from __future__ import annotations

import asyncio
import html
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llmservice_runtime.bounded_json import Refused
from llmservice_ui import sizing
from llmservice_ui.sizing import Asked, Sizer, grid_of

from tests.support.hub import Hub, Repo, serving
from tests.support.patience import PATIENCE
from tests.unit.cli.test_plan_models import FILES
from tests.unit.cli_world import LLAMA_8B
from tests.unit.ui.ui_world import OWN, text_of, world

LLAMA = json.dumps(LLAMA_8B)


def python(program: str) -> Sequence[str]:
    """A planner that is this program."""
    return (sys.executable, "-c", program)


async def test_the_operators_planner_answers() -> None:
    sized = await Sizer({}, seconds=PATIENCE).plan(Asked(LLAMA, gpus="T4,H100"))
    assert sized.problems == ()
    assert sized.grid is not None
    assert sized.grid.columns[0] == ("as it is", "auto")
    small, large = [cells[0] for gpu, cells, _ in sized.grid.rows if gpu in ("Tesla-T4", "NVIDIA-H100-80GB-HBM3")]
    assert (small.verdict, large.verdict, large.longest) == ("DoesNotFit", "Fits", 131_072)
    assert sized.grid.has_needed


INPUTS: dict[str, tuple[Asked, str]] = {
    "no JSON": (Asked("{nope"), "is no JSON"),
    "deep": (Asked("[" * 100_000), "is no JSON"),
    "an unknown GPU": (Asked(LLAMA, gpus="Voodoo2"), "is no GPU of the catalogue"),
    "layers without end": (Asked(json.dumps({**LLAMA_8B, "num_hidden_layers": 10**30})), "num_hidden_layers"),
}


@pytest.mark.parametrize(("asked", "said"), INPUTS.values(), ids=INPUTS)
async def test_what_cannot_be_planned_comes_with_the_planners_words(asked: Asked, said: str) -> None:
    sized = await Sizer({}, seconds=PATIENCE).plan(asked)
    assert (sized.grid, sized.is_bad_input) == (None, True)
    assert said in " ".join(sized.problems)


FORMS: dict[str, tuple[Asked, bool, str]] = {
    "nothing": (Asked(), True, "one of both"),
    "both": (Asked(LLAMA, "org/name"), True, "one of both"),
    "a hub that is not reached": (Asked(model="org/name"), False, "This page reads no hub"),
    "a folder": (Asked(model="/etc"), True, "not written as ORG/NAME"),
    "a bucket": (Asked(model="s3://a/b"), True, "not written as ORG/NAME"),
    "an option": (Asked(model="--batch/x"), True, "not written as ORG/NAME"),
    "a way up": (Asked(model="../../etc"), True, "not written as ORG/NAME"),
    "odd GPUs": (Asked(LLAMA, gpus="L4;x"), False, "GPUs: use names"),
    "a line break": (Asked(LLAMA, tensor_parallel="1\n2"), False, "GPUs for each replica: use names"),
    "good": (Asked(LLAMA, gpus="L4, 2 x H100", tensor_parallel="2", max_model_len="32K"), False, ""),
    "good name": (Asked(model="Qwen/Qwen2.5-7B@main"), True, ""),
}


@pytest.mark.parametrize(("asked", "can_reach", "said"), FORMS.values(), ids=FORMS)
def test_forms(asked: Asked, can_reach: bool, said: str) -> None:
    problems = " ".join(asked.problems(can_reach_hub=can_reach))
    assert said in problems
    assert bool(said) == bool(problems)


@given(st.builds(Asked, *[st.text(max_size=20)] * 5))
def test_no_value_becomes_an_option_of_its_own(asked: Asked) -> None:
    words = asked.words
    if not asked.problems(can_reach_hub=True):
        assert list(words[:4]) == ["plan", "--compare", "-o", "json"]
        assert all(word.startswith("--") and "=" in word for word in words[4:])


async def test_one_that_takes_too_long_is_killed() -> None:
    began = time.monotonic()
    sized = await Sizer({}, seconds=1.0, command=python("import time; time.sleep(600)")).plan(Asked("x"))
    assert "took more than 1 s" in sized.problems[0]
    assert time.monotonic() - began < PATIENCE


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_one_that_writes_without_end_is_killed(stream: str) -> None:
    program = f"import sys\nwhile True: sys.{stream}.write('a' * 65536)"
    sized = await Sizer({}, seconds=PATIENCE, command=python(program)).plan(Asked("x"))
    assert "was stopped" in sized.problems[0]


@pytest.mark.parametrize(
    "busy",
    ["while True: pass", "bytearray(2**31)", "pathlib.Path(words[-1]).write_bytes(bytes(2**20))"],
    ids=["cpu", "memory", "file"],
)
async def test_the_kernel_bounds_what_it_may_take(busy: str, tmp_path: Path) -> None:
    program = f"""
import pathlib, sys
sys.argv.append({str(tmp_path / "file")!r})
from llmservice_ui import limited_plan
limited_plan.CPU_SECONDS = 1
def run(words):
    {busy}
    print('{{"cells": []}}')
    return 0
limited_plan.run = run
raise SystemExit(limited_plan.main())
"""
    sized = await Sizer({}, seconds=PATIENCE, command=python(program)).plan(Asked("x"))
    assert sized.grid is None
    assert sized.problems


async def test_a_model_of_a_hub_is_read_without_a_token() -> None:
    with serving(Hub({"org/small": Repo(FILES), "org/gated": Repo(FILES, gated=True)}, {"t": {"org/gated"}})) as hub:
        sizer = Sizer({"HF_ENDPOINT": hub.url, "HF_TOKEN": "t"}, can_reach_hub=True, seconds=PATIENCE)
        sized, gated = await sizer.plan(Asked(model="org/small", gpus="L4")), await sizer.plan(Asked(model="org/gated"))
    assert sized.grid is not None, sized.problems
    assert sized.grid.rows[0][1][0].verdict == "Fits"
    assert (gated.grid, gated.is_bad_input) == (None, True)


async def test_it_gets_no_variables_but_those_that_it_needs() -> None:
    cell = "{'gpu': name, 'weights': 'a', 'kvCacheDtype': 'b'}"
    program = f"import json, os; print(json.dumps({{'cells': [{cell} for name in os.environ]}}))"
    given_ = {"PATH": "/bin", "HF_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "HF_ENDPOINT": "http://hub"}
    for can_reach, expected in (
        (False, {"PATH", "HOME", "NO_COLOR"}),
        (True, {"PATH", "HOME", "NO_COLOR", "HF_ENDPOINT"}),
    ):
        sized = await Sizer(given_, can_reach, PATIENCE, command=python(program)).plan(Asked("x"))
        assert sized.grid is not None
        assert {gpu for gpu, _, _ in sized.grid.rows} - {"LC_CTYPE"} == expected


async def test_an_answer_that_is_none() -> None:
    sized = await Sizer({}, seconds=PATIENCE, command=python("print('{\"cells\": [7]}')")).plan(Asked("x"))
    assert "is not understood" in sized.problems[0]


KEYS = st.sampled_from(["cells", "gpu", "weights", "kvCacheDtype", "verdict", "gpusNeeded", "maxModelLen"])
VALUES = st.none() | st.integers() | st.text(max_size=5)


@given(st.recursive(VALUES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=12))
def test_any_document_is_a_grid_or_refused(document: Any) -> None:
    try:
        grid = grid_of(document)
    except Refused:
        return
    assert all(len(cells) == len(grid.columns) for _, cells, _ in grid.rows)


async def test_the_page_plans_a_pasted_configuration() -> None:
    async with world() as found:
        browser = await found.signed_in()
        form = (await browser.get("/sizing")).text
        assert 'name="model"' not in form, "no hub, no field for its models"
        answer = await browser.post("/sizing", data={"config": LLAMA, "gpus": "H100"}, headers=OWN)
        empty = await browser.post("/sizing", data={"config": " "}, headers=OWN)
        nobody = await found.browser().post("/sizing", data={"config": LLAMA}, headers=OWN)
    assert (answer.status_code, empty.status_code, nobody.status_code) == (200, 422, 303)
    assert "NVIDIA-H100-80GB-HBM3" in answer.text
    assert "Fits" in text_of(answer.text)
    assert "Paste a config.json" in empty.text


async def test_what_was_pasted_is_there_for_the_next_ask() -> None:
    config = json.dumps({**LLAMA_8B, "x": "</textarea><b>" * 1000})
    async with world() as found:
        answer = await (await found.signed_in()).post("/sizing", data={"config": config, "gpus": "no-gpu"}, headers=OWN)
    sent = answer.text.partition('aria-describedby="config-help">')[2].partition("</textarea>")[0]
    assert html.unescape(sent) == config
    assert "<b>" not in answer.text


async def test_a_viewer_has_one_plan_at_a_time_and_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizing, "MOST_ASKED", 2)
    sizer = Sizer({}, seconds=PATIENCE, command=python("import time; time.sleep(600)"))
    async with world(sizer) as found:
        found.users |= {"second": "joe", "third": "ann"}
        jane, again, joe, ann = [await found.signed_in(token) for token in ("t0ken", "t0ken", "second", "third")]
        ask = partial(httpx.AsyncClient.post, url="/sizing", data={"config": LLAMA}, headers=OWN)
        running = []
        for browser in (jane, joe):
            running.append(asyncio.create_task(ask(browser)))
            async with asyncio.timeout(PATIENCE):
                while len(sizer._viewers) < len(running):  # noqa: ASYNC110 - a process without a signal for its tests
                    await asyncio.sleep(0.01)
        mine, others = [(await ask(browser)).text for browser in (again, ann)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    assert "Another plan of yours is being computed" in mine
    assert "Others are planning now: try again in a minute." in others
    assert not sizer._viewers


async def test_a_configuration_that_is_too_large_is_not_read() -> None:
    async with world() as found:
        browser = await found.signed_in()
        answer = await browser.post("/sizing", data={"config": "a" * 4 * sizing.MOST_CONFIG}, headers=OWN)
    assert answer.status_code == 413


async def test_with_a_hub_the_page_has_a_field_for_its_models() -> None:
    async with world(Sizer({}, can_reach_hub=True, seconds=PATIENCE), can_reach_hub=True) as found:
        assert 'name="model"' in (await (await found.signed_in()).get("/sizing")).text
