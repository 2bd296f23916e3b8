"""Forms of transcriptions at zero: read as vLLM's server reads them, in steps that are each a sliver of one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from email.message import Message
from email.parser import BytesParser
from typing import Any, cast

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from llmservice_activator.holding import check
from llmservice_activator.holding.answer import Answer
from llmservice_activator.holding.body import MOST_PARTS, MOST_SEMICOLONS, NotAForm, parameters, parts
from llmservice_activator.holding.check import RequestHead

from tests.unit.activator.test_holding_body import finished
from tests.unit.holding_world import target

AUDIO = "/v1/audio/transcriptions"
FORM = "multipart/form-data; boundary=b"
FILE = b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\n'


def written(*found: bytes, boundary: bytes = b"b") -> bytes:
    return b"".join(b"--%s\r\n%s\r\n" % (boundary, part) for part in found) + b"--%s--\r\n" % boundary


def file_with(disposition: str) -> bytes:
    return f"Content-Disposition: form-data; {disposition}\r\n\r\nRIFF".encode()


UNKNOWN = written(FILE + b"RIFF", MODEL + b"gpt")
CASES: dict[str, tuple[str, bytes, int]] = {
    "a file and a model": (FORM, written(FILE + b"RIFF", MODEL + b"llama"), 0),
    "another model": (FORM, UNKNOWN, 404),
    "the last of two models": (FORM, written(FILE + b"RIFF", MODEL + b"llama", MODEL + b"gpt"), 404),
    "a file name with `; name=`": (FORM, written(file_with('name="file"; filename="a; name=b.wav"')), 0),
    "a file name with `; name=` in quotes": (FORM, written(file_with(r'name="file"; filename="a\"; name=\"b"')), 0),
    "a name after such a file name": (FORM, written(file_with('filename="a; name=model; x=b.wav"; name="file"')), 0),
    "a model's name in a file name": (
        FORM, written(FILE + b"x", file_with('filename="; name=model; "; name="x"').replace(b"RIFF", b"gpt")), 0),
    "a file name beyond ASCII beside another": (
        FORM, written(file_with("name=file; filename=a; filename*=UTF-8''%C3%A9%3B%20name%3Dx")), 0),
    "a file name that forms do not have": (FORM, written(file_with("name=file; filename*=UTF-8''%C3%A9")), 400),
    "a file name in pieces": (FORM, written(file_with('name="file"; filename*0="a"; filename*1="; name=x"')), 400),
    "a name behind a quoted backslash": (
        FORM, written(FILE + b"x", file_with(r'name="model"; x="\\"; name="y"').replace(b"RIFF", b"gpt")), 404),
    "a quote within a text": (
        FORM, written(FILE + b"x", file_with('name=model; q=a"b; name=y; z="').replace(b"RIFF", b"gpt")), 404),
    "a charset that hides names": (FORM + "; charset=utf-7", UNKNOWN, 400),
    "as many parts as there may be": (FORM, written(FILE + b"x", *(file_with(f"name=n{i}") for i in range(63))), 0),
    "more parts": (FORM, written(FILE + b"x", *(file_with(f"name=n{i}") for i in range(64))), 400),
    "a long file name": (FORM, written(file_with(f'name="file"; filename="{"a" * 4100}"')), 0),
    "a name beyond ASCII, which forms do not have": (FORM, written(file_with("name*=UTF-8''file; filename=a")), 400),
    "names in another case, and spaces": (FORM, written(file_with('NAME = "file" ; FileName = "a"')), 0),
    "a file name of Windows": (FORM, written(file_with(r'name="file"; filename="C:\new\a.wav"')), 0),
    "a file name without an end": (FORM, written(file_with('name="file"; filename="a')), 0),
    "a text that is called file": (FORM, written(file_with('name="file"')), 400),
    "a model that is a file": (FORM, written(FILE + b"x", file_with('name="model"; filename="a"')), 400),
    "an empty part": (FORM, written(MODEL, FILE + b"x"), 0),
    "a boundary in quotes": ('multipart/form-data; boundary="b"', UNKNOWN, 404),
    "a boundary with a semicolon": (
        'multipart/form-data; charset=utf-8; boundary="a; b=c"',
        written(FILE + b"RIFF", MODEL + b"gpt", boundary=b"a; b=c"), 404),
    "a boundary with escapes": (r'multipart/form-data; boundary="a\"b"', written(FILE, boundary=b'a"b'), 0),
    "a boundary after a text like it": ('multipart/form-data; x="; boundary=c"; boundary=b', UNKNOWN, 404),
    "a boundary beyond ASCII, which forms do not have": ("multipart/form-data; boundary*=UTF-8''b", UNKNOWN, 400),
    "no boundary": ("multipart/form-data", written(FILE, boundary=b""), 400),
    "a boundary that is too long": (
        f"multipart/form-data; boundary={'b' * 257}", written(FILE, boundary=b"b" * 257), 400),
    "a file with a line like the boundary": (FORM, written(FILE + b"x\r\n--bc\r\n" + MODEL + b"gpt\r\n--b-\r\n"), 0),
    "spaces after a boundary": (FORM, UNKNOWN.replace(b"--b\r\n", b"--b \t\r\n"), 404),
    "text before": (FORM, b"preamble\r\n" + UNKNOWN, 400),
    "empty lines before, text after": (FORM, b"\r\n\r\n" + UNKNOWN + b"epilogue", 404),
    "no end": (FORM, UNKNOWN[: -len("--\r\n")], 400),
    "lines like the boundary without end": (FORM, written(FILE + b"\r\n--bc" * 100_000), 400),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_a_form_is_answered(case: str) -> None:
    content_type, body, status = CASES[case]
    head = RequestHead("POST", AUDIO, {"Content-Type": content_type})
    assert check.without_pod(head, target(port=1)) is None
    verdict = finished(check.with_body(head, body, target(port=1)))
    assert (verdict.status if isinstance(verdict, Answer) else 0) == status, verdict


TOKENS = st.text("abcXYZ019-_.", min_size=1, max_size=8)
TEXTS = st.lists(st.sampled_from(["a", " ", ";", "=", "; name=", "*", ",", ":", '"', "'"]), max_size=6).map("".join)
NAMES = st.sampled_from(["file", "model", "x", "a b", ""]) | TEXTS
STYLES = st.sampled_from(["name first", "name last", "more between", "extended"])


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def head(name: str, filename: str | None, style: str) -> str:
    given_name = f"name={quoted(name)}"
    if filename is None:
        return f"Content-Disposition: form-data; {given_name}\r\n\r\n"
    given_file = f"filename={quoted(filename)}"
    orders = {
        "name first": f"{given_name}; {given_file}",
        "name last": f"{given_file}; {given_name}",
        "more between": f'{given_name};x="; name=y"; {given_file}',
        "extended": f"{given_name}; {given_file}; filename*=UTF-8''%3B%20name%3Dx",
    }
    return f"Content-Disposition: form-data; {orders[style]}\r\n\r\n"


PARTS = st.lists(
    st.tuples(
        NAMES,
        st.none() | TEXTS,
        STYLES,
        st.lists(st.sampled_from([b"x", b"-", b"--b", b"\r\n", b"\r\n--bx", b";", b" ", b"\xff"]), max_size=6).map(
            b"".join
        ),
    ),
    max_size=5,
)


def is_well_formed(found: Any) -> bool:
    """No content has a line that is a boundary."""
    lines = [line for *_, value in found for line in value.split(b"\r\n")]
    return not any(line[:4] in (b"--b", b"--b ", b"--b-") for line in lines)


def by_mail(body: bytes) -> dict[str, tuple[bytes, bool]]:
    """What Python's parser of mail finds: a form is written alike."""
    mail = BytesParser().parsebytes(b'Content-Type: multipart/form-data; boundary="b"\r\n\r\n' + body)
    found = cast("list[Message]", mail.get_payload())
    return {
        str(part.get_param("name", header="content-disposition")): (
            cast("bytes", part.get_payload(decode=True)),
            part.get_filename() is not None,
        )
        for part in found
    }


