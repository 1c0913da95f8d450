"""
Sanitize text written by a model, which may be the result of a prompt injection, before people read it.

Links, commands, markup and mentions are removed. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from queenright.instrumentation.redaction import redact

NO_LINK: Final = "[link removed]"
NO_COMMAND: Final = "[command removed]"

_INPUT_LIMIT: Final = 4000
"""Maximum number of characters to process; the rest is cut off."""

_LINK: Final = re.compile(
    r"""
    \b[a-z][a-z0-9+.-]{1,20}://[^\s<>|)\]"']+        # any scheme with an authority
    | \b(?:javascript|data|mailto|tel|vbscript):[^\s<>|)\]"']+
    | \bwww\.[^\s<>|)\]"']+
    | (?<![\w./@-])(?:[a-z0-9-]+\.)+[a-z]{2,24}(?::\d+)?/[^\s<>|)\]"']*   # a host and a path
    | (?<![\w./@-])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?:/[^\s<>|)\]"']*)?     # an address
    """,
    re.IGNORECASE | re.VERBOSE,
)
_COMMAND: Final = re.compile(
    r"""
    (?<![\w./-])(?:\$\s*)?(?:sudo\s+)?
    (?:curl|wget|rm|dd|mkfs\S*|(?:ba|z|k|c)?sh|python3?|perl|ruby|node|ssh|scp|rsync|nc|ncat|kubectl|helm|docker
      |chmod|chown|eval|exec|powershell|pwsh|iex|npm|npx|pipx?|apt(?:-get)?|yum|brew|git|kill|pkill|killall
      |systemctl|crontab|aws|gcloud|az|terraform|psql|mysql|redis-cli|queenright|echo|export|source|base64|openssl)
    \s+
    (?:[^\n]*?(?:(?<=\s)-{1,2}\w|\||&&|>|\$\(|\[link\ removed\])[^\n]*?(?=[.!?](?:\s|$)|\n|$) # options, pipes
      |(?:approvals|recover|tickets|breakers|emergency|nudge|terminate|install|exec|delete|apply|run|reset)\b
        [^\n]*?(?=[.!?](?:\s|$)|\n|$)) # or a known verb
    """,
    re.IGNORECASE | re.VERBOSE,
)
_MARKUP: Final = re.compile(r"<(?=[!@#]|[a-z][a-z0-9+.-]*:|www\.|\[link removed\])", re.IGNORECASE)


def sanitize_line(text: str, limit: int, *, own_urls: Collection[str] = ()) -> str:
    """Return a model's text as one line without links, commands, markup and secrets."""
    line = " ".join(text[:_INPUT_LIMIT].replace("`", "").split())
    safe_line = _LINK.sub(lambda link: link[0] if _is_ours(link[0], own_urls) else NO_LINK, line)
    return redact(neutralize_markup(_COMMAND.sub(NO_COMMAND, safe_line)), limit)


def neutralize_markup(text: str) -> str:
    """Return a text whose code fences, link markup and mentions (``<!channel>``) have no effect."""
    return _MARKUP.sub("[", text.replace("```", "'''"))


def _is_ours(link: str, own_urls: Collection[str]) -> bool:
    # "https://q.example" must not allow "https://q.example.evil/" or "https://q.example@evil/".
    return any(link == base or link.startswith(f"{base}/") for base in own_urls if base)
