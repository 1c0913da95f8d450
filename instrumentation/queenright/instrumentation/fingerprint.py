"""
Fingerprints of arguments and results: equal when nothing that matters differs.

Detectors of repeats compare fingerprints, never content. Two values have one fingerprint
when they differ only in the order of keys, in the white space of JSON, or in what is made
anew for every call: ids of calls and requests, UUIDs and other generated ids, time stamps,
ages ("3 hours ago"), measured durations, memory addresses, temporary file names. Everything
else counts: numbers, names, page numbers, a percentage that moves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final

_TEXT_HEAD: Final = 16_384
_TEXT_TAIL: Final = 16_384
"""Of a longer text only the first and last part are searched for ids; all of it is hashed."""

_JSON_LIMIT: Final = 65_536
"""Longer text is not tried as JSON."""

_NODES: Final = 5_000
"""A container's further items are taken as they are."""

_DEPTH: Final = 24

_KEYS: Final = 4_096
"""So many keys are remembered at most."""

_MAX_KEYED: Final = 4_096
"""Keys with values that are looked at in one text; others are taken as they are."""

_MAX_TEXT: Final = _JSON_LIMIT
"""Characters of a container's texts that are searched for ids; all of them are hashed."""

_SEARCHED_FOR_ARGUMENTS: Final = 65_536
"""A longer result says more than its arguments."""
_SEARCHED_FOR_FAILURE: Final = 4_096
_MOST_TEXTS: Final = 16
_SHORTEST_SENTENCE: Final = 16
"""A tool that answers with a shorter text than this that it was given may have checked or looked it up."""
_SHORTEST_TEXT: Final = 4
"""A shorter text of the arguments may be in a result by chance."""

# Keys, in lower case and without `_`, `-`, `.`, whose plain values are made anew for every call.
_ID_KEYS = """
    callid toolcallid tooluseid functioncallid requestid reqid xrequestid traceid spanid parentid parentspanid
    traceparent correlationid messageid msgid eventid runid invocationid executionid responseid completionid
    idempotencykey nonce uuid guid ulid systemfingerprint
"""
_TIME_KEYS = """
    timestamp ts createdat updatedat startedat endedat finishedat completedat fetchedat retrievedat
    generatedat receivedat sentat cachedat checkedat loggedat servertime currenttime requesttime responsetime
    elapsed elapsedms elapsedseconds elapsedtime latency latencyms latencyseconds took tookms durationms
    executiontime executiontimems processingtime processingtimems walltime walltimeseconds
"""
_VOLATILE_KEYS: Final = frozenset((_ID_KEYS + _TIME_KEYS).split())
# These are as often real values (a shop's opening time, an hour to book): only a clock's reading is masked.
_MAYBE_KEYS: Final = frozenset(
    {"time", "now", "created", "modified", "updated", "started", "finished", "date", "datetime", "at"}
)

_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_END = r"(?![A-Za-z0-9])"