def by_vllm(body: bytes) -> dict[str, tuple[bytes, bool]]:
    """What the parser of vLLM's server finds."""
    multipart = pytest.importorskip("python_multipart.multipart", reason="needs the vllm dependency group")
    found: list[tuple[dict[bytes, bytes], bytearray]] = []

    def header_ended() -> None:
        found.append((multipart.parse_options_header(values.pop().decode())[1], bytearray()))

    values: list[bytes] = []
    callbacks = {
        "on_header_value": lambda data, start, end: values.append(data[start:end]),
        "on_header_end": header_ended,
        "on_part_data": lambda data, start, end: found[-1][1].extend(data[start:end]),
    }
    multipart.MultipartParser(b"b", callbacks).write(body)
    return {options[b"name"].decode("latin-1"): (bytes(value), b"filename" in options) for options, value in found}


@pytest.mark.parametrize("oracle", [by_mail, by_vllm])
def test_a_form_is_what_other_parsers_find(oracle: Callable[[bytes], dict[str, tuple[bytes, bool]]]) -> None:
    @given(PARTS)
    @example([("file", "a; name=x", "name last", b"x")])
    def compared(made: Any) -> None:
        assume(made and is_well_formed(made))
        body = written(*(head(*each).encode() + value for *each, value in made))
        found = {name: (part.value, part.is_file) for name, part in finished(parts(body, b"b")).items()}
        assert found == oracle(body)

    compared()


