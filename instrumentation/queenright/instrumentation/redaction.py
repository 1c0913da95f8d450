"""Mask secrets in text before it leaves the process."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

from queenright.instrumentation.word_tables import read_words

MASK: Final = "[redacted]"

_WINDOW: Final = 16_384
"""Maximum characters from the end of a text that are processed, which bounds the cost of a huge text."""

_MAX_CACHED_NAMES: Final = 16_384
_MAX_CACHED_LENGTH: Final = 256
_MIN_NAME_LENGTH: Final = 12
"""Every secret shape is at least this long."""
# Fast path for most names and ids: digits of an id or a hash, or one plain word.
_HARMLESS_NAME = re.compile(r"[0-9a-f-]{1,80}|[a-z_-]{1,40}")

_MIN_LENGTH: Final = 6
"""Shorter values occur in too many ordinary words to be masked everywhere."""
_MIN_GUESSED_LENGTH: Final = 8
_MIN_SHAPE_LENGTH: Final = 16
"""The shortest shape of only letters and underscores: ``sk_live_`` and eight more."""

# Names of variables and headers whose values are probably secret.
_SECRET_NAME = re.compile(
    r"(?i)(?:key|token|secret|passw(?:or)?d|passphrase|credentials?|authorization|cookie)s?$"
)

# Terminal escape sequences, control characters that databases and chat services reject, and invisible
# characters (soft hyphens, zero-width and tag characters, bidirectional marks) that could hide a secret or
# an instruction.
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
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|webhook\.office\.com/webhookb2/|discord(?:app)?\.com/api/webhooks/)[\w/@-]+"
)
_NAME_HINTS = ("pass", "pwd", "secret", "credential", "key", "token", "sig", "curl", "mysql", "mariadb")
_NAMED_VALUE = re.compile(
    r"""(?isx)
    (
      (?: pass(?:word|wd|phrase) | (?: (?<![a-z]) | (?<=\\[nrt]) ) pwd | secret | credentials?
        | (?:api|access|account|private|signing|encryption|master|routing|integration|service)[-_. ]?key
        | (?: auth | access | refresh | id | session | csrf | bot | api )[-_. ]?token
        | (?: (?<![a-z]) | (?<=\\[nrt]) ) token | (?<=[-_.]) token
        | (?<=[?&]) (?: sig | signature | x-amz-signature | key )
      )
      (?! s\b | s?[-_ ]?(?:count|usage|limit|budget|used|ize) )
      [\w.-]{0,32}+
      \\{0,7}+ (?:["']|[*_~]{1,3}+)? \s{0,3}+
      (?: [:=]{1,3}+>{0,2}+ (?:(?<=:)[*_~`]{1,3}+(?=\s))?+ | :=(?=\s) | (?<=\s)-{1,3}>{1,2}+ | → ) \s{0,3}
      # A list bracket, an arrow or text formatting is not part of the value.
      (?: (?P<list> (?: (?!\[redacted\]) [\[(] ){1,2}+ ) \s{0,3} | [-=~:>*_]{1,2}+[ \t]{1,3}(?=\w)
        | (?:</?[a-z]{1,9}\d?>[ \t]{0,3}){1,3}+ )?+
    | --(?:password|passwd|token|secret|api-key|access-key) (?: \s+ | \\{0,7}+["']\s{0,3},\s{0,3} )
    )
    # Skip values that are already masked, and empty strings.
    (?! \[redacted\] | \\{1,7}+["']\\{1,7}+["'] )
    # In JSON within JSON, a string ends with the same number of backslashes and the same quote.
    (?: (?P<escape>\\{1,7}+)(?P<quote>["'])
        (?: [^"'\\] | (?!(?P=quote))["'] | (?!(?P=escape)(?P=quote))\\++. )++ (?: (?P=escape)(?P=quote) )?
      | "(?:[^"\\]|\\.)++(?:"|\\?\Z) | '(?:[^'\\]|\\.)++(?:'|\\?\Z)
      | (?: [^\s"',;&|)}\]\\] | \\++(?!["']) | \\++["'](?=\w) )++ )
    # The whole list.
    (?(list) (?: \s{0,3},\s{0,3} (?: \\{1,7}+["'][^"'\\]++\\{1,7}+["']
        | "(?:[^"\\]|\\.)++" | '(?:[^'\\]|\\.)++' | [^\s"',;&|)}\]\\]++ ) ){0,50}+ )
    """
)
# A key is one long word. Only such words are matched against the shapes, and ordinary text has few of them.
# An escaped line break or bracket of JSON or a URL may precede it.
_LONG_WORD = re.compile(r"(?:\\(?:[bfnrt]|u[0-9A-Fa-f]{4}))?[A-Za-z0-9][\w.~+/=:%|-]{11,}")
# Documented key prefixes of services.
_SHAPE = re.compile(
    r"""(?x)
    (?: (?<![A-Za-z0-9]) | (?<=\\[bfnrt]) | (?<=\\u[0-9A-Fa-f]{4}) | (?<=%[0-9A-Fa-f]{2}) ) (?:
      # model providers and AI services
        sk-[A-Za-z0-9_-]{12,} | (?:hf|gsk|r8|fw|lsv2|e2b|jina)_\w{16,} | lsv2_[\w-]{16,} | api_org_\w{16,}
      | (?:pplx|xai|nvapi|tvly|fc|pk-lf)-[\w-]{16,} | tvly-[\w-]{12,} | ABSK[A-Za-z0-9+/]{40,}={0,2}
      | bedrock-api-key-[\w+/=-]{12,}
      # cloud providers
      | (?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AIPA|ANPA|ANVA|AROA)[0-9A-Z]{12,}
      | amzn\.mws\.[0-9a-f-]{30,} | LTAI[A-Za-z0-9]{16,}
      | AIza[\w-]{30,} | ya29\.[\w.-]{16,} | GOCSPX-[\w-]{16,}
      | [\w~.]{3}\dQ~[\w~.-]{31,34} | do[opr]_v1_\w{16,} | HRKU-[\w-]{20,}
      | fo1_[\w-]{20,} | fm[12][ar]?_[A-Za-z0-9+/]{40,}={0,2} | dapi[0-9a-f]{32}(?:-\d)?
      | (?:pscale_(?:tkn|oauth|pw)|sbp|sb_secret)_[\w=.-]{16,} | sha256~[\w-]{40,}
      # code hosting and package registries
      | gh[pousr]_\w{16,} | github_pat_\w{16,} | GR1348941[\w-]{16,}
      | gl(?:pat|dt|ft|rt|ptt|cbt|imt|agent|oas|soat|ffct)-[\w-]{12,}(?:\.[\w]{6,})?
      | AT(?:ATT3|BB|CTT3)[\w=-]{20,} | sgp_\w{16,} | sntry[su]_[\w+/=-]{16,}
      | npm_\w{20,} | pypi-[\w-]{16,} | rubygems_\w{16,} | CLOJARS_\w{16,} | dckr_pat_[\w-]{16,}
      | AKCp[A-Za-z0-9]{60,} | pul-[0-9a-f]{32,} | lin_(?:api|oauth)_\w{16,} | PMAK-[\w-]{20,}
      | hv[sbr]\.[\w-]{20,} | [0-9a-z]{14}\.atlasv1\.[\w=-]{40,} | dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.]{20,}
      # operations
      | gl(?:c|sa)_[\w+/=]{20,} | NR(?:AK|II|AA|BR)-[\w-]{16,} | dt0[cs]\d\d\.\w{16,}\.\w{20,}
      | ops_eyJ[\w+/=-]{20,} | A3-[A-Z0-9]{6}-[A-Z0-9-]{20,} | AGE-SECRET-KEY-1[A-Z0-9]{20,}
      # messaging
      | xox[abeoprs]-[\w-]{8,} | xoxe\.xox[bp]-[\w-]{8,} | xapp-[\w-]{8,} | \d{8,10}:AA[\w-]{30,}
      | [MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}
      | SG\.[\w-]{12,}\.[\w-]{12,} | SK[0-9a-f]{32} | key-[0-9a-f]{32} | [0-9a-f]{32}-us\d{1,2}
      | xkeysib-[\w-]{20,}
      # payments and office software
      | (?:sk|pk|rk)_(?:live|test|prod)_\w{8,} | whsec_\w{12,} | sq0(?:atp|csp|idp)-[\w-]{16,}
      | EAA[A-Za-z0-9]{40,} | shp(?:at|ca|pa|ss)_\w{16,} | FLWSECK[_\w-]{12,}
      | (?:shippo|duffel)_(?:live|test)_[\w=-]{16,}
      | ntn_\w{20,} | secret_[A-Za-z0-9]{40,} | figd_[\w-]{16,} | pat[A-Za-z0-9]{14}\.[0-9a-f]{32,}
      # Queenright's tokens and JWTs
      | qrt_[0-9a-f]{8}_[\w-]{20,}
      | eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?
    )
    """
)
# AWS secret access keys and Azure account keys have no prefix, only a length and an alphabet.
_BARE = re.compile(
    r"(?<![A-Za-z0-9/+_.-])(?:[A-Za-z0-9/+]{40}|[A-Za-z0-9/+]{86}==)(?![A-Za-z0-9/+=_-]|\.\w)"
    r"|(?<![A-Za-z0-9])(?:[A-Za-z0-9]{50,54}JQQJ99[A-Za-z0-9]{20,30}|[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4})(?![A-Za-z0-9])"
)
_MIN_BARE_LENGTH: Final = 40
_MIN_PHRASE_LENGTH: Final = 16
"""Shorter hyphenated words are ordinary: ``out-of-date``, ``single-sign-on``."""
_SEPARATORS = str.maketrans("", "", "/+=")
_MIN_CHANGES: Final = 12
"""Text written by people switches between lower case, upper case and digits less often per 40 characters."""

_WORD_SETS: Final = read_words("secrets")
_PREDICATES: Final = _WORD_SETS["predicates"]
_OPEN_WORDS: Final = _WORD_SETS["open"]
_ORDINARY_WORDS: Final = _PREDICATES | _WORD_SETS["ordinary"] | _OPEN_WORDS
_PASSIVE_VERBS: Final = frozenset(("accepted", "found", "leaked", "refused", "rejected", "sent"))
"""Not a password if an open word follows: "sent to your address", unlike "the password is sent"."""
_PASSWORD = r"pass(?:word|wd|phrase|code)|pwd"
_QUALIFIED_KEY = (
    r"(?:api|access|account|private|signing|encryption|master|routing|integration|service|secret)[-_ ]?key"
    r"|(?:auth|access|refresh|id|session|csrf|bot|api|bearer|secret)[-_ ]?token|client[-_ ]?secret"
)
_STATED_TEXT = r"""
    (?: (?P<quote> \\{0,7}+ ["'`] )
        (?P<quoted> (?: (?!(?P=quote)) (?: \\++[^\n] | [^\\\n] ) ){3,200}+ ) (?P=quote) (?!\w)
      | ["'`]? (?P<bare> (?: [^\s"'`<>] | (?<=\w)'(?=\w) ){3,200}+ ) )
"""
_AFTER_COLON = re.compile(rf"(?x) [ \t]{{1,3}} {_STATED_TEXT}")
_SENTENCE = re.compile(
    rf"""(?ix)
    (?: (?<![/a-z]) | (?<=\\[nrt]) )
    (?: (?P<password>{_PASSWORD}) | (?P<key>{_QUALIFIED_KEY}) | token | (?P<secret>secret) )
    (?: (?P<owner> \s{{1,3}} (?:for|of) (?: \s{{1,3}} [^\s:="'`]{{1,40}} ){{1,3}}? )?
        (?: (?P<set> (?: \s{{1,3}} (?:has|had|have|is|was|were|will|be|been|being|got|gets|now|just|then|also
                    |already|again|successfully|currently) ){{0,4}}
              \s{{1,3}} (?:set|changed|reset|updated|rotated|switched|initiali[sz]ed|configured|equals?
                    |defaults)
              (?: \s{{1,3}} back )?
              (?: \s{{1,3}} from \s{{1,3}} (?!time\s) (?P<old>\S{{1,40}}) )? \s{{1,3}} to )
          | (?P<is> \s{{1,3}} (?:is|was|=|equals)
              (?: \s{{1,3}} (?: now | still | currently | (?(password)(?!)|(?:just|simply|called)) ) )? )
          | (?P<to> \s{{1,3}} to )
          | (?<=[\w)\]]) (?P<colon>) (?=\s{{0,3}}:) )
        (?: \s{{0,3}} : )? \s{{1,3}}
      | (?<=passwd) \s{{1,3}} (?! (?:{_PASSWORD}|token|secret) \s{{1,3}} (?:is|was|=|to) \s )
      | \s{{1,3}} (?! (?:{_PASSWORD}|token|secret) \s ) )
    {_STATED_TEXT}
    """
)
# Text before "password X" or "password to X" that makes X likely to be a password.
_GIVEN_BEFORE = re.compile(
    r"(?im)(?:^|(?:\b(?:with|using|uses?|used|try|tried|enter|entered|type|typed|sent?|and"
    r"|(?:user(?:name)?|login|log ?in as|account)[\s:=]{1,3}\S{1,40})|@[\w.-]{1,60}),?\s{1,3})"
    r"(?:(?:the|my|a|this|new|his|her|their|its)\s{1,3})?\Z"
)
_SET_BEFORE = re.compile(r"(?i)\b(?:set|chang|reset|updat|rotat|switch|ma[kd])[a-z]{0,6}\b[^.\n]{0,30}\Z")
_OWN_BEFORE = re.compile(r"(?i)\b(?:my|our|his|her|their|bot's)\s{1,3}\Z")
_CONTEXT_LENGTH: Final = 100
_WORD = r"(?:[^\s\"'`<>]|(?<=\w)'(?=\w)){1,200}+"
_NEXT_WORD = re.compile(
    rf"[ \t]{{1,3}}(?!(?:and|but|for|or|so|because|if|since|when|while|which)\s{{1,3}}"
    r"(?:the|it|its|he|she|we|you|your|my|his|her|they|this|that|user|username|login|i)\b)"
    rf"({_WORD})"
)
_MAX_WORDS: Final = 24
"""Maximum words of a passphrase: the length of the longest wallet seed phrase."""
_NO_SECRET_BEGINS: Final = ("(", "-", "/", "$", "|", "&", ";", "#", "")
_VARIABLE = re.compile(r"[A-Z]+(?:_[A-Z]+)+")
_CLAUSE_END: Final = ".,;:!?)]}"
_TRAILING: Final = _CLAUSE_END + "'\\"
# A program's name and the text up to its next mention, so that each command is searched for options once.
_CURL = re.compile(
    r"(?i)\bcurl\b(?:(?!\bcurl\b)(?:\\[ \t\r]{0,3}\n|[^\n])){0,500}+"
    r"(?:(?!\bcurl\b)\S)*+(?:\n-\S*+(?:[ \t]\S++)?)?"
)
# Within JSON, the quotes of a command are preceded by backslashes.
_QUOTED_TEXT = r"""(?P<quote>\\{0,7}+["'])(?:(?!(?P=quote))(?:\\++[^\n]|[^\\\n])){1,200}+(?P=quote)"""
_BARE_TEXT = r"""(?:[^\s"'\\]|\\++(?!["'\s])|\\++["' ](?=\w))++"""
_CURL_OPTION = re.compile(
    r"""(?i)([\s"'](?:-[a-z]{0,4}u|--user|--proxy-user)(?:[\s=]{0,3}|\\{0,7}+["']\s{0,3},\s{0,3})"""
    r"""(?P<quote>\\{0,7}+["'])?[^\s:"'\\]{0,100}:(?!//))"""
    r"""(?:(?(quote)(?:(?!(?P=quote))(?:\\++[^\n]|[^\\\n])){1,200}+(?=(?P=quote))|(?!))|"""
    # A part of a shell word may be quoted.
    r"""(?P<part>\\{0,7}+["'])(?:(?!(?P=part))(?:\\++[^\n]|[^\\\n])){1,200}+(?P=part)"""
    rf"(?:{_BARE_TEXT})?+|{_BARE_TEXT})"
)
_MYSQL = re.compile(
    r"(?i)\b(?:mysql|mariadb)[a-z]{0,12}+\b(?:(?!\b(?:mysql|mariadb))[^\n]){0,200}+"
    r"(?:(?!\b(?:mysql|mariadb))\S)*+"
)
_MYSQL_OPTION = re.compile(
    r"""([\s"'](?:(?i:-p)(?!ort)|-p[ \t]{1,3}))"""
    # A quote before a comma or a bracket ends the command.
    rf"""(?!\\{{0,7}}+["']\s{{0,3}}[,:}}\]])(?:{_QUOTED_TEXT}|(?:\\{{0,7}}+["'])?(?![-|<>&;]){_BARE_TEXT})"""
)
_SSHPASS = re.compile(
    r"""(?i)(\bsshpass(?:\s{1,3}|\\{0,7}+["']\s{0,3},\s{0,3}\\{0,7}+["'])-p"""
    r"""(?:\\{0,7}+["']\s{0,3},\s{0,3}|\s{0,3}))"""
    rf"""(?:{_QUOTED_TEXT}|(?:\\{{0,7}}+["'])?{_BARE_TEXT})"""
)
_ELEMENT_NAME = (
    r"[\w:.-]{0,40}(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|credentials?)"
)
# The text may be truncated anywhere after the secret's first characters.
_ELEMENT = re.compile(
    rf"(?i)(<({_ELEMENT_NAME})(?:\s[^<>]{{0,200}})?>)(?!\[redacted\])(?:"
    r"<!\[CDATA\[(?!\[redacted\])(?:[^\]]|\](?!\]>)){1,2048}+(?:\]\]>)?"
    r"|[^<>]{1,2048}+(?=</\2)|[^<>\s]{4,2048}+(?=\Z|<(?:/[\w.:-]{0,60})?\Z))"
)
_ESCAPED_ELEMENT = re.compile(
    rf"(?i)(&(?:amp;)?lt;({_ELEMENT_NAME})(?:\s(?:(?!&(?:amp;)?[lg]t;)[^<>]){{0,200}}+)?&(?:amp;)?gt;)(?!\[redacted\])"
    r"(?:(?!&(?:amp;)?lt;)[^<>]){1,2048}+(?=&(?:amp;)?lt;/\2|\Z)"
)
_NAME_AND_VALUE = re.compile(
    rf"""(?i)(\b(?:name|key|id)["']?\s{{0,3}}[:=]\s{{0,3}}["']{_ELEMENT_NAME}["'][\s,]"""
    r"""[^<>{}]{0,100}?\bvalue["']?\s{0,3}[:=]\s{0,3}["'])(?!\[redacted\])[^"'<>]{1,2048}"""
)
_ELEMENT_WITH_NAME = re.compile(
    rf"""(?i)(\b(?:name|key|id)\s{{0,3}}=\s{{0,3}}\\{{0,7}}["']{_ELEMENT_NAME}\\{{0,7}}["'](?:\s[^<>]{{0,200}})?(?<!/)>(?:\s{{0,80}}+<value>)?+)"""
    r"(?!\[redacted\])(?:<!\[CDATA\[(?!\[redacted\])(?:[^\]]|\](?!\]>)){1,2048}+(?:\]\]>)?"
    r"|[^<>]{1,2048}+(?=</)|[^<>\s]{4,2048}+(?=\Z|<\Z))"
)
_EMAIL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,8}")


class _HiddenValues:
    """Exact secret values of this process, plain and quoted, longest first."""

    def __init__(self) -> None:
        self.forms: tuple[str, ...] = ()
        self._lock = threading.Lock()

    def add(self, values: Iterable[str]) -> None:
        forms = {form for value in values if len(value) >= _MIN_LENGTH for form in _quoted_forms(value)}
        if not forms <= set(self.forms):
            with self._lock:
                # Replaced as a whole, so that readers need no lock.
                self.forms = tuple(sorted({*self.forms, *forms}, key=lambda form: (-len(form), form)))

    def reset_lock(self) -> None:
        self._lock = threading.Lock()


_hidden_values: Final = _HiddenValues()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_hidden_values.reset_lock)


def hide(values: Iterable[str]) -> None:
    """
    Make ``redact`` mask these values everywhere, for the rest of the process.

    They are masked as they are and as quoted in JSON, in a Python literal and in a URL. Values shorter than 6
    characters are ignored, because they occur in too many words. Thread-safe.
    """
    _hidden_values.add(values)


def hide_named(values: Mapping[str, str]) -> None:
    """
    Hide the ``values`` whose names suggest a secret: ``API_KEY``, ``Authorization``.

    Because a name is only a hint, values shorter than 8 characters, plain words and paths are ignored. The
    last of several words is hidden separately too, as in ``Bearer ...``.
    """
    for name, value in values.items():
        if _SECRET_NAME.search(name):
            words = value.split()
            hide(text for text in (value, *words[-1:]) if _may_be_secret(text))


def _may_be_secret(value: str) -> bool:
    return len(value) >= _MIN_GUESSED_LENGTH and not value.isalpha() and not value.startswith(("/", "~", "."))


def _quoted_forms(value: str) -> set[str]:
    quotations = {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    for safe in ("", "/"):
        quotations.add(quote(value.encode("utf-8", "replace"), safe=safe))
    # Control characters are removed, as in the text that is searched.
    forms = {_CONTROL.sub("", form) for form in (value, value.strip(), *quotations)}
    return {form for form in forms if len(form) >= _MIN_LENGTH and form not in MASK}


def redact(text: str, limit: int = 500) -> str:
    """
    Return the tail of ``text`` with secrets masked.

    Masks the values passed to ``hide`` and, by their shapes, private keys, authorization headers and
    cookies, bearer tokens, JWTs, API keys, passwords in URLs, values named like a secret, webhook addresses
    and e-mail addresses. Masking happens before cutting, so that no partial secret remains. Shapes are best
    effort: a secret that looks like an ordinary word and was not hidden is not masked.

    Args:
        text: Any text; lone surrogates are replaced and control characters removed.
        limit: Maximum characters to return, from the end.
    """
    if limit <= 0:
        return ""
    size = max(_WINDOW, 4 * limit)
    hidden_forms = _hidden_values.forms
    is_whole = len(text) <= size
    window = text if is_whole else text[_skip_hidden(text, len(text) - size, hidden_forms) :]
    window = _CONTROL.sub("", window)
    for form in hidden_forms:
        if form in window:
            window = window.replace(form, MASK)
    if (
        is_whole
        and len(window) < _MIN_SHAPE_LENGTH
        and window.replace("_", "a").isalpha()
        and window.isascii()
    ):
        return window[-limit:]  # a plain word, like most keys
    if not is_whole:
        # The window may start inside a secret: drop the rest of the first word.
        match = re.search(r"\s", window)
        window = window[match.end() :] if match else MASK
    window = _mask_secrets(window)
    if "@" in window:
        window = _EMAIL.sub(MASK, window)
    return window[-limit:].encode("utf-8", "replace").decode("utf-8")


def _mask_secrets(text: str) -> str:
    """Mask secrets by shape; e-mail addresses are not secrets here."""
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(MASK, text)
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    text = _SCHEME.sub(rf"\1 {MASK}", text)
    if "://" in text:
        text = _USERINFO.sub(rf"\1{MASK}@", text)
        text = _WEBHOOK.sub(rf"\1{MASK}", text)
    text = _LONG_WORD.sub(_mask_keys, text)
    lower = text.lower()
    if any(name in lower for name in _NAME_HINTS):  # expensive, and most texts contain none of these
        text = _mask_named_values(text)
    return text


def _mask_named_values(text: str) -> str:
    """Mask values that are named as secrets by a key, an element, an option or the preceding words."""
    text = _NAMED_VALUE.sub(rf"\1{MASK}", text)
    if "<" in text:
        text = _ELEMENT.sub(rf"\1{MASK}", text)
        text = _ELEMENT_WITH_NAME.sub(rf"\1{MASK}", text)
    if "lt;" in text:
        text = _ESCAPED_ELEMENT.sub(rf"\1{MASK}", text)
    if "value" in text.lower():
        text = _NAME_AND_VALUE.sub(rf"\1{MASK}", text)
    text = _CURL.sub(lambda match: _CURL_OPTION.sub(rf"\1{MASK}", match[0]), text)
    text = _MYSQL.sub(lambda match: _MYSQL_OPTION.sub(rf"\1{MASK}", match[0]), text)
    text = _SSHPASS.sub(rf"\1{MASK}", text)
    return _mask_stated_secrets(text)


def _mask_stated_secrets(text: str) -> str:
    """Mask secrets stated in prose, such as "the password is X"."""
    parts: list[str] = []
    copy_end = position = 0
    while match := _SENTENCE.search(text, position):
        start, end = _find_secret(match)
        if start < end:
            if match["old"] is not None and MASK not in match["old"]:
                # The old secret may still be valid elsewhere.
                parts += (text[copy_end : match.start("old")], MASK)
                copy_end = match.end("old")
            parts += (text[copy_end:start], MASK)
            copy_end = end
        position = max(end, match.end())
    return "".join((*parts, text[copy_end:]))


def _find_secret(match: re.Match[str]) -> tuple[int, int]:
    """Return the start and end of the secret in this sentence; both are 0 if it contains none."""
    if match["quoted"] is not None:
        is_secret = MASK not in match["quoted"] and match["quoted"][0] != "[" and _is_quoted_secret(match)
        return match.span("quoted") if is_secret else (0, 0)
    start = match.start("bare")
    text = match["bare"].rstrip(_TRAILING)
    if not text or MASK in match["bare"] or text[0] == "[":
        return 0, 0
    if span := _find_after_colon(match):
        return span
    is_phrase = match["password"] is not None or match["secret"] is not None
    if is_phrase and (match["is"] is not None or match["set"] is not None):
        if _is_prose(match):
            return 0, 0
        *_, (last, word) = _iterate_clause(match)
        return start, last + len(word)
    if match["password"] and match["password"].lower() == "passwd" and not _has_verb(match):
        return _find_after_passwd(match)
    return (start, start + len(text)) if _is_given(match, text) else (0, 0)


def _find_after_colon(match: re.Match[str]) -> tuple[int, int] | None:
    """Return the span of the secret in "password was sent: X" and "passwd bob: X"."""
    is_of_user = (match["password"] or "").lower() == "passwd" and not _has_verb(match)
    if not match["bare"].endswith(":") or not (is_of_user or match["is"] is not None):
        return None
    word = match["bare"].rstrip(_TRAILING).lower()
    if not is_of_user and word not in _ORDINARY_WORDS:
        return None  # the word before the colon is the secret
    value_match = _AFTER_COLON.match(match.string, match.end())
    if value_match is None:
        return None
    if value_match["quoted"] is not None:
        return value_match.span("quoted")
    text = value_match["bare"].rstrip(_TRAILING)
    if not text or text[0] in ("[", *_NO_SECRET_BEGINS) or text.lower() in _ORDINARY_WORDS:
        return 0, 0
    is_stated = _is_random(text) or _ends_clause(value_match)
    return (value_match.start("bare"), value_match.start("bare") + len(text)) if is_stated else (0, 0)


def _iterate_clause(match: re.Match[str]) -> Iterator[tuple[int, str]]:
    """Yield the start and text of each word up to the end of the clause."""
    start, word = match.start("bare"), match["bare"]
    for _ in range(_MAX_WORDS):
        yield start, word.rstrip(_TRAILING)
        next_match = _NEXT_WORD.match(match.string, start + len(word))
        if word[-1] in _CLAUSE_END or next_match is None or MASK in next_match[1]:
            return
        start, word = next_match.start(1), next_match[1]


def _has_verb(match: re.Match[str]) -> bool:
    return any(match[name] is not None for name in ("set", "is", "to", "colon"))


def _is_prose(match: re.Match[str]) -> bool:
    """Return whether a clause is about a password without stating it."""
    ordinary_words = _PREDICATES if match["password"] else _ORDINARY_WORDS
    words = (word.lower() for _, word in _iterate_clause(match))
    for word, next_word in itertools.pairwise(itertools.chain(words, ("",))):
        if word in _PASSIVE_VERBS and next_word in _OPEN_WORDS:
            return True
        if word not in ordinary_words:
            return False
        # "The password is again X" states one; after "is wrong again" any word may follow.
        if word in _OPEN_WORDS and not (word == "again" and ordinary_words is _PREDICATES):
            return True
        ordinary_words = _ORDINARY_WORDS
    return True


def _find_after_passwd(match: re.Match[str]) -> tuple[int, int]:
    """Return the span of the password after "passwd", including a user name before it."""
    (start, first), *others = itertools.islice(_iterate_clause(match), 3)
    end = start + len(first)
    is_known = first.lower() in _PREDICATES or first[0] in _NO_SECRET_BEGINS
    if others:
        at, second = others[0]
        is_secret = second.lower() not in _ORDINARY_WORDS and second[:1] not in _NO_SECRET_BEGINS
        if first.lower() in ("root", "user"):
            return (at, at + len(second)) if is_secret else (0, 0)
        if is_secret and (_is_random(second) or len(others) == 1):
            end = at + len(second)
    return (0, 0) if is_known else (start, end)


def _is_random(text: str) -> bool:
    return (
        len(text) >= _MIN_LENGTH and re.search(r"\d", text) is not None and text[0] not in _NO_SECRET_BEGINS
    )


def _is_quoted_secret(match: re.Match[str]) -> bool:
    """Return whether a quoted text is a secret: it is if a password is, was, or was set to it."""
    text = match["quoted"]
    if match["password"] or match["key"] or match["secret"]:
        if match["set"] is not None or match["is"] is not None:
            return not (match["key"] and _VARIABLE.fullmatch(text))
        if match["to"] is not None:
            return _is_preceded_by(_SET_BEFORE, match)
    return _is_given(match, text)


def _is_given(match: re.Match[str], text: str) -> bool:
    """Return whether the text after a secret's name is the secret itself."""
    ordinary_words = _PREDICATES if match["password"] and match["quoted"] else _ORDINARY_WORDS
    if all(word.lower() in ordinary_words for word in text.split()):
        return False
    is_named = match["password"] is not None or match["key"] is not None
    if not is_named and re.fullmatch(r"[\d.,_]+[%kKM]?", text):
        return False  # a number of tokens
    if match["set"] is not None:
        return True
    if match["is"] is not None:
        if match["key"] and _VARIABLE.fullmatch(text):
            return False
        return is_named or _is_random(text) or _is_preceded_by(_OWN_BEFORE, match)
    if match["to"] is not None:
        return _is_preceded_by(_SET_BEFORE, match) and (_is_random(text) or _ends_clause(match))
    if match["colon"] is not None:
        return _is_random(text)
    if match["password"] is None:
        # A token's name may follow instead of the token.
        two_of_both = r"(?=(?:\D*\d){2})(?=(?:\d*[A-Za-z]){2})[A-Za-z0-9]{10,}"
        return re.fullmatch(two_of_both, text) is not None
    if match["quoted"] is not None:
        return True
    # Any word may follow "password", so require more evidence.
    is_phrase = len(text) >= _MIN_PHRASE_LENGTH and re.fullmatch(r"[A-Za-z]+(?:-[A-Za-z]+){2,}", text)
    return (
        _is_random(text) or bool(is_phrase) or (_ends_clause(match) and _is_preceded_by(_GIVEN_BEFORE, match))
    )


def _is_preceded_by(pattern: re.Pattern[str], match: re.Match[str]) -> bool:
    return pattern.search(match.string, max(0, match.start() - _CONTEXT_LENGTH), match.start()) is not None


def _ends_clause(match: re.Match[str]) -> bool:
    following_text = match.string[match.end() : match.end() + 5]
    return (
        not following_text
        or match[0][-1] in ".,;:!?)]}"
        or following_text[0] in "\r\n\"'`<"
        or following_text in (" and ", " for ")
    )


def _mask_keys(word: re.Match[str]) -> str:
    text = _SHAPE.sub(MASK, word[0])
    if len(text) >= _MIN_BARE_LENGTH:
        text = _BARE.sub(_mask_bare_key, text)
    return text


def _mask_bare_key(match: re.Match[str]) -> str:
    text = match[0].translate(_SEPARATORS)
    kinds = [1 if c.isdigit() else 2 if c.isupper() else 3 for c in text]
    changes = sum(kind != other for kind, other in itertools.pairwise(kinds))
    # A hexadecimal hash has letters of only one case.
    return MASK if len(set(kinds)) == 3 and changes >= _MIN_CHANGES else match[0]


def mask_name(name: str) -> str:
    """
    Return a name with secrets masked; most names are returned unchanged.

    Each secret becomes ``redacted-`` plus ten digits of a hash of the whole name, so that different names
    stay different and equal names stay equal, in every process. E-mail addresses count as names here and are
    not masked.
    """
    hidden_forms = _hidden_values.forms
    if len(name) > _MAX_CACHED_LENGTH:
        return _mask_name.__wrapped__(name, hidden_forms)
    if hidden_forms:
        return _mask_name(name, hidden_forms)
    return name if len(name) < _MIN_NAME_LENGTH else _mask_unhidden_name(name)


@lru_cache(_MAX_CACHED_NAMES)
def _mask_name(name: str, hidden_forms: tuple[str, ...]) -> str:
    result = name
    for form in hidden_forms:
        if form in result:
            result = result.replace(form, MASK)
    return _replace_masks(name, _mask_secrets(result))


@lru_cache(_MAX_CACHED_NAMES)
def _mask_unhidden_name(name: str) -> str:
    if _HARMLESS_NAME.fullmatch(name):
        return name
    return _replace_masks(name, _mask_secrets(name))


def _replace_masks(name: str, result: str) -> str:
    if result == name:
        return name
    digest = blake2b(name.encode("utf-8", "replace"), digest_size=5).hexdigest()
    return result.replace(MASK, f"redacted-{digest}")


def _skip_hidden(text: str, start: int, hidden_forms: Iterable[str]) -> int:
    """Return ``start``, moved past a hidden value that the cut would split."""
    for form in hidden_forms:
        position = text.find(form, max(0, start - len(form) + 1), start + len(form) - 1)
        if position >= 0:
            start = max(start, position + len(form))
    return start


def cut_before_hidden(text: str, end: int) -> int:
    """Return ``end``, moved before a hidden value of several words that it splits or that is incomplete."""
    for form in _hidden_values.forms:
        if re.search(r"\s", form):
            start = text.find(form[0], max(0, end - len(form) + 1), end)
            while start >= 0:
                if form.startswith(text[start : start + len(form)]):
                    return cut_before_hidden(text, start)
                start = text.find(form[0], start + 1, end)
    return end


def mask_traceback(error: BaseException) -> str:
    """Format an error with its traceback for a log, with secrets masked; only the end if it is long."""
    return redact("".join(traceback.format_exception(error)).rstrip(), 10_000)
