"""Redaction of text that leaves the process."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenright.instrumentation.redaction import MASK, hide, hide_named, redact
from tests.instrumentation.growth import is_linear

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7fakefakefake\nq8Zx0v\n-----END RSA PRIVATE KEY-----"

# The text around a secret, the secret, and the part of it that must not remain.
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


@pytest.mark.parametrize(("template", "secret"), SECRETS)
def test_secret_is_not_readable(template: str, secret: str) -> None:
    """B16: secrets are redacted from evidence."""
    text = redact(template.format(secret))

    assert secret not in text
    assert MASK in text


@pytest.mark.parametrize(("template", "secret"), SECRETS)
def test_secret_at_the_cut_is_fully_removed(template: str, secret: str) -> None:
    """B16: secrets are masked before the text is cut."""
    for limit in range(1, 80):
        tail = redact("before " + template.format(secret), limit)

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
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert redact(text) == text


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=300), st.integers(-1, 200))
def test_output_is_bounded_and_valid(text: str, limit: int) -> None:
    """B16: the output is valid UTF-8 and not longer than the limit."""
    tail = redact(text, limit)

    assert len(tail) <= max(limit, 0)
    assert tail.encode("utf-8").decode("utf-8") == tail


def test_tail_is_kept() -> None:
    assert redact("a" * 600 + " the end", 8) == " the end"


def test_key_that_begins_before_the_window_is_masked() -> None:
    text = "-----BEGIN PRIVATE KEY-----\n" + "QUJD\n" * 10_000 + "-----END PRIVATE KEY-----\nrefused"

    assert redact(text) == f"{MASK}\nrefused"


@pytest.mark.parametrize(
    "unit", ["a", "a@", "token", "://", "-----BEGIN PRIVATE KEY-----", "eyJaaaaaa.", '"\\', "=x "]
)
def test_huge_text_takes_no_longer_than_a_long_one(unit: str) -> None:
    text = unit * (4_000_000 // len(unit))
    start = time.process_time()

    redact(text)

    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    "text", ["password=hunter2", 'api_key: "abc"', "--token abc", "Bearer abcdef0123456789"]
)
def test_masked_text_is_unchanged(text: str) -> None:
    assert redact(redact(text)) == redact(text)
    assert MASK in redact(text)


def test_hidden_value_is_masked_everywhere() -> None:
    hide(['plain words: of a "bee\\hive" ä', "no\nsmall\nthing"])

    for value in ('plain words: of a "bee\\hive" ä', "no\nsmall\nthing"):
        for text in (value, json.dumps(value), json.dumps([value], ensure_ascii=False), repr({"x": value})):
            assert MASK in redact(f"x{text}x")
            assert not any(word in redact(f"x{text}x") for word in ("words", "small", "thing"))
        assert value.split()[0] not in redact(f"https://hive/{quote(value)}?of={quote(value, safe='')}")


def test_short_value_is_not_hidden() -> None:
    hide(["", "swarm"])

    assert redact("a swarm of bees") == "a swarm of bees"


@given(st.text("ab -\\'", min_size=6, max_size=12), st.integers(0, 40))
def test_hidden_value_at_the_cut_of_a_long_text_is_fully_removed(middle: str, after: int) -> None:
    value = f"QX{middle}XQ"
    hide([value, "L" * 4_000])

    # The masked value after it shortens the text, which moves the cut.
    text = redact("y " * 5_000 + value + "L" * 16_000 + "z " * 182 + "z" * after)

    assert "QX" not in text
    assert "XQ" not in text


def test_values_of_secret_looking_names_are_hidden() -> None:
    hide_named(
        {
            "HIVE_API_KEY": "comb-of-7-cells",
            "Authorization": "Bearer nectar.of.9.limes",
            "MODE": "mode-of-5-words",
            "DB_PASSWORD": "ordinaryword",
            "KEYBOARD": "layout-of-8-keys",
            "CREDENTIALS": "/etc/hive/credentials-1",
        }
    )

    assert redact("comb-of-7-cells, nectar.of.9.limes") == f"{MASK}, {MASK}"
    text = "mode-of-5-words ordinaryword layout-of-8-keys /etc/hive/credentials-1"
    assert redact(text) == text


def test_values_are_hidden_by_many_threads_at_once() -> None:
    values = [f"thread-value-{number:03}" for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda value: hide([value]), values))

    assert redact(" ".join(values), 100_000) == " ".join([MASK] * 200)


@pytest.mark.parametrize(
    "unit",
    [
        *(
            "a",
            "<",
            "password",
            "password ",
            "https://",
            "1",
            '"',
            "'",
            "\\",
            "curl -",
            "curl -u a:",
            "mysql -p",
        ),
        *(
            "<token ",
            "<token><![CDATA[",
            "&lt;token&gt;",
            "&lt;token ",
            'name="token" ',
            'token\\":\\"',
            "curl \\ \n",
            "authorization:",
            "-----BEGIN ",
            "PRIVATE KEY-----",
            "eyJ.",
            "a@a.",
            "token.",
            "%41",
            " ",
            "password was set to ",
            "password for a b ",
            "token has been now ",
            "set password to ",
            "a@a@",
            "password is 'a ",
            "password is it's",
            'password="',
            'password=\\"\\\\',
            "user a password a. ",
            "password is not ",
            "password is correct correct ",
            "password is correct correct horse. ",
            "passwd root ",
            "passwd root now ",
            "mysql -p -",
            "key='password' ",
            "key='password'>",
            "password -> ",
            'mysql -p\\"',
            "sshpass -p ",
            'curl -u \\"a:',
            "password:** ",
            "password: <b>",
            "passwd bob: ",
            "password changed from a to ",
            "name='password'>  <value>",
            "password was sent: ",
            "password: [a, ",
            'password: [\\"a\\", ',
            'password=a\\"a',
            'curl -u a:"b\\" ',
            "curl -u a:b\\ c",
        ),
    ],
)
def test_work_for_crafted_texts_grows_linearly(unit: str) -> None:
    """B127: the work does not grow with the square of the length."""
    for prefix, suffix in (("", ""), ("password=", "@"), ("<token>", ":")):
        text = partial(make_crafted_text, prefix, unit, suffix)
        assert is_linear(lambda long_text: redact(long_text, 8_000), text), (prefix, suffix)


def make_crafted_text(begin: str, unit: str, end: str, size: int) -> str:
    """Return a text of ``size`` characters."""
    return (begin + unit * size)[: size - len(end)] + end


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("curl x; curl -u a:hunter22 y", "curl x; curl -u a:[redacted] y"),
        ("curl -u a:hunter22 -u b:hunter22", "curl -u a:[redacted] -u b:[redacted]"),
        ("mysql x && mysql -phunter22", "mysql x && mysql -p[redacted]"),
        ("mysqldump -pa1 db | mysql -pb2 db", "mysqldump -p[redacted] db | mysql -p[redacted] db"),
        ("curl https://x\n-u a:b", "curl https://x\n-u a:[redacted]"),
        ("curl https://x\ndocker -u 1000:1000", "curl https://x\ndocker -u 1000:1000"),
        ("curl \\\n  -X PUT \\\n  -u a:b", "curl \\\n  -X PUT \\\n  -u a:[redacted]"),
        ("curl " + "x " * 600 + "-u a:b", "curl " + "x " * 600 + "-u a:b"),
    ],
)
def test_options_belong_to_the_preceding_program(text: str, masked: str) -> None:
    """B129."""
    assert redact(text, 4_000) == masked