# What a generated id or a clock's reading looks like in text. Each begins with a character (class) and looks
# behind only then, so that the engine skips to candidates: 30 ns a character instead of 250.
_STAMPS = (
    re.compile(rf"[12](?<!\d.)\d\d\d([-/])\d\d\1\d\d[T ]{_CLOCK}(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?{_END}"),
    re.compile(rf" {_MONTH} (?:\d{{4}}| ?\d\d?) {_CLOCK}(?: (?:GMT|UTC|[+-]\d{{4}}|\d{{4}}))?{_END}"),
    re.compile(rf"\[{_CLOCK}\]"),
)
_HEXADECIMAL = re.compile(
    r"[0-9a-fA-F](?<![A-Za-z0-9].)(?:"
    r"[0-9a-fA-F]{7}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    # Neither a number nor a word; 40 and 64 digits are digests of content (a commit, a file), so values.
    rf"|[0-9a-fA-F]{{15,31}}{_END}(?<!\d{{16}})(?<![a-fA-F]{{16}})"
    rf"){_END}"
)
_ULID = re.compile(rf"[0-7](?<![A-Za-z0-9].)(?=[0-9]{{0,24}}[A-Z])[0-9A-HJKMNP-TV-Z]{{25}}{_END}")
_PREFIXED = re.compile(
    r"[_-](?<=[celgnpqstu].)(?:(?<=call.)|(?<=toolu.)|(?<=tooluse.)|(?<=chatcmpl.)|(?<=\breq.)|(?<=\bfc.)|(?<=\brs.)|(?<=\bresp.)"
    r"|(?<=\bmsg.)|(?<=\brun.)|(?<=\bevt.)|(?<=\bgen.))(?:(?=[A-Za-z]*\d)|(?=[A-Za-z]{16}))"
    r"[A-Za-z0-9]+(?![A-Za-z0-9_])"
)
_EPOCH = re.compile(rf"1(?<![A-Za-z0-9.].)[5-9]\d{{8}}(?:\.\d+|\d{{3}}|\d{{6}}|\d{{9}}){_END}")
_ADDRESS = re.compile(rf"0x[0-9a-fA-F]{{8,16}}{_END}")
_TEMPORARY = re.compile(r"/tmp[a-z0-9_]{8}(?![A-Za-z0-9_])")
_MEASURED = re.compile(
    r" (?:(?<=\bin.)|(?<=\btook.)|(?<=\bafter.)|(?<=\belapsed.)|(?<=\belapsed:.))"
    r"\d+(?:\.\d+)? ?(?:ns|µs|us|ms|s|secs?|seconds?)(?![A-Za-z])"
)
_MEASURED_ASIDE = re.compile(r"\(\d+\.\d+ ?(?:s|secs?|seconds?)\)")
# In quotes, or after "since", somebody chose this age.
_AGO = re.compile(
    r"[ (\n](?<!since.)(?:\d+|an?) (?:sec(?:ond)?|min(?:ute)?|hour|hr|day|week|month|year)s? ago(?![A-Za-z])"
)
# `key: value` in prose, log lines and the text of objects; which keys, `_unkeyed` decides.
_KEYED = re.compile(r"""[:=]\s?(?:\\?["'])?[a-zA-Z_.:+-]{0,64}+\d[\w.:+-]*""")
_LAST_WORD = re.compile(r"[A-Za-z][\w-]*\Z")
_WORD = re.compile(r"[^\W_]")
_POSITION = re.compile(
    r"(?i:(?<=\bline )|(?<=\blines )|(?<=\bcolumn )|(?<=\brow )|(?<=\bcol )|(?<=\bline)|(?<=\bL))\d+"
    r"|(?<=[\w)]:)\d+(?=[:,)\s]|\Z)|(?<=[(,])\d+(?=[,)])"
)
# A tool that does not report its failure may still return what a failure looks like.
_FAILURE_SHAPE = re.compile(
    r"Traceback \(most recent call last\)|^[ \t]*File \"[^\"\n]+\", line \d"
    r"|^\S+?:\d+(?::\d+)?: (?:fatal )?error\b|^[ \t]+at .+[:(]\d+(?::\d+)?\)?$|\bpanicked at "
    r"|^Exception in thread |^\S+\(\d+(?:,\d+)?\): error\b|^error(?:\[E\d+\])?: .*\n[ \t]*--> ",
    re.MULTILINE,
)
# What says that there is nothing: in words, or as values with an empty list and no other content.
_NOTHING_FOUND = re.compile(
    r"""["\s]*(?:exit[ _]code:?[ _]1\b|<returncode>\s*[01]\s*</returncode>|</?output>|[\s.()])*(?:"""
    r"no (?:output|content|data)|\[\]|None|null|nothing(?: was)? found[^\n]{0,60}"
    r"|(?:found )?(?:no|0|zero) (?!such )(?:[\w-]+ ){0,3}?"
    r"(?:match(?:es)?|results?|hits?|files?|records?|entries|items?|documents?|occurrences?)\b[^\n]{0,60}"
    r")?(?:</?output>|[\s.()])*"
    r"|\{(?='[^{}]*\[\])(?:'[\w-]+':(?:\[\]|None|[01]|True|False|~|\"~?),)+\}",
    re.IGNORECASE,
)
_NOTHING_FOUND_LIMIT: Final = 160
_BEGINS_NOTHING: Final = frozenset({"", *"nN0zZfFeE<[](.'o \n\""})
"""The second character of such a form: the first is that of its type."""
# Where none of these is, no id can be.
_TRIGGER = re.compile(r"\d|[_-][A-Za-z]{16}")
# A clock's reading has seconds; without them, somebody chose this time.
_READ_STAMP = re.compile(
    rf"\d{{4}}-\d\d-\d\d[T ](?!\d\d:\d\d:00(?!\.\d*[1-9])){_CLOCK} ?(?:Z|[+-]\d\d:?\d\d)?"
)
_CHOSEN_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::00(?:\.0+)?)?(?:Z|[+-]\d\d:?\d\d)?")


