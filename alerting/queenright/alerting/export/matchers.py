"""Parse and validate PromQL label matchers from the command line, as strictly as Prometheus does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from queenright.instrumentation import names
from queenright.instrumentation.errors import QueenrightError

Of = Literal["service", "worker"]

_MATCHER: Final = re.compile(
    r"""\s*(?P<label>[^\s=!~"'`,{}()]+)\s*(?P<sign>=~|!~|!=|=)\s*"""
    r"""(?:"(?P<double>(?:\\.|[^"\\\n])*)"|'(?P<single>(?:\\.|[^'\\\n])*)'|`(?P<raw>[^`]*)`)\s*(?P<end>,|$)"""
)
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPE: Final = re.compile(
    r"\\(?:(?P<one>[abfnrtv\\\"'])|x(?P<x>[0-9A-Fa-f]{2})|(?P<octal>[0-7]{3})"
    r"|u(?P<u>[0-9A-Fa-f]{4})|U(?P<long>[0-9A-Fa-f]{8})|(?P<wrong>.?))",
    re.DOTALL,
)
_ONE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ON_EVERY_TARGET: Final = frozenset({"job", "instance"})

# Constructs of RE2 that Python lacks; `_stand_in` replaces them to check the syntax.
_ONLY_RE2: Final = re.compile(
    r"\\Q.*?(?:\\E|$)|\\[pP](?:\{\^?\w+\}|[A-Z])|\\x\{[0-9A-Fa-f]+\}|\\z|\[:\^?[a-z]+:\]|\\."
    r"|\(\?[imsU]*(?:-[imsU]+)?(?P<end>[:)])",
    re.DOTALL,
)
_NOT_RE2: Final = (
    (re.compile(r"\(\?(?:<?[=!]|>|#|\(|P=)"), "it looks around, ahead or back"),
    (re.compile(r"[*+?}]\+"), "it repeats a repetition"),
)
_REFUSED_ESCAPE: Final = re.compile(r"\\[1-9ZuUNgk]")
_REPEATED: Final = re.compile(r"\{(\d+)(?:,(\d*))?\}")


class InvalidMatchersError(QueenrightError):
    """Raised for matchers that are invalid or cannot match anything; names the problem."""


@dataclass(frozen=True, slots=True)
class _Matcher:
    label: str
    sign: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}{self.sign}{json.dumps(self.value, ensure_ascii=False)}"


def read_matchers(text: str, of: Of) -> str:
    """
    Normalize matchers: double quotes, separated by ", "; empty for none.

    Args:
        text: PromQL matchers without braces: ``job="x", cluster=~'a|b'``; a trailing comma is allowed.
        of: The scope that they select from: service or worker metrics.

    Raises:
        InvalidMatchersError: Prometheus would reject them, or they cannot match a Queenright target.
    """
    matchers = list(_read(text))
    for matcher in matchers:
        if fault := _fault(matcher, of):
            raise InvalidMatchersError(f"{matcher} cannot narrow the rules: {fault}.")
    return ", ".join(map(str, matchers))


def _read(text: str) -> Iterator[_Matcher]:
    at = 0
    while text[at:].strip():
        read = _MATCHER.match(text, at)
        if read is None:
            raise InvalidMatchersError(
                f'{text!r} is not a list of matchers; write it like \'job="x", cluster="y"\'.'
            )
        at = read.end()
        quoted = read["double"] if read["double"] is not None else read["single"]
        yield _Matcher(read["label"], read["sign"], read["raw"] if quoted is None else _unquoted(quoted))


def _unquoted(text: str) -> str:
    """Decode the Go escapes in a quoted string."""

    def decode(escape: re.Match[str]) -> str:
        if (one := escape["one"]) is not None:
            return _ONE.get(one, one)
        for group, base in (("x", 16), ("octal", 8), ("u", 16), ("long", 16)):
            if (digits := escape[group]) is not None and int(digits, base) <= 0x10FFFF:
                return chr(int(digits, base))
        raise InvalidMatchersError(
            f"{escape[0]} in {text!r} is not a valid escape; write a backslash twice, or quote with `."
        )

    return _ESCAPE.sub(decode, text)


def _fault(matcher: _Matcher, of: Of) -> str | None:
    label = matcher.label
    if not _LABEL.fullmatch(label):
        return f"{label!r} is not a label name; use letters, digits and _, not starting with a digit"
    if label.startswith("__"):
        return "labels that start with __ cannot be used, because the rules select the metrics themselves"
    if label in _own_labels(of):
        return (
            f"`{label}` is a label of Queenright's metrics and not of a target; use target labels "
            "such as job, instance, namespace or cluster"
        )
    if label in _ON_EVERY_TARGET and matcher.sign in ("=", "=~") and not matcher.value:
        return f"every target has a {label}, so nothing would match"
    return _regex_fault(matcher.value) if matcher.sign in ("=~", "!~") else None


def _own_labels(of: Of) -> frozenset[str]:
    """Return the labels of Queenright's metrics, except those that all worker metrics share."""
    workers = [one for one in names.METRICS.values() if one.name.startswith("queenright_worker_")]
    others = [one for one in names.METRICS.values() if one not in workers]
    listed = {label for one in (workers if of == "worker" else others) for label in one.labels}
    shared = set.intersection(*(set(one.labels) for one in workers)) if of == "worker" else set()
    return frozenset(listed - shared | {"le"})


def _regex_fault(pattern: str) -> str | None:
    """Return what is wrong with an RE2 regular expression, as far as Python can tell."""
    try:
        plain = _ONLY_RE2.sub(_stand_in, pattern)
    except re.error as error:
        return f"it uses {error.msg}, which Prometheus does not support"
    for construct, words in _NOT_RE2:
        if construct.search(plain):
            return f"{words}, which Prometheus' regular expressions do not support"
    if any(int(count) > 1000 for counts in _REPEATED.findall(plain) for count in counts if count):
        return "it repeats more than 1000 times, which Prometheus' regular expressions do not support"
    try:
        re.compile(plain)
    except re.error as error:
        return f"it is not a regular expression ({error.msg} at character {(error.pos or 0) + 1})"
    return None


def _stand_in(match: re.Match[str]) -> str:
    """Return a Python equivalent of an RE2 construct. Raises ``re.error`` for one that RE2 lacks."""
    text = match[0]
    if _REFUSED_ESCAPE.match(text):
        raise re.error(text)
    if text.startswith("(?"):
        return "(?:" if match["end"] == ":" else ""
    if text.startswith("\\Q"):
        return re.escape(text.removeprefix("\\Q").removesuffix("\\E"))
    if text == "\\z":
        return "$"
    is_escape = len(text) == 2 and text[0] == "\\"
    return text if is_escape and text[1] not in "CpP" else "x"
