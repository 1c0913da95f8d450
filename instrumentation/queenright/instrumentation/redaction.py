"""Text that may leave the process: secrets masked, cut to a tail, valid UTF-8."""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import traceback
from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import blake2b
from typing import Final
from urllib.parse import quote

MASK: Final = "[redacted]"

_WINDOW: Final = 16_384
"""At most this many characters from the end are looked at, so that a huge text costs no more than this."""

_NAMES_KEPT: Final = 16_384
_LONGEST_KEPT: Final = 256
_SHORTEST_NAME: Final = 12
"""No shape is shorter."""
# Digits of an id or a hash, or one plain word: most names and ids are one of these.
_HARMLESS_NAME = re.compile(r"[0-9a-f-]{1,80}|[a-z_-]{1,40}")

_SHORTEST: Final = 6
"""Shorter values are part of too many words to be masked wherever they stand."""
_SHORTEST_GUESSED: Final = 8
_SHORTEST_SHAPE: Final = 16
"""No shape has fewer characters that are all letters and underscores: ``sk_live_`` and eight more."""

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
    r"(hooks\.slack\.com/(?:services|workflows|triggers)/|webhook\.office\.com/webhookb2/|discord(?:app)?\.com/api/webhooks/)[\w/@-]+"
)
_NAMES = ("pass", "pwd", "secret", "credential", "key", "token", "sig", "curl", "mysql", "mariadb")
_NAMED = re.compile(
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
      \\{0,7}+ ["']? \s{0,3}+ (?: => | [:=] ) \s{0,3}
    | --(?:password|passwd|token|secret|api-key|access-key)\s+
    )
    # What was masked before stays as it is, and an empty text.
    (?! \[redacted\] | \\{1,7}+["']\\{1,7}+["'] )
    # In JSON within JSON, as many backslashes and the same quote end the text as begin it.
    (?: (?P<escape>\\{1,7}+)(?P<quote>["'])
        (?: [^"'\\] | (?!(?P=quote))["'] | (?!(?P=escape)(?P=quote))\\++. )++ (?: (?P=escape)(?P=quote) )?
      | "(?:[^"\\]|\\.)++(?:"|\\?\Z) | '(?:[^'\\]|\\.)++(?:'|\\?\Z) | [^\s"',;&|)}\]]+ )
    """
)
# A key is one long word: only such words are held against the shapes, and ordinary text has few.
# What a line break or a bracket is written as in JSON or in a URL may stand before it.
_LONG_WORD = re.compile(r"(?:\\(?:[bfnrt]|u[0-9A-Fa-f]{4}))?[A-Za-z0-9][\w.~+/=:%|-]{11,}")
# What the services themselves put before their keys, as they document it.
_SHAPE = re.compile(
    r"""(?x)
    (?: (?<![A-Za-z0-9]) | (?<=\\[bfnrt]) | (?<=\\u[0-9A-Fa-f]{4}) | (?<=%[0-9A-Fa-f]{2}) ) (?:
      # models and what is built on them
        sk-[A-Za-z0-9_-]{12,} | (?:hf|gsk|r8|fw|lsv2|e2b|jina)_\w{16,} | lsv2_[\w-]{16,} | api_org_\w{16,}
      | (?:pplx|xai|nvapi|tvly|fc|pk-lf)-[\w-]{16,} | tvly-[\w-]{12,} | ABSK[A-Za-z0-9+/]{40,}={0,2}
      | bedrock-api-key-[\w+/=-]{12,}
      # clouds
      | (?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AIPA|ANPA|ANVA|AROA)[0-9A-Z]{12,}
      | amzn\.mws\.[0-9a-f-]{30,} | LTAI[A-Za-z0-9]{16,}
      | AIza[\w-]{30,} | ya29\.[\w.-]{16,} | GOCSPX-[\w-]{16,}
      | [\w~.]{3}\dQ~[\w~.-]{31,34} | do[opr]_v1_\w{16,} | HRKU-[\w-]{20,}
      | fo1_[\w-]{20,} | fm[12][ar]?_[A-Za-z0-9+/]{40,}={0,2} | dapi[0-9a-f]{32}(?:-\d)?
      | (?:pscale_(?:tkn|oauth|pw)|sbp|sb_secret)_[\w=.-]{16,} | sha256~[\w-]{40,}
      # code and what is built from it
      | gh[pousr]_\w{16,} | github_pat_\w{16,} | GR1348941[\w-]{16,}
      | gl(?:pat|dt|ft|rt|ptt|cbt|imt|agent|oas|soat|ffct)-[\w-]{12,}(?:\.[\w]{6,})?
      | AT(?:ATT3|BB|CTT3)[\w=-]{20,} | sgp_\w{16,} | sntry[su]_[\w+/=-]{16,}
      | npm_\w{20,} | pypi-[\w-]{16,} | rubygems_\w{16,} | CLOJARS_\w{16,} | dckr_pat_[\w-]{16,}
      | AKCp[A-Za-z0-9]{60,} | pul-[0-9a-f]{32,} | lin_(?:api|oauth)_\w{16,} | PMAK-[\w-]{20,}
      | hv[sbr]\.[\w-]{20,} | [0-9a-z]{14}\.atlasv1\.[\w=-]{40,} | dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.]{20,}
      # operations
      | gl(?:c|sa)_[\w+/=]{20,} | NR(?:AK|II|AA|BR)-[\w-]{16,} | dt0[cs]\d\d\.\w{16,}\.\w{20,}
      | ops_eyJ[\w+/=-]{20,} | A3-[A-Z0-9]{6}-[A-Z0-9-]{20,} | AGE-SECRET-KEY-1[A-Z0-9]{20,}
      # messages
      | xox[abeoprs]-[\w-]{8,} | xoxe\.xox[bp]-[\w-]{8,} | xapp-[\w-]{8,} | \d{8,10}:AA[\w-]{30,}
      | [MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,}
      | SG\.[\w-]{12,}\.[\w-]{12,} | SK[0-9a-f]{32} | key-[0-9a-f]{32} | [0-9a-f]{32}-us\d{1,2}
      | xkeysib-[\w-]{20,}
      # money and work
      | (?:sk|pk|rk)_(?:live|test|prod)_\w{8,} | whsec_\w{12,} | sq0(?:atp|csp|idp)-[\w-]{16,}
      | EAA[A-Za-z0-9]{40,} | shp(?:at|ca|pa|ss)_\w{16,} | FLWSECK[_\w-]{12,}
      | (?:shippo|duffel)_(?:live|test)_[\w=-]{16,}
      | ntn_\w{20,} | secret_[A-Za-z0-9]{40,} | figd_[\w-]{16,} | pat[A-Za-z0-9]{14}\.[0-9a-f]{32,}
      # anybody's
      | qrt_[0-9a-f]{8}_[\w-]{20,}
      | eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?
    )
    """
)
# Secret access keys of AWS, account keys of Azure: nothing but their length and letters says what they are.
_BARE = re.compile(
    r"(?<![A-Za-z0-9/+_.-])(?:[A-Za-z0-9/+]{40}|[A-Za-z0-9/+]{86}==)(?![A-Za-z0-9/+=_-]|\.\w)"
    r"|(?<![A-Za-z0-9])(?:[A-Za-z0-9]{50,54}JQQJ99[A-Za-z0-9]{20,30}|[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4})(?![A-Za-z0-9])"
)
_SHORTEST_BARE: Final = 40
_SHORTEST_PHRASE: Final = 16
"""Shorter words with hyphens between them are ordinary ones: ``out-of-date``, ``single-sign-on``."""
_SEPARATORS = str.maketrans("", "", "/+=")
_MOST_ALIKE: Final = 12
"""What is written by people changes from small to large letters or digits less often in 40 characters."""

# What people write about a password, a key or a token.
_ORDINARY_TEXT: Final = """
    a about again all already also always an and any anything as at bad be because been before being blank
    by can cannot case case-insensitive case-sensitive changed combo command compared continue correct
    currently database default dialog different disabled due each either else empty enabled encrypted
    entries entry environment error errors everywhere exactly expire expired expiry failure false field
    fields file files first fixed for from given gone good has hash hashed hashes have here identical if
    in incorrect input instead invalid it its itself just key keys known later less link links login long
    longer manager managers mandatory manually masked match mismatch missing more must my never new nil no
    none not nothing now null ok old on once only optional or our out page per plain please policy proceed
    program prompt prompts properly protected public redacted rejected required reset resets right root
    rotated rules safe same secret secrets set settings shorter should so some someone something still
    storage stored strength strong stronger sufficient text that the their there they this to today token
    tokens tomorrow too tool true twice unchanged undefined unique unknown unless unlock unsafe unset
    unused up used user users using utility valid value values variable vault verified very via was weak
    well were what when where which while will with without wrong yesterday you your yours
"""
_ORDINARY_WORDS: Final = frozenset(_ORDINARY_TEXT.split())
_ORDINARY_ENDING = re.compile(r"(?i)[a-z-]{2,}(?:tions?|ments?|ity|ness|[a-z]{3}ly)")
_PARTICIPLE = re.compile(
    r"[a-z-]{2,}(?:ed|ing|able|ible)|overdue|broken|stolen|lost|sent|shown|seen|kept|read"
)
_PASSWORD = r"pass(?:word|wd|phrase|code)|pwd"
_QUALIFIED_KEY = (
    r"(?:api|access|account|private|signing|encryption|master|routing|integration|service|secret)[-_ ]?key"
    r"|(?:auth|access|refresh|id|session|csrf|bot|api|bearer|secret)[-_ ]?token|client[-_ ]?secret"
)
_SENTENCE = re.compile(
    rf"""(?ix)
    (?: (?<![/a-z]) | (?<=\\[nrt]) )
    (?: (?P<password>{_PASSWORD}) | (?P<key>{_QUALIFIED_KEY}) | token | secret )
    (?: (?P<owner> \s{{1,3}} (?:for|of) (?: \s{{1,3}} [^\s:="'`]{{1,40}} ){{1,3}}? )?
        (?: (?P<set> (?: \s{{1,3}} (?:has|had|have|is|was|were|will|be|been|being|got|gets|now|just|then|also
                    |already|again|successfully|currently) ){{0,4}}
              \s{{1,3}} (?:set|changed|reset|updated|rotated|switched|initiali[sz]ed|configured|equals?
                    |defaults)
              (?: \s{{1,3}} back )? \s{{1,3}} to )
          | (?P<is> \s{{1,3}} (?:is|was|=|equals)
              (?: \s{{1,3}} (?:now|still|just|simply|currently|called) )? )
          | (?P<to> \s{{1,3}} to )
          | (?<=[\w)\]]) (?P<colon>) (?=\s{{0,3}}:) )
        (?: \s{{0,3}} : )? \s{{1,3}}
      | \s{{1,3}} (?! (?:{_PASSWORD}|token|secret) \s ) )
    (?: (?P<quote> \\{{0,7}}+ ["'`] )
        (?P<quoted> (?: (?!(?P=quote)) (?: \\++[^\n] | [^\\\n] ) ){{3,200}}+ ) (?P=quote) (?!\w)
      | ["'`]? (?P<bare> (?: [^\s"'`<>] | (?<=\w)'(?=\w) ){{3,200}}+ ) )
    """
)
# What comes before a "password X" or "password to X" that names one, and does not go on about passwords.
_GIVEN_BEFORE = re.compile(
    r"(?im)(?:^|(?:\b(?:with|using|uses?|used|try|tried|enter|entered|type|typed|sent?|and"
    r"|(?:user(?:name)?|login|log ?in as|account)[\s:=]{1,3}\S{1,40})|@[\w.-]{1,60}),?\s{1,3})"
    r"(?:(?:the|my|a|this|new|his|her|their|its)\s{1,3})?\Z"
)
_SET_BEFORE = re.compile(r"(?i)\b(?:set|chang|reset|updat|rotat|switch|ma[kd])[a-z]{0,6}\b[^.\n]{0,30}\Z")
_OWN_BEFORE = re.compile(r"(?i)\b(?:my|our|his|her|their|bot's)\s{1,3}\Z")
_BEFORE: Final = 100
# A program's name and what follows it, up to its next mention: searched for options once, not once for each.
_CURL = re.compile(
    r"(?i)\bcurl\b(?:(?!\bcurl\b)(?:\\[ \t\r]{0,3}\n|[^\n])){0,500}+"
    r"(?:(?!\bcurl\b)\S)*+(?:\n-\S*+(?:[ \t]\S++)?)?"
)
_CURL_OPTION = re.compile(
    r"(?i)(\s(?:-[a-z]{0,4}u|--user|--proxy-user)[\s=]{0,3}[\"']?[^\s:\"']{0,100}:(?!//))[^\s\"']+"
)
_MYSQL = re.compile(
    r"(?i)\b(?:mysql|mysqldump|mariadb)\b(?:(?!\b(?:mysql|mariadb))[^\n]){0,200}+"
    r"(?:(?!\b(?:mysql|mariadb))\S)*+"
)
_MYSQL_OPTION = re.compile(r"(?i)(\s-p(?!ort))[^\s\"']+")
_SSHPASS = re.compile(r"(?i)(\bsshpass\s{1,3}-p\s{0,3}[\"']?)[^\s\"']+")
_ELEMENT_NAME = (
    r"[\w:.-]{0,40}(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|credentials?)"
)
# The text may be cut off anywhere behind the secret's first characters.
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
    if whole and len(window) < _SHORTEST_SHAPE and window.replace("_", "a").isalpha() and window.isascii():
        return window[-limit:]  # a plain word, as most keys of what is said are
    if not whole:
        # The cut may have halved a secret; what is left of that word goes.
        cut = re.search(r"\s", window)
        window = window[cut.end() :] if cut else MASK
    window = _without_secrets(window)
    if "@" in window:
        window = _EMAIL.sub(MASK, window)
    return window[-limit:].encode("utf-8", "replace").decode("utf-8")


def _without_secrets(text: str) -> str:
    """Mask what looks like a secret; e-mail addresses are none."""
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(MASK, text)
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    text = _SCHEME.sub(rf"\1 {MASK}", text)
    if "://" in text:
        text = _USERINFO.sub(rf"\1{MASK}@", text)
        text = _WEBHOOK.sub(rf"\1{MASK}", text)
    text = _LONG_WORD.sub(_without_keys, text)
    lower = text.lower()
    if any(name in lower for name in _NAMES):  # dear, and most texts speak of none of these
        text = _without_named(text)
    return text


def _without_named(text: str) -> str:
    """Mask what is named as a secret: by its key, its element, its option or the words before it."""
    text = _NAMED.sub(rf"\1{MASK}", text)
    if "<" in text:
        text = _ELEMENT.sub(rf"\1{MASK}", text)
    if "lt;" in text:
        text = _ESCAPED_ELEMENT.sub(rf"\1{MASK}", text)
    if "value" in text.lower():
        text = _NAME_AND_VALUE.sub(rf"\1{MASK}", text)
    text = _CURL.sub(lambda found: _CURL_OPTION.sub(rf"\1{MASK}", found[0]), text)
    text = _MYSQL.sub(lambda found: _MYSQL_OPTION.sub(rf"\1{MASK}", found[0]), text)
    text = _SSHPASS.sub(rf"\1{MASK}", text)
    return _SENTENCE.sub(_mask_sentence, text)


def _mask_sentence(found: re.Match[str]) -> str:
    group = "bare" if found["quoted"] is None else "quoted"
    secret = found[group] if group == "quoted" else found[group].rstrip(".,;:!?)]}'\\")
    if not secret or MASK in found[group] or secret.startswith("[") or not _is_given(found, secret):
        return found[0]
    start = found.start(group) - found.start()
    return f"{found[0][:start]}{MASK}{found[0][start + len(secret) :]}"


def _is_given(found: re.Match[str], text: str) -> bool:
    """Return whether what follows the name of a secret is the secret, and no more about it."""
    words = text.split()
    if all(word.lower() in _ORDINARY_WORDS or _ORDINARY_ENDING.fullmatch(word) for word in words):
        return False
    is_named = found["password"] is not None or found["key"] is not None
    if not is_named and re.fullmatch(r"[\d.,_]+[%kKM]?", text):
        return False  # so many tokens
    is_random = len(text) >= _SHORTEST and re.search(r"\d", text) is not None and text[0] not in "(-/$"
    if found["set"] is not None:
        return True
    if _PARTICIPLE.fullmatch(words[0]):
        return False
    if found["is"] is not None:
        if found["key"] and re.fullmatch(r"[A-Z]+(?:_[A-Z]+)+", text):
            return False  # the name of a variable
        return is_named or is_random or _is_behind(_OWN_BEFORE, found)
    if found["to"] is not None:
        return _is_behind(_SET_BEFORE, found) and (is_random or _ends_clause(found))
    if found["colon"] is not None:
        return is_random
    if found["password"] is None:
        # The name of a token may follow, too.
        two_of_both = r"(?=(?:\D*\d){2})(?=(?:\d*[A-Za-z]){2})[A-Za-z0-9]{10,}"
        return re.fullmatch(two_of_both, text) is not None
    if found["quoted"] is not None:
        return True
    if found["password"].lower() == "passwd":
        return len(text) > 3 and text[0] not in "(-/$"
    # "password X" may go on with any word.
    is_phrase = len(text) >= _SHORTEST_PHRASE and re.fullmatch(r"[A-Za-z]+(?:-[A-Za-z]+){2,}", text)
    return is_random or bool(is_phrase) or (_ends_clause(found) and _is_behind(_GIVEN_BEFORE, found))


def _is_behind(before: re.Pattern[str], found: re.Match[str]) -> bool:
    return before.search(found.string, max(0, found.start() - _BEFORE), found.start()) is not None


def _ends_clause(found: re.Match[str]) -> bool:
    rest = found.string[found.end() : found.end() + 5]
    return not rest or found[0][-1] in ".,;:!?)]}" or rest[0] in "\r\n\"'`<" or rest in (" and ", " for ")


def _without_keys(word: re.Match[str]) -> str:
    text = _SHAPE.sub(MASK, word[0])
    if len(text) >= _SHORTEST_BARE:
        text = _BARE.sub(_without_bare_key, text)
    return text


def _without_bare_key(found: re.Match[str]) -> str:
    text = found[0].translate(_SEPARATORS)
    kinds = [1 if c.isdigit() else 2 if c.isupper() else 3 for c in text]
    changes = sum(one != other for one, other in itertools.pairwise(kinds))
    # A hash in hexadecimal digits has one kind of letters.
    return MASK if len(set(kinds)) == 3 and changes >= _MOST_ALIKE else found[0]


def mask_name(name: str) -> str:
    """
    Return a name with the secrets in it masked; nearly every name is returned as it is.

    A masked one ends up as another name of its own: of each secret a mark is kept, ``redacted-`` and ten
    digits of a hash of the whole name, so that two names stay two and one stays one, in every process.
    E-mail addresses are names, no secrets, here.
    """
    hidden = _hidden.forms
    if len(name) > _LONGEST_KEPT:
        return _mask_name.__wrapped__(name, hidden)
    if hidden:
        return _mask_name(name, hidden)
    return name if len(name) < _SHORTEST_NAME else _mask_plain_name(name)


@lru_cache(_NAMES_KEPT)
def _mask_name(name: str, hidden: tuple[str, ...]) -> str:
    masked = name
    for form in hidden:
        if form in masked:
            masked = masked.replace(form, MASK)
    return _marked(name, _without_secrets(masked))


@lru_cache(_NAMES_KEPT)
def _mask_plain_name(name: str) -> str:
    if _HARMLESS_NAME.fullmatch(name):
        return name
    return _marked(name, _without_secrets(name))


def _marked(name: str, masked: str) -> str:
    if masked == name:
        return name
    mark = blake2b(name.encode("utf-8", "replace"), digest_size=5).hexdigest()
    return masked.replace(MASK, f"redacted-{mark}")


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
