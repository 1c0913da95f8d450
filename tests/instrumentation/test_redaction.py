"""Redaction: what may leave the process as text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.redaction import MASK, redact

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7fakefakefake\nq8Zx0v\n-----END RSA PRIVATE KEY-----"

# Text around a secret, the secret, and what must not be readable of it.
SECRETS = [
    ("Authorization: Bearer {}", "abcDEF123456ghiJKL"),
    ("key {} refused", "sk-proj-Abcdef0123456789abcdef"),
    ("key {} refused", "sk-ant-api03-Abcdef0123456789_-abc"),
    ("{}", "ghp_0123456789abcdefABCDEF0123456789abcd"),
    ("{}", "xoxb-123456789012-abcdefGHIJKL"),
    ("{}", "AKIAIOSFODNN7EXAMPLE"),
    ("{}", "AIzaSyA1234567890abcdefghijklmnopqrstu"),
    ("jwt={}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N"),
    ("cannot connect to postgres://bee:{}@db:5432/hive", "pa55:w@rd"),
    ("password={}", "hunter2"),
    ('{{"password": "{}"}}', "two words"),
    ("AWS_SECRET_ACCESS_KEY={}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("OPENAI_API_KEY: {}", "plainlettersonly"),
    ("{{'api_key': '{}'}}", "abc"),
    ("--token {}", "t0k3n"),
    ("Cookie: session={}; theme=dark", "s3ss10n"),
    ("https://hooks.slack.com/services/{}", "T000/B000/XXXX"),
    ("write to {}", "queen.bee@hive.example.org"),
    ("routing_key={}", "0123456789abcdef0123456789abcdef"),
    ("{}", PEM),
]


@pytest.mark.parametrize(("around", "secret"), SECRETS)
def test_a_secret_is_not_readable(around: str, secret: str) -> None:
    """B16: secrets are redacted from evidence."""
    text = redact(around.format(secret))

    assert secret not in text
    assert MASK in text


@pytest.mark.parametrize(("around", "secret"), SECRETS)
def test_no_half_of_a_secret_is_left_at_the_cut(around: str, secret: str) -> None:
    """B16: masked first, cut after."""
    for limit in range(1, 80):
        tail = redact("before " + around.format(secret), limit)

        assert len(tail) <= limit
        assert not any(secret[-size:] in tail for size in range(5, len(secret) + 1))


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=4096 and token_count: 12",
        "the password was wrong",
        "Basic authentication is off; the token expired yesterday",
        "no such file: docs/keys.md",
        "step 3 of 7, 41 %",
        "tokens: 500",
        "http://127.0.0.1:8420/api?id=7",
        "KeyError: 'order_id'",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=300), st.integers(-1, 200))
def test_what_comes_out_is_short_and_valid(text: str, limit: int) -> None:
    """B16: at most the limit, valid UTF-8."""
    tail = redact(text, limit)

    assert len(tail) <= max(limit, 0)
    assert tail.encode("utf-8").decode("utf-8") == tail


def test_the_tail_is_what_is_kept() -> None:
    assert redact("a" * 600 + " the end", 8) == " the end"


def test_a_key_that_begins_before_the_window_is_masked() -> None:
    text = "-----BEGIN PRIVATE KEY-----\n" + "QUJD\n" * 10_000 + "-----END PRIVATE KEY-----\nrefused"

    assert redact(text) == f"{MASK}\nrefused"


@pytest.mark.parametrize(
    "unit", ["a", "a@", "token", "://", "-----BEGIN PRIVATE KEY-----", "eyJaaaaaa.", '"\\', "=x "]
)
def test_a_huge_text_costs_no_more_than_a_long_one(unit: str) -> None:
    text = unit * (4_000_000 // len(unit))
    start = time.process_time()

    redact(text)

    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    "text", ["password=hunter2", 'api_key: "abc"', "--token abc", "Bearer abcdef0123456789"]
)
def test_what_was_masked_before_stays_as_it_is(text: str) -> None:
    assert redact(redact(text)) == redact(text)
    assert MASK in redact(text)