def fingerprint(value: object) -> str:
    """
    Return 16 hexadecimal characters: the same in every process for values that are the same in substance.

    A JSON text and the object it stands for have one fingerprint. Never raises; the work is
    bounded for long texts and big containers (all of them is hashed, only part is searched for ids).
    """
    return _digest(_canonical(value))


def result_fingerprint(result: object, arguments: object = None, *, failed: bool = False) -> str:
    """
    Return the fingerprint of what a tool call returned: of what it says that its arguments did not.

    Texts of the arguments are left out of it, so that two searches that find nothing for other words say the
    same, and what only repeats a sentence of them says nothing: that is ``NOTHING_NEW``. An empty result,
    and one that says so in words, is ``NOTHING_FOUND``. Of an error, also one that only looks like it (a
    traceback, a compiler's message), the numbers of lines and columns are left out too. Never raises.

    Args:
        result: What came back: text or any value.
        arguments: What the tool was called with; None if that is not known.
        failed: Whether the call failed.
    """
    canonical = _canonical(result)
    if arguments is not None and len(canonical) <= _SEARCHED_FOR_ARGUMENTS:
        repeats = False
        for text in _texts_of(arguments):
            if text not in canonical:
                if "~" not in canonical:
                    continue
                text = scrub(text)
                if text not in canonical:
                    continue
            canonical = canonical.replace(text, "~")
            repeats = repeats or len(text) >= _SHORTEST_SENTENCE
        if repeats and _WORD.search(canonical) is None:
            return NOTHING_NEW
    if (
        canonical[1:2] in _BEGINS_NOTHING
        and len(canonical) <= _NOTHING_FOUND_LIMIT
        and _NOTHING_FOUND.fullmatch(canonical) is not None
    ):
        return NOTHING_FOUND
    if failed or _FAILURE_SHAPE.search(canonical, 0, _SEARCHED_FOR_FAILURE) is not None:
        canonical = _POSITION.sub("#", canonical)
    return _digest(canonical)


def _digest(canonical: str) -> str:
    return blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _canonical(value: object) -> str:
    try:
        if type(value) is str:
            return _of_text(value)
        parts = _Parts()
        _write(value, parts, _DEPTH, None)
        return "".join(parts)
    except Exception:  # a hostile __repr__, a container changed by another thread, a depth without end
        return f"<{type(value).__qualname__}>"


def _texts_of(arguments: object) -> list[str]:
    """Return the texts that a call's arguments consist of, as they are in a canonical form, longest first."""
    if isinstance(arguments, str):
        said = arguments.strip()
        if said[:1] == "{" and len(said) <= _JSON_LIMIT:
            try:
                arguments = json.loads(said)
            except (ValueError, RecursionError):
                return []  # cut
        if isinstance(arguments, str):
            return [said] if len(said) >= _SHORTEST_TEXT else []
    if not isinstance(arguments, Mapping):
        return []
    texts: list[str] = []
    for value in list(arguments.values())[:_MOST_TEXTS]:
        each = value[:_MOST_TEXTS] if isinstance(value, list | tuple) else (value,)
        texts += [one.strip() for one in each if isinstance(one, str)]
    texts = [text for text in texts if len(text) >= _SHORTEST_TEXT]
    return sorted(texts, key=len, reverse=True)[:_MOST_TEXTS] if len(texts) > 1 else texts


