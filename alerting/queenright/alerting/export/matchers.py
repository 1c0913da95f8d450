"""Label matchers as a person writes them, read as Prometheus reads them: what it refuses is refused."""

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

# What RE2 has and Python has not, with what may stand in its place when only the form is asked about.
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
    """Raised when matchers are none, or could match nothing; says what is wrong with which."""


@dataclass(frozen=True, slots=True)
class _Matcher:
    label: str
    sign: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}{self.sign}{json.dumps(self.value, ensure_ascii=False)}"


def read_matchers(text: str, of: Of) -> str:
    """
    Return matchers as every rule gets them: in double quotes, ", " between; empty for none.

    Args:
        text: As in PromQL between braces: ``job="x", cluster=~'a|b'``; a comma at the end is allowed.
        of: Whose targets they narrow.

    Raises:
        InvalidMatchersError: Prometheus would refuse them, or they could not match a target of ours.
    """
    found = list(_read(text))
    for matcher in found:
        if fault := _fault(matcher, of):
            raise InvalidMatchersError(f"{matcher} cannot narrow the rules: {fault}.")
    return ", ".join(map(str, found))


def _read(text: str) -> Iterator[_Matcher]:
    at = 0
    while text[at:].strip():
        read = _MATCHER.match(text, at)
        if read is None:
            raise InvalidMatchersError(
                f'{text!r} is no list of matchers; write it like \'job="x", cluster="y"\'.'
            )
        at = read.end()
        quoted = read["double"] if read["double"] is not None else read["single"]
        yield _Matcher(read["label"], read["sign"], read["raw"] if quoted is None else _unquoted(quoted))


def _unquoted(text: str) -> str:
    """Return what a quoted text stands for, by the escapes of Go."""

    def meant(escape: re.Match[str]) -> str:
        if (one := escape["one"]) is not None:
            return _ONE.get(one, one)
        for group, base in (("x", 16), ("octal", 8), ("u", 16), ("long", 16)):
            if (digits := escape[group]) is not None and int(digits, base) <= 0x10FFFF:
                return chr(int(digits, base))
        raise InvalidMatchersError(
            f"{escape[0]} in {text!r} is no escape of Prometheus; for a backslash write two, or quote with `."
        )

    return _ESCAPE.sub(meant, text)


def _fault(matcher: _Matcher, of: Of) -> str | None:
    label = matcher.label
    if not _LABEL.fullmatch(label):
        return f"{label!r} is no name of a label; it has letters, digits and _, and begins with no digit"
    if label.startswith("__"):
        return "the rules name the metrics themselves, and no other label that begins with __ is kept"
    if label in _own_labels(of):
        return (
            f"`{label}` is a label of our own metrics and of no target; narrow by what Prometheus gives "
            "a target, such as job, instance, namespace or cluster"
        )
    if label in _ON_EVERY_TARGET and matcher.sign in ("=", "=~") and not matcher.value:
        return f"all that is scraped has a {label}, so nothing would match"
    return _regex_fault(matcher.value) if matcher.sign in ("=~", "!~") else None


def _own_labels(of: Of) -> frozenset[str]:
    """Return which labels tell series of ours apart; ``agent`` may narrow workers, all of whose have it."""
    workers = [one for one in names.METRICS.values() if one.name.startswith("queenright_worker_")]
    others = [one for one in names.METRICS.values() if one not in workers]
    listed = {label for one in (workers if of == "worker" else others) for label in one.labels}
    shared = set.intersection(*(set(one.labels) for one in workers)) if of == "worker" else set()
    return frozenset(listed - shared | {"le"})


def _regex_fault(pattern: str) -> str | None:
    """Return what is wrong with a regular expression of RE2, as far as it can be said without RE2."""
    try:
        plain = _ONLY_RE2.sub(_stand_in, pattern)
    except re.error as error:
        return f"{error.msg}, which Prometheus does not know"
    for construct, words in _NOT_RE2:
        if construct.search(plain):
            return f"{words}, which Prometheus' regular expressions cannot"
    if any(int(count) > 1000 for found in _REPEATED.findall(plain) for count in found if count):
        return "it repeats more than 1000 times, which Prometheus' regular expressions cannot"
    try:
        re.compile(plain)
    except re.error as error:
        return f"it is no regular expression ({error.msg} at character {(error.pos or 0) + 1})"
    return None


def _stand_in(found: re.Match[str]) -> str:
    """Return for a construct of RE2 what Python takes in its place; what RE2 has not raises ``re.error``."""
    text = found[0]
    if _REFUSED_ESCAPE.match(text):
        raise re.error(text)
    if text.startswith("(?"):
        return "(?:" if found["end"] == ":" else ""
    if text.startswith("\\Q"):
        return re.escape(text.removeprefix("\\Q").removesuffix("\\E"))
    if text == "\\z":
        return "$"
    short = len(text) == 2 and text[0] == "\\"
    return text if short and text[1] not in "CpP" else "x"
