"""Text that may leave the process: secrets masked, cut to a tail, valid UTF-8."""

from __future__ import annotations

import json
import os
import re
import threading
import traceback
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

MASK: Final = "[redacted]"

_WINDOW: Final = 16_384
"""At most this many characters from the end are looked at, so that a huge text costs no more than this."""

_SHORTEST: Final = 6
"""Shorter values are part of too many words to be masked wherever they stand."""
_SHORTEST_GUESSED: Final = 8

# Names of variables and headers whose values are secret, as far as a name can say it.
_SECRET_NAME = re.compile(
    r"(?i)(?:key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization|cookie)s?$"
)

# Escape sequences of terminals, and control characters that databases and chat services refuse. And what
# nobody sees (soft hyphens, zero-width and tag characters, the marks that turn the direction of writing): a
# secret or an instruction could hide behind it.
_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb"
    r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)

_KEY_LINE = r"[A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----"
_PRIVATE_KEY = re.compile(
    rf"-----BEGIN {_KEY_LINE}.*?(?:-----END {_KEY_LINE}|\Z)"
    # The window may begin inside a key: everything before its last line belongs to it.
    rf"|\A(?:(?!-----BEGIN ).)*?-----END {_KEY_LINE}",
    re.DOTALL,
)
_HEADER = re.compile(
    r"""(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-api-key)(["']?\s{0,3}[:=]\s{0,3}["']?)[^\r\n"']+"""
)
_SCHEME = re.compile(
    r"(?i)\b(bearer|basic)\s{1,3}(?=[A-Za-z._~+/-]{0,60}[0-9=]|[\w.~+/-]{20})[A-Za-z0-9._~+/=-]{6,}"
)
_USERINFO = re.compile(r"(://)[^\s/?#\"'<>]{0,512}@")
_WEBHOOK = re.compile(
    r"(hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/)[\w/-]+"
)
_NAMED = re.compile(
    r"""(?ix)
    (
      (?: pass(?:word|wd|phrase) | (?<![a-z])pwd | secret | credentials?
        | (?:api|access|account|private|signing|encryption|master|routing|integration|service)[-_. ]?key
        | (?: auth | access | refresh | id | session | csrf | bot | api )[-_. ]?token
        | (?<![a-z]) token | (?<=[-_.]) token
      )
      (?! s\b | s?[-_ ]?(?:count|usage|limit|budget|used|ize) )
      [\w.-]{0,32}
      ["']? \s{0,3} (?: => | [:=] ) \s{0,3}
    | --(?:password|passwd|token|secret|api-key|access-key)\s+
    )
    (?! \[redacted\] )  # what was masked before stays as it is
    (?: "(?:[^"\\]|\\.){1,2048}(?:"|\Z) | '(?:[^'\\]|\\.){1,2048}(?:'|\Z) | [^\s"',;&|)}\]]+ )
    """
)
_SHAPE = re.compile(
    r"""(?x)
    (?<![A-Za-z0-9]) (?:
        sk-[A-Za-z0-9_-]{12,} | (?:sk|pk|rk)_(?:live|test)_\w{8,} | whsec_\w{12,}
      | gh[pousr]_\w{16,} | github_pat_\w{16,} | glpat-[\w-]{12,}
      | xox[abeoprs]-[\w-]{8,} | xapp-[\w-]{8,}
      | (?:AKIA|ASIA|AGPA|AROA)[0-9A-Z]{12,} | AIza[\w-]{30,} | ya29\.[\w.-]{16,}
      | hf_\w{16,} | gsk_\w{16,} | r8_\w{16,} | npm_\w{20,} | pypi-[\w-]{16,} | shpat_\w{16,}
      | dop_v1_\w{16,} | SG\.[\w-]{12,}\.[\w-]{12,} | lsv2_[\w-]{16,} | pplx-\w{16,}
      | xai-\w{16,} | tvly-[\w-]{12,}
      | eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?
      | \d{8,10}:AA[\w-]{30,}
    )
    """
)
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")


