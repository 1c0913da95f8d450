"""Text that may leave the process: secrets masked, cut to a tail, valid UTF-8."""

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
      \\{0,7}+ (?:["']|[*_~]{1,3}+)? \s{0,3}+
      (?: [:=]{1,3}+>{0,2}+ (?:(?<=:)[*_~`]{1,3}+(?=\s))?+ | :=(?=\s) | (?<=\s)-{1,3}>{1,2}+ | → ) \s{0,3}
      # Neither a list, an arrow nor the formatting of a text is the value.
      (?: (?P<list> (?: (?!\[redacted\]) [\[(] ){1,2}+ ) \s{0,3} | [-=~:>*_]{1,2}+[ \t]{1,3}(?=\w)
        | (?:</?[a-z]{1,9}\d?>[ \t]{0,3}){1,3}+ )?+
    | --(?:password|passwd|token|secret|api-key|access-key) (?: \s+ | \\{0,7}+["']\s{0,3},\s{0,3} )
    )
    # What was masked before stays as it is, and an empty text.
    (?! \[redacted\] | \\{1,7}+["']\\{1,7}+["'] )
    # In JSON within JSON, as many backslashes and the same quote end the text as begin it.
    (?: (?P<escape>\\{1,7}+)(?P<quote>["'])
        (?: [^"'\\] | (?!(?P=quote))["'] | (?!(?P=escape)(?P=quote))\\++. )++ (?: (?P=escape)(?P=quote) )?
      | "(?:[^"\\]|\\.)++(?:"|\\?\Z) | '(?:[^'\\]|\\.)++(?:'|\\?\Z)
      | (?: [^\s"',;&|)}\]\\] | \\++(?!["']) | \\++["'](?=\w) )++ )
    # All of a list.
    (?(list) (?: \s{0,3},\s{0,3} (?: \\{1,7}+["'][^"'\\]++\\{1,7}+["']
        | "(?:[^"\\]|\\.)++" | '(?:[^'\\]|\\.)++' | [^\s"',;&|)}\]\\]++ ) ){0,50}+ )
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

# All that may follow "password is" or "passwd" and is no password. Every other word may be one: a rule for
# endings would let "university", "butterfly" and "spring" pass.
_PREDICATES_TEXT: Final = """
    a about again all already also an and any as at bad be because been being blank by can cannot
    case-insensitive case-sensitive changed command compared correct currently database different
    disabled due either empty enabled encrypted entries entry expired false field file files for from
    given has hash hashed identical in incorrect invalid it its known less long longer mandatory masked
    missing more must never no none not now null ok old on only optional or out per plain policy program
    prompt protected redacted required reset right root rotated safe same secret set shorter should so
    still stored strong stronger sufficient that the there this to too tool true unchanged undefined
    unknown unset unused up used user users utility valid verified very was weak were what when where
    will with wrong yours
"""
_PREDICATES: Final = frozenset(_PREDICATES_TEXT.split())
# What else may follow in an ordinary sentence where less is certain: "password X", "api key is X".
_ORDINARY_TEXT: Final = """
    accepted access active allowed always anything argument attached authentication authorization
    automatically available before blocked broken but cached case changes character characters checked
    combination combo complexity compromised configured confirmation continue created default deleted
    denied deprecated derived dialog digits each else encoded encryption enough entered environment
    error errors everywhere exactly exhausted expiration expire expires expiry exposed failed failure
    fields first fixed found generated generation good guess hashes hashing have here hint if ignored
    inactive injected input instead invalidated issued itself just keep kept key keys later leaked
    letters link links loaded logged login lost malformed manager managers manually match mismatch
    mounted my needed needs new nil nothing once one our overdue overwritten page parameter passed
    permission please possible printed proceed prompts properly provided public read readable received
    recently recovery refreshed refused regenerated rejected removed renewed replaced requirement
    requirements resets returned revoked rotation rule rules secrets seen sent settings shared short
    shown signed some someone something sorry spaces stolen storage strength string successfully
    supplied supported text their they today token tokens tomorrow twice unavailable unique unless
    unlock unreadable unsafe unsupported updated using validated validation value values variable vault
    verification via well which while without written yesterday you your
"""
# Behind one of these, a sentence goes on as it likes.
_OPEN_TEXT: Final = """
    about after again already also and as at because been before being but by can cannot due during
    either for from has if in must neither never no not of on only or per should since so still than
    that to too until very via was were when where which while will with
"""
_OPEN_WORDS: Final = frozenset(_OPEN_TEXT.split())
_ORDINARY_WORDS: Final = _PREDICATES.union(_ORDINARY_TEXT.split(), _OPEN_WORDS)
_DONE_TO: Final = frozenset(("accepted", "found", "leaked", "refused", "rejected", "sent"))
"""No password where the sentence goes on: "sent to your address", and not "the password is sent"."""
_PASSWORD = r"pass(?:word|wd|phrase|code)|pwd"
_QUALIFIED_KEY = (
    r"(?:api|access|account|private|signing|encryption|master|routing|integration|service|secret)[-_ ]?key"
    r"|(?:auth|access|refresh|id|session|csrf|bot|api|bearer|secret)[-_ ]?token|client[-_ ]?secret"
)
_TOLD_TEXT = r"""
    (?: (?P<quote> \\{0,7}+ ["'`] )
        (?P<quoted> (?: (?!(?P=quote)) (?: \\++[^\n] | [^\\\n] ) ){3,200}+ ) (?P=quote) (?!\w)
      | ["'`]? (?P<bare> (?: [^\s"'`<>] | (?<=\w)'(?=\w) ){3,200}+ ) )
"""
_BEHIND_COLON = re.compile(rf"(?x) [ \t]{{1,3}} {_TOLD_TEXT}")
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
    {_TOLD_TEXT}
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
_WORD = r"(?:[^\s\"'`<>]|(?<=\w)'(?=\w)){1,200}+"
_NEXT_WORD = re.compile(
    rf"[ \t]{{1,3}}(?!(?:and|but|for|or|so|because|if|since|when|while|which)\s{{1,3}}"
    r"(?:the|it|its|he|she|we|you|your|my|his|her|they|this|that|user|username|login|i)\b)"
    rf"({_WORD})"
)
_MOST_WORDS: Final = 24
"""A phrase that is a password has no more: the longest that wallets make."""
_NO_SECRET_BEGINS: Final = ("(", "-", "/", "$", "|", "&", ";", "#", "")
_VARIABLE = re.compile(r"[A-Z]+(?:_[A-Z]+)+")
_CLAUSE_END: Final = ".,;:!?)]}"
_TRAILING: Final = _CLAUSE_END + "'\\"
# A program's name and what follows it, up to its next mention: searched for options once, not once for each.
_CURL = re.compile(
    r"(?i)\bcurl\b(?:(?!\bcurl\b)(?:\\[ \t\r]{0,3}\n|[^\n])){0,500}+"
    r"(?:(?!\bcurl\b)\S)*+(?:\n-\S*+(?:[ \t]\S++)?)?"
)
# In a text within JSON, backslashes stand before the quotes of a command.
_QUOTED_TEXT = r"""(?P<quote>\\{0,7}+["'])(?:(?!(?P=quote))(?:\\++[^\n]|[^\\\n])){1,200}+(?P=quote)"""
_BARE_TEXT = r"""(?:[^\s"'\\]|\\++(?!["'\s])|\\++["' ](?=\w))++"""
_CURL_OPTION = re.compile(
    r"""(?i)([\s"'](?:-[a-z]{0,4}u|--user|--proxy-user)(?:[\s=]{0,3}|\\{0,7}+["']\s{0,3},\s{0,3})"""
    r"""(?P<quote>\\{0,7}+["'])?[^\s:"'\\]{0,100}:(?!//))"""
    r"""(?:(?(quote)(?:(?!(?P=quote))(?:\\++[^\n]|[^\\\n])){1,200}+(?=(?P=quote))|(?!))|"""
    # Of a shell's word, a part may be quoted.
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
_ELEMENT_WITH_NAME = re.compile(
    rf"""(?i)(\b(?:name|key|id)\s{{0,3}}=\s{{0,3}}\\{{0,7}}["']{_ELEMENT_NAME}\\{{0,7}}["'](?:\s[^<>]{{0,200}})?(?<!/)>(?:\s{{0,80}}+<value>)?+)"""
    r"(?!\[redacted\])(?:<!\[CDATA\[(?!\[redacted\])(?:[^\]]|\](?!\]>)){1,2048}+(?:\]\]>)?"
    r"|[^<>]{1,2048}+(?=</)|[^<>\s]{4,2048}+(?=\Z|<\Z))"
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
        text = _ELEMENT_WITH_NAME.sub(rf"\1{MASK}", text)
    if "lt;" in text:
        text = _ESCAPED_ELEMENT.sub(rf"\1{MASK}", text)
    if "value" in text.lower():
        text = _NAME_AND_VALUE.sub(rf"\1{MASK}", text)
    text = _CURL.sub(lambda found: _CURL_OPTION.sub(rf"\1{MASK}", found[0]), text)
    text = _MYSQL.sub(lambda found: _MYSQL_OPTION.sub(rf"\1{MASK}", found[0]), text)
    text = _SSHPASS.sub(rf"\1{MASK}", text)
    return _without_told(text)


def _without_told(text: str) -> str:
    """Mask the secrets that sentences tell."""
    parts: list[str] = []
    done = at = 0
    while found := _SENTENCE.search(text, at):
        start, end = _find_secret(found)
        if start < end:
            if found["old"] is not None and MASK not in found["old"]:
                # It may still be one elsewhere.
                parts += (text[done : found.start("old")], MASK)
                done = found.end("old")
            parts += (text[done:start], MASK)
            done = end
        at = max(end, found.end())
    return "".join((*parts, text[done:]))


def _find_secret(found: re.Match[str]) -> tuple[int, int]:
    """Return where the secret begins and ends that this sentence tells; both are 0 where it tells none."""
    if found["quoted"] is not None:
        given = MASK not in found["quoted"] and found["quoted"][0] != "[" and _is_quoted_secret(found)
        return found.span("quoted") if given else (0, 0)
    start = found.start("bare")
    text = found["bare"].rstrip(_TRAILING)
    if not text or MASK in found["bare"] or text[0] == "[":
        return 0, 0
    if behind := _find_behind_colon(found):
        return behind
    is_phrase = found["password"] is not None or found["secret"] is not None
    if is_phrase and (found["is"] is not None or found["set"] is not None):
        if _is_prose(found):
            return 0, 0
        *_, (last, word) = _clause(found)
        return start, last + len(word)
    if found["password"] and found["password"].lower() == "passwd" and not _has_verb(found):
        return _find_after_passwd(found)
    return (start, start + len(text)) if _is_given(found, text) else (0, 0)


def _find_behind_colon(found: re.Match[str]) -> tuple[int, int] | None:
    """Return where the secret stands in "password was sent: X" and "passwd bob: X"."""
    is_of_user = (found["password"] or "").lower() == "passwd" and not _has_verb(found)
    if not found["bare"].endswith(":") or not (is_of_user or found["is"] is not None):
        return None
    word = found["bare"].rstrip(_TRAILING).lower()
    if not is_of_user and word not in _ORDINARY_WORDS:
        return None  # the word before the colon is the secret
    behind = _BEHIND_COLON.match(found.string, found.end())
    if behind is None:
        return None
    if behind["quoted"] is not None:
        return behind.span("quoted")
    text = behind["bare"].rstrip(_TRAILING)
    if not text or text[0] in ("[", *_NO_SECRET_BEGINS) or text.lower() in _ORDINARY_WORDS:
        return 0, 0
    is_told = _is_random(text) or _ends_clause(behind)
    return (behind.start("bare"), behind.start("bare") + len(text)) if is_told else (0, 0)


def _clause(found: re.Match[str]) -> Iterator[tuple[int, str]]:
    """Yield the words up to the end of the clause, and where each begins."""
    start, word = found.start("bare"), found["bare"]
    for _ in range(_MOST_WORDS):
        yield start, word.rstrip(_TRAILING)
        following = _NEXT_WORD.match(found.string, start + len(word))
        if word[-1] in _CLAUSE_END or following is None or MASK in following[1]:
            return
        start, word = following.start(1), following[1]


def _has_verb(found: re.Match[str]) -> bool:
    return any(found[name] is not None for name in ("set", "is", "to", "colon"))


def _is_prose(found: re.Match[str]) -> bool:
    """Return whether a clause says something about a password, and not what it is."""
    known = _PREDICATES if found["password"] else _ORDINARY_WORDS
    words = (word.lower() for _, word in _clause(found))
    for word, following in itertools.pairwise(itertools.chain(words, ("",))):
        if word in _DONE_TO and following in _OPEN_WORDS:
            return True
        if word not in known:
            return False
        # "The password is again X" tells one; "is wrong again" goes on as it likes.
        if word in _OPEN_WORDS and not (word == "again" and known is _PREDICATES):
            return True
        known = _ORDINARY_WORDS
    return True


def _find_after_passwd(found: re.Match[str]) -> tuple[int, int]:
    """Return where the password stands, or a user and the password."""
    (start, first), *others = itertools.islice(_clause(found), 3)
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
    return len(text) >= _SHORTEST and re.search(r"\d", text) is not None and text[0] not in _NO_SECRET_BEGINS


def _is_quoted_secret(found: re.Match[str]) -> bool:
    """Return whether a quoted text is a secret: whatever a password is, was, or was set to, is one."""
    text = found["quoted"]
    if found["password"] or found["key"] or found["secret"]:
        if found["set"] is not None or found["is"] is not None:
            return not (found["key"] and _VARIABLE.fullmatch(text))
        if found["to"] is not None:
            return _is_behind(_SET_BEFORE, found)
    return _is_given(found, text)


def _is_given(found: re.Match[str], text: str) -> bool:
    """Return whether what follows the name of a secret is the secret, and no more about it."""
    known = _PREDICATES if found["password"] and found["quoted"] else _ORDINARY_WORDS
    if all(word.lower() in known for word in text.split()):
        return False
    is_named = found["password"] is not None or found["key"] is not None
    if not is_named and re.fullmatch(r"[\d.,_]+[%kKM]?", text):
        return False  # so many tokens
    if found["set"] is not None:
        return True
    if found["is"] is not None:
        if found["key"] and _VARIABLE.fullmatch(text):
            return False
        return is_named or _is_random(text) or _is_behind(_OWN_BEFORE, found)
    if found["to"] is not None:
        return _is_behind(_SET_BEFORE, found) and (_is_random(text) or _ends_clause(found))
    if found["colon"] is not None:
        return _is_random(text)
    if found["password"] is None:
        # The name of a token may follow, too.
        two_of_both = r"(?=(?:\D*\d){2})(?=(?:\d*[A-Za-z]){2})[A-Za-z0-9]{10,}"
        return re.fullmatch(two_of_both, text) is not None
    if found["quoted"] is not None:
        return True
    # "password X" may go on with any word.
    is_phrase = len(text) >= _SHORTEST_PHRASE and re.fullmatch(r"[A-Za-z]+(?:-[A-Za-z]+){2,}", text)
    return _is_random(text) or bool(is_phrase) or (_ends_clause(found) and _is_behind(_GIVEN_BEFORE, found))


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