@given(st.dictionaries(TOKENS.map(str.lower), TEXTS | st.just("a\\b"), max_size=5), st.text(" \t", max_size=2))
def test_parameters_are_what_was_written(found: dict[str, str], space: str) -> None:
    text = "form-data" + "".join(f"{space};{space}{name}{space}={space}{quoted(each)}" for name, each in found.items())
    assert parameters(text) == found
    text = "form-data" + "".join(f";{space}{name}={name}{space}" for name in found)
    assert parameters(text) == {name: name for name in found}


@given(st.text('ab=;"\\* \t\r\né', max_size=60))
def test_any_text_has_parameters(text: str) -> None:
    assert all("*" in name or text for name in parameters(text))


@given(st.lists(st.sampled_from([b"--b", b"--b--", b"\r\n", FILE, MODEL, b"x", b" ", b'"', b"\\", b";"]), max_size=20))
def test_any_body_is_a_form_or_is_not(pieces: list[bytes]) -> None:
    try:
        found = finished(parts(b"".join(pieces), b"b"))
    except NotAForm:
        return
    assert len(found) <= MOST_PARTS


HOSTILE = {
    "lines like the boundary": FILE + b"\r\n--bc" * 400_000,
    "no boundary": b"\r\n" * 2_000_000,
    "spaces after boundaries": FILE + (b"\r\n--b" + b" " * 200) * 100_000,
    "quotes": (b'Content-Disposition: form-data; x="' + b"\\" * 4000 + b"\r\n\r\n\r\n--b\r\n") * 60,
    "parameters": (b"Content-Disposition: form-data" + b";" * 33_000 + b"\r\n\r\n\r\n--b\r\n") * 60,
    "semicolons in quotes": (b'Content-Disposition: form-data; x="' + b";" * 33_000 + b"\r\n\r\n\r\n--b\r\n") * 60,
    "short parameters": (b"Content-Disposition: form-data" + b";a=b" * 8_000 + b"\r\n\r\n\r\n--b\r\n") * 60,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_no_step_takes_long(kind: str) -> None:
    """The best of three: others take the processor, too."""
    longest = []
    body = b"--b\r\n" + HOSTILE[kind]
    for _ in range(3):
        steps, taken = parts(body, b"b"), [0.0]
        with contextlib.suppress(NotAForm, StopIteration):
            while True:
                began = time.thread_time()
                try:
                    next(steps)
                finally:
                    taken.append(time.thread_time() - began)
        longest.append(max(taken))
    assert min(longest) < 0.01


@pytest.mark.parametrize("parameter", [";", '; x="' + ";" * 9, ";a=b", ';"', "; boundary=b"])
def test_a_content_type_of_many_parameters_has_no_boundary_and_takes_no_time(parameter: str) -> None:
    head, taken = RequestHead("POST", AUDIO, {"Content-Type": FORM + (parameter * 31_000)[:31_000]}), []
    for _ in range(3):
        began = time.thread_time()
        assert head.boundary == b""
        taken.append(time.thread_time() - began)
    assert min(taken) < 0.002


def test_semicolons_of_a_file_name_are_no_parameters() -> None:
    text = ";" * (MOST_SEMICOLONS - 3)
    assert parameters(f'form-data; name=file; filename="{text}"')["filename"] == text
    assert parameters(f'form-data; name=file; filename="{text};;"') == {}
