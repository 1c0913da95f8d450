"""Text that may leave the process: secrets masked, cut to a tail, valid UTF-8."""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "[redacted]"

_WINDOW: Final = 16_384
"""At most this many characters from the end are looked at, so that a huge text costs no more than this."""

# Escape sequences of terminals, and control characters that databases and chat services refuse.
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

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


def redact(text: str, limit: int = 500) -> str:
    """
    Return the tail of ``text`` with what looks like a secret masked.

    Masked are private keys, authorization headers and cookies, bearer tokens, JWTs, API
    keys of the usual shapes, passwords in URLs, values named like a secret, webhook
    addresses and e-mail addresses. Masking comes before cutting, so that no half of a
    secret is left at the cut. Best effort, as any redaction by shape is: a secret that
    looks like an ordinary word passes.

    Args:
        text: Any text; lone surrogates and control characters are made harmless.
        limit: At most this many characters are returned, from the end.
    """
    if limit <= 0:
        return ""
    window = text
    size = max(_WINDOW, 4 * limit)
    if len(text) > size:
        window = text[-size:]
        # The cut may have halved a secret; what is left of that word goes.
        cut = re.search(r"\s", window)
        window = window[cut.end() :] if cut else MASK
    window = _CONTROL.sub("", window)
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