def _of_text(text: str) -> str:
    """Return the canonical form of a text on the top level: JSON as its object."""
    text = text.strip()
    if text[:1] in "{[" and len(text) <= _JSON_LIMIT and text[-1:] in "}]":
        try:
            parsed = json.loads(text)
        except ValueError:
            pass
        else:
            parts = _Parts()
            _write(parsed, parts, _DEPTH, None)
            return "".join(parts)
    return '"' + scrub(text)


def scrub(text: str) -> str:
    """Return ``text`` with generated ids, time stamps and measured durations replaced by ``~``."""
    if len(text) <= _TEXT_HEAD + _TEXT_TAIL:
        return text if _TRIGGER.search(text) is None else _scrub(text)
    return _scrub(text[:_TEXT_HEAD]) + text[_TEXT_HEAD:-_TEXT_TAIL] + _scrub(text[-_TEXT_TAIL:])


def _scrub(text: str) -> str:
    # Each pattern is looked for only where the shape of what it finds is: with every digit as 0, and every
    # hexadecimal digit as 0, shapes are plain substrings, which are found twenty times as fast as a pattern.
    raw = text.encode("utf-8", "surrogatepass")
    digits = raw.translate(_DIGITS_AS_0)
    size = len(text)
    if b":" in raw or b"=" in raw:
        if b"00:00:00" in digits:
            for pattern in _STAMPS:
                text = pattern.sub("~", text)
        text = _KEYED.sub(_unkeyed, text, _MAX_KEYED)
    if size >= 16:
        hexadecimal = raw.translate(_HEXADECIMAL_AS_0)
        if _HEXADECIMAL_SHAPE in hexadecimal or _UUID_SHAPE in hexadecimal:
            text = _HEXADECIMAL.sub("~", text)
        if size >= 26 and _ULID_SHAPE in raw.translate(_CAPITALS_AS_0):
            text = _ULID.sub("~", text)
    if b"_" in raw or b"-" in raw:
        text = _PREFIXED.sub("~", text)
    if b"0000000000" in digits:
        text = _EPOCH.sub("~", text)
    if b"0x" in raw:
        text = _ADDRESS.sub("~", text)
    if b"/tmp" in raw:
        text = _TEMPORARY.sub("~", text)
    if b" 0" in digits and _MEASURED_SHAPE.search(digits) is not None:
        text = _MEASURED.sub("~", text)
    if b"s)" in raw:
        text = _MEASURED_ASIDE.sub("~", text)
    if b" ago" in raw:
        text = _AGO.sub("~", text)
    return text


def _as_0(characters: bytes) -> bytes:
    return bytes.maketrans(characters, b"0" * len(characters))