class _Hidden:
    """The exact values that are secret here, each as it is and as it is quoted; the longest first."""

    def __init__(self) -> None:
        self.forms: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def add(self, values: Iterable[str]) -> None:
        found = {form for value in values if len(value) >= _SHORTEST for form in _forms(value)}
        if not found <= set(self.forms):
            with self._lock:
                # Readers see the old ones or the new ones, and need no lock.
                self.forms = tuple(sorted({*self.forms, *found}, key=lambda form: (-len(form), form)))

    def forked(self) -> None:
        self._lock = threading.Lock()


_hidden: Final = _Hidden()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hidden.forked)


def hide(values: Iterable[str]) -> None:
    """
    Have ``redact`` mask these values from now on, wherever they stand, for the rest of the process.

    They are masked as they are, and as they look in JSON, in a Python literal and in a URL. What is shorter
    than 6 characters is left as it is: it would be found in too many words. May be called by any thread.
    """
    _hidden.add(values)


def hide_named(values: Mapping[str, str]) -> None:
    """
    Hide those of ``values`` whose names say that they are secret: ``API_KEY``, ``Authorization``.

    As a name is only a guess, a value of less than 8 characters, a plain word and a path are left as they
    are. Of several words the last one is hidden by itself too, as in ``Bearer ...``.
    """
    for name, value in values.items():
        if _SECRET_NAME.search(name):
            words = value.split()
            hide(text for text in (value, *words[-1:]) if _may_be_secret(text))


def _may_be_secret(value: str) -> bool:
    return len(value) >= _SHORTEST_GUESSED and not value.isalpha() and not value.startswith(("/", "~", "."))


def _forms(value: str) -> set[str]:
    quoted = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    for safe in ("", "/"):
        quoted.add(quote(value.encode("utf-8", "replace"), safe=safe))
    # The text that is searched has no control characters any more.
    forms = {_CONTROL.sub("", form) for form in (value, value.strip(), *quoted)}
    return {form for form in forms if len(form) >= _SHORTEST and form not in MASK}


def redact(text: str, limit: int = 500) -> str:
    """
    Return the tail of ``text`` with what looks like a secret masked.

    Masked are the values given to ``hide``, wherever they stand; and, by their shapes, private
    keys, authorization headers and cookies, bearer tokens, JWTs, API keys, passwords in URLs,
    values named like a secret, webhook addresses and e-mail addresses. Masking comes before
    cutting, so that no half of a secret is left at the cut. Shapes are best effort: a secret
    that looks like an ordinary word, and was not hidden, passes.

    Args:
        text: Any text; lone surrogates and control characters are made harmless.
        limit: At most this many characters are returned, from the end.
    """
    if limit <= 0:
        return ""
    size = max(_WINDOW, 4 * limit)
    hidden = _hidden.forms
    whole = len(text) <= size
    window = text if whole else text[_after_hidden(text, len(text) - size, hidden) :]
    window = _CONTROL.sub("", window)
    for form in hidden:
        if form in window:
            window = window.replace(form, MASK)
    if not whole:
        # The cut may have halved a secret; what is left of that word goes.
        cut = re.search(r"\s", window)
        window = window[cut.end() :] if cut else MASK
    if "PRIVATE KEY" in window:
        window = _PRIVATE_KEY.sub(MASK, window)
    window = _HEADER.sub(rf"\1\2{MASK}", window)
    window = _SCHEME.sub(rf"\1 {MASK}", window)
    if "://" in window:
        window = _USERINFO.sub(rf"\1{MASK}@", window)
        window = _WEBHOOK.sub(rf"\1{MASK}", window)
    window = _SHAPE.sub(MASK, window)
    window = _NAMED.sub(rf"\1{MASK}", window)
    if "@" in window:
        window = _EMAIL.sub(MASK, window)
    return window[-limit:].encode("utf-8", "replace").decode("utf-8")


def _after_hidden(text: str, start: int, hidden: Iterable[str]) -> int:
    """Return ``start``, or where the hidden value ends that would be halved there: it may have spaces."""
    for form in hidden:
        found = text.find(form, max(0, start - len(form) + 1), start + len(form) - 1)
        if found >= 0:
            start = max(start, found + len(form))
    return start


def masked_traceback(error: BaseException, limit: int = 10_000) -> str:
    """Return an error with its traceback for a log, with secrets masked; the end of it, if it is long."""
    return redact("".join(traceback.format_exception(error)).rstrip(), limit)
