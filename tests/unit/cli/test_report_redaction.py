"""What `llmservice report` hides in objects and texts, and what it leaves readable."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from llmservice_cli.report.collecting import Entry, Gap, files
from llmservice_cli.report.redaction import Cleaner, is_secret_key

from tests.unit.cli.test_report import AWS, HF, KEY, LOGGED, PASSWORD, SECRETS, SHORT, SIGNED
from tests.unit.cli_world import Json

WORD = "opensesame"
VARIABLES = ("HF_TOKEN_1", "OPENAI_API_KEY_PROD", "DB_PASS", "MYSQL_PWD", "WANDB_KEY", "KEY_PROD", "SESSION_COOKIE")
HIDDEN = {
    "a variable": {"env": [{"name": "MY_TOKEN", "value": HF}]},
    "a short one": {"env": [{"name": "DB_PASSWORD", "value": SHORT}]},
    "an option's next word": {"args": ["--api-key", KEY]},
    "an option's value": {"args": [f"--ssl-private-key={KEY}"]},
    "a key": {"apiKey": KEY},
    "a key with a value of no form": {"clientSecret": WORD},
    "a key with a short value": {"clientSecret": SHORT},
    "an option with one": {"args": ["--api-key", WORD, "--port", "1"]},
    "a URL": {"uri": f"https://me:{PASSWORD}@x/y"},
    "a user without a password": {"uri": f"https://{LOGGED}@x/y"},
    "a header": {"message": f"Authorization: Basic {'QWxhZGRpbjpvcGVuc2VzYW1l'}"},
    "a command in one text": {"command": f"serve --api-key {KEY} --port 1"},
    "a command with =": {"command": f"serve --api-key={KEY} --port 1"},
    "JSON in a text": {"text": f'{{"client_secret": "{LOGGED}"}}'},
    "escaped JSON": {"text": f'"{{\\"client_secret\\": \\"{LOGGED}\\"}}"'},
    "Python's form": {"text": f"Namespace(api_key=['{KEY}'], hf_token='{HF}')"},
    "a key of AWS": {"text": f"id {AWS}"},
    "a signed URL": {"text": f"https://x/y?sig={SIGNED}&a=1"},
    "a JSON web token": {"text": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.SflKxwRJSMeKKF2QT4"},
    "a private key": {"text": f"-----BEGIN RSA PRIVATE KEY-----\n{LOGGED}\n-----END RSA PRIVATE KEY-----"},
    "one that is cut": {"text": f"-----BEGIN PRIVATE KEY-----\n{LOGGED}\n"},
    "a name of a key": {f"https://me:{PASSWORD}@x": 1},
    **{f"the variable {name}": {"env": [{"name": name, "value": WORD}]} for name in VARIABLES},
    **{f"{name} in a log": {"text": f"export {name}={WORD}1 now"} for name in VARIABLES},
    "a key written as a variable": {"WANDB_KEY": WORD},
    "a key with a number": {"HF_TOKEN_1": WORD},
    "a header of a scheme": {"text": f"Authorization: Token {WORD}"},
    "one of a digest": {"text": f'> authorization: Digest username="me", response="{WORD}"'},
    "one in a command": {"text": f"curl -H 'Authorization: ApiKey {WORD} and {KEY}' https://x"},
    "a word between quotes": {"text": f'{{"password": "correct horse {WORD}"}}'},
    "one between single quotes": {"text": f"password='correct horse {WORD}'"},
    "one with an escaped quote": {"text": f'{{"password": "correct\\" {WORD}"}}'},
    "one in escaped JSON": {"text": f'{{\\"password\\": \\"correct horse {WORD}\\"}}'},
    "one with a comma": {"text": f'password: "abc,{WORD}"'},
    "one with a semicolon": {"text": f"password=ab;{WORD}"},
    "one without an end": {"text": f'password="correct horse {WORD}'},
    "several": {"text": f"api_keys=['one', 'two ] {WORD}']"},
    "a wrapped one": {"text": f"api_key=SecretStr('correct horse {WORD}')"},
    "a cookie": {"text": f"Cookie: theme=dark; session={WORD}"},
    "a cookie that is set": {"text": f'Set-Cookie: a="b"; session={WORD}; Path=/'},
    "a pair": {"text": f"[('authorization', '{WORD}')]"},
    "a pair of bytes": {"text": f"[(b'x-api-key', b'{WORD}')]"},
    "a list of words": {"text": f"['--hf-token', '{WORD}', '--port']"},
    "a key with several values": {"apiKeys": [WORD, "other"]},
    "an option's text": {"text": f'serve --hf-token "correct {WORD}" --port 1'},
}
OF_CASE = (*SECRETS, SHORT, WORD, "QWxhZGRpbjpvcGVuc2VzYW1l", "SflKxwRJSMeKKF2QT4")


@pytest.mark.parametrize("found", HIDDEN.values(), ids=HIDDEN)
def test_a_secret_is_hidden(found: Json) -> None:
    cleaned = yaml.safe_dump(Cleaner([found]).object(found))
    assert "***" in cleaned
    assert not [secret for secret in OF_CASE if secret in cleaned]


PLACES: dict[str, Json] = {
    "a variable": {"env": [{"name": "MY_TOKEN", "value": WORD}]},
    "an option": {"args": ["--api-key", WORD]},
    "an option with =": {"args": [f"--api-key={WORD}"]},
    "a key": {"apiKey": WORD},
}


@pytest.mark.parametrize("found", PLACES.values(), ids=PLACES)
def test_what_is_a_secret_in_an_object_is_hidden_in_texts(found: Json) -> None:
    assert Cleaner([found]).text(f"it was {WORD} again") == "it was *** again"


KEPT: dict[str, Json] = {
    "references": {
        "hfTokenSecretRef": {"name": "hub", "key": "token"},
        "secretName": "tls",
        "secretKeyRef": {"key": "k"},
    },
    "flags": {"automountServiceAccountToken": False, "args": ["--max-num-batched-tokens", "2048", "--tokenizer", "x"]},
    "figures": {"text": "12.3 tokens/s, KV cache tokens: 123456789012"},
    "images": {"image": "registry.example.com:5000/vllm@sha256:" + "a1" * 32},
    "metrics": {"text": 'vllm:prompt_tokens_total{model_name="chat"} 12345.0'},
    "numbers of tokens": {"text": "max_tokens=5 prompt_token_ids=[1, 2] num_key_value_heads: 8 eos_token_id: 2"},
    "a tokenizer": {"tokenizer": "org/model", "tokenizer_mode": "auto", "text": 'tokenizer="org/model"'},
    "its variables": {"env": [{"name": "TOKENIZERS_PARALLELISM", "value": "false"}, {"name": "PWD", "value": "/app"}]},
    "options of tokens": {"args": ["--long-prefill-token-threshold", "9", "--ssl-keyfile", "/tls/k", "--port=1"]},
    "figures of tokens": {"timeToFirstToken": "1s", "text": "time_per_output_token_seconds: 0.5"},
    "a reference in a text": {"text": '{"apiKeySecretRef": {"name": "hub", "key": "k"}, "secretName": "tls"}'},
    "named references": {"apiKeySecretRef": "hub", "passwordFile": "/run/p", "topologyKey": "zone"},
    "what passes": {
        "env": [{"name": "VLLM_BYPASS", "value": "1"}],
        "text": "bypass=1 pass: 3 passes=2 key=abc cache_key=abc",
    },
    "the API's groups": {"text": 'clusterroles.rbac.authorization.k8s.io, secrets: none, secret "hub" not found'},
    "an address": {"uri": "https://example.com:8080/v1?page=2"},
}


@pytest.mark.parametrize("found", KEPT.values(), ids=KEPT)
def test_what_is_no_secret_stays(found: Json) -> None:
    assert Cleaner([found]).object(found) == found


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [("HF_TOKEN", True), ("awsSecretAccessKey", True), ("key", False), ("tokens", False), ("secretName", False)],
)
def test_names_of_secrets(name: str, is_secret: bool) -> None:
    assert is_secret_key(name) is is_secret


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(st.text(max_size=12), below, max_size=4),
    max_leaves=20,
)


@given(JSONS, st.text(max_size=200))
def test_anything_can_be_cleaned_and_written(found: Any, text: str) -> None:
    gaps: list[Gap] = []
    made = files([Entry("o.yaml", "o", {"kind": "X", "it": found}), Entry("../t", "t", text)], gaps)
    assert all(".." not in file.path and b"\x1b" not in file.content for file in made)


@given(st.from_regex(r"[A-Za-z0-9]{12,40}[0-9]", fullmatch=True), st.text(max_size=50), st.text(max_size=50))
def test_a_variable_is_hidden_wherever_it_is(secret: str, before: str, after: str) -> None:
    cleaner = Cleaner([{"env": [{"name": "X_TOKEN", "value": secret}]}])
    assert secret not in cleaner.text(f"{before}{secret}{after}")


HOSTILE = ("eyJaaaa-", "token='", "token=[", 'token:\\"', "cookie=", "a=", "token, 'x", "a-", "--a ", "token{")


def test_long_lines_of_nothing_take_no_time() -> None:
    """A backtracking pattern would take minutes for each of these."""
    for part in (
        "-",
        "--token",
        "eyJ",
        "://",
        "bearer ",
        "--a-token ",
        "token=",
        "-----BEGIN PRIVATE KEY-----",
        *HOSTILE,
    ):
        line = part * (16_000 // len(part))
        Cleaner([{"args": [line]}], [line]).text(f"{line}\n" * 20)