_DIGITS_AS_0: Final = _as_0(b"0123456789")
_HEXADECIMAL_AS_0: Final = _as_0(b"0123456789abcdefABCDEF")
_CAPITALS_AS_0: Final = _as_0(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")
_HEXADECIMAL_SHAPE: Final = b"0" * 16
_UUID_SHAPE: Final = b"00000000-0000-0000-0000-000000000000"
_ULID_SHAPE: Final = b"0" * 26
_MEASURED_SHAPE: Final = re.compile(
    rb" 0(?:(?<=\bin..)|(?<=\btook..)|(?<=\bafter..)|(?<=\belapsed..)|(?<=\belapsed:..))"
)


def _unkeyed(found: re.Match[str]) -> str:
    """Return ``key: value`` without its value if the key is one whose values are made anew for every call."""
    text, start = found.string, found.start()
    # Before the colon: a space, a quote, a backslash.
    end = start - 1 if start and text[start - 1].isspace() else start
    end = end - 1 if end and text[end - 1] in "\"'" else end
    end = end - 1 if end and text[end - 1] == "\\" else end
    word = _LAST_WORD.search(text, max(0, end - 24), end)
    if word is None or _plain(word[0]) not in _VOLATILE_KEYS:
        return found[0]
    return "~"


class _Parts(list[str]):
    """What has been written of a container, and how many characters of its texts are still searched."""

    left = _MAX_TEXT


def _write(value: Any, parts: _Parts, depth: int, key: str | None) -> None:
    """Append the canonical form of ``value``, the value of ``key``, to ``parts``."""
    kind = type(value)
    if kind is str:
        parts.left -= len(value)
        if parts.left < 0 or (key is not None and _CHOSEN_STAMP.fullmatch(value)):
            parts.append('"' + value)
        elif value[:1] in ("{", "[") and depth > 0:
            parts.append(_of_text(value))
        else:
            parts.append('"' + scrub(value))
    elif kind is int or kind is float or kind is bool or value is None:
        parts.append(repr(value))
    elif depth <= 0 or len(parts) > _NODES:
        parts.append(_dump(value) if depth > 0 else "...")
    elif isinstance(value, Mapping):
        _write_mapping(value, parts, depth)
    elif isinstance(value, list | tuple):
        parts.append("[")
        for index, item in enumerate(value):
            if len(parts) > _NODES:
                parts.append(_dump(value[index:]))
                break
            _write(item, parts, depth - 1, None)
            parts.append(",")
        parts.append("]")
    else:
        parts.append(_described(value))


def _write_mapping(value: Mapping[Any, Any], parts: _Parts, depth: int) -> None:
    try:
        keys = sorted(value)
    except TypeError:  # keys of several types
        keys = sorted(value, key=repr)
    parts.append("{")
    for index, key in enumerate(keys):
        if len(parts) > _NODES:
            parts.append(_dump({rest: value[rest] for rest in keys[index:]}))
            break
        item = value[key]
        name = key if type(key) is str else repr(key)
        known = _keys.get(name)
        if known is None:
            known = _know(name)
        if known[1] is not None and known[1](item):
            parts.append(known[0] + "~,")
            continue
        parts.append(known[0])
        _write(item, parts, depth - 1, name)
        parts.append(",")
    parts.append("}")


_keys: Final[dict[str, tuple[str, Callable[[object], bool] | None]]] = {}
"""Keys met before: how they are written, and what tells a value that is made anew for every call."""


def _know(key: str) -> tuple[str, Callable[[object], bool] | None]:
    plain = _plain(key)
    test: Callable[[object], bool] | None = None
    if plain in _VOLATILE_KEYS:
        test = _is_plain_value
    elif plain in ("duration", "durationseconds"):
        test = _is_measured
    elif plain in _MAYBE_KEYS:
        test = _is_read_from_a_clock
    known = (f"{key!r}:", test)
    if len(_keys) < _KEYS and len(key) < 100:
        _keys[key] = known
    return known


def _is_plain_value(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_measured(value: object) -> bool:
    return isinstance(value, float)


def _is_read_from_a_clock(value: object) -> bool:
    if isinstance(value, str):
        return _READ_STAMP.fullmatch(value) is not None
    return isinstance(value, int | float) and value >= 1_000_000_000


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "").replace(".", "")


def _described(value: object) -> str:
    """Return the canonical form of something that is no JSON value."""
    if isinstance(value, str | bool | int | float):  # subclasses: enumerations and the like
        return '"' + scrub(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return "b" + blake2b(value, digest_size=8).hexdigest()
    if isinstance(value, set | frozenset):
        parts: list[_Parts] = []
        for item in value:
            parts.append(_Parts())
            _write(item, parts[-1], 2, None)
        return "(" + ",".join(sorted("".join(part) for part in parts)) + ")"
    return "<" + scrub(repr(value))


_dump: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_described).encode

NOTHING_NEW: Final = _digest("~")
"""Of a result that only repeats its arguments."""

NOTHING_FOUND: Final = _digest("")
"""Of a result that is empty, or says that there is nothing."""
