"""
Fingerprints of arguments and results, which are equal if nothing relevant differs.

Loop detectors compare fingerprints, never content. Two values have the same fingerprint if they differ
only in the order of keys, in JSON whitespace, or in values that are new for every call: call and request
ids, UUIDs and other generated ids, timestamps, ages ("3 hours ago"), measured durations, memory addresses,
temporary file names. All other differences count: numbers, names, page numbers, a changing percentage.

An id in arguments usually names what the call is about. ``arguments_fingerprint`` ignores only ids and times
of the call itself, by their keys.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final
from uuid import UUID

_TEXT_HEAD: Final = 16_384
_TEXT_TAIL: Final = 16_384
"""Only the head and tail of a longer text are searched for ids; all of it is hashed."""

_JSON_LIMIT: Final = 65_536
"""Longer text is not parsed as JSON."""

_MAX_NODES: Final = 5_000
"""Maximum parts of a container that are normalized; the rest is hashed unchanged."""

_MAX_DEPTH: Final = 24

_MAX_CACHED_KEYS: Final = 4_096
"""Maximum number of cached keys."""

_MAX_KEYED: Final = 4_096
"""Maximum ``key: value`` pairs that are checked in one text."""

_MAX_TEXT: Final = _JSON_LIMIT
"""Characters of a container's strings that are searched for ids; all of them are hashed."""

_MAX_SEARCHED_FOR_ARGUMENTS: Final = 65_536
"""A longer result contains more than its arguments."""
_MAX_SEARCHED_FOR_FAILURE: Final = 4_096
_MAX_TEXTS: Final = 16
_MIN_SENTENCE_LENGTH: Final = 16
"""A result that repeats a shorter argument may be an answer, for example of a lookup."""
_MIN_TEXT_LENGTH: Final = 4
"""A shorter argument may be in a result by chance."""

# Keys, in lower case and without `_`, `-`, `.`, whose scalar values are new for every call.
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
# Ids of the call itself. Not of a request: a call may decide about one.
_CALL_ID_KEYS: Final = """
    callid toolcallid tooluseid functioncallid xrequestid traceid spanid parentspanid
    traceparent correlationid invocationid idempotencykey nonce
"""
_CALL_KEYS: Final = frozenset(_CALL_ID_KEYS.split())
_TIME_OF_CALL: Final = frozenset({"timestamp", "now", "currenttime", "requesttime"})
# These may also be real values (opening hours, a time to book): only clock readings are masked.
_MAYBE_KEYS: Final = frozenset(
    {"time", "now", "created", "modified", "updated", "started", "finished", "date", "datetime", "at"}
)

_CLOCK = r"\d\d:\d\d:\d\d(?:[.,]\d+)?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_END = r"(?![A-Za-z0-9])"

# Generated ids and clock readings in text. Each pattern starts with a character (class) followed by a
# lookbehind, so that the engine skips to candidates: 30 ns per character instead of 250.
_STAMPS = (
    re.compile(rf"[12](?<!\d.)\d\d\d([-/])\d\d\1\d\d[T ]{_CLOCK}(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?{_END}"),
    re.compile(rf" {_MONTH} (?:\d{{4}}| ?\d\d?) {_CLOCK}(?: (?:GMT|UTC|[+-]\d{{4}}|\d{{4}}))?{_END}"),
    re.compile(rf"\[{_CLOCK}\]"),
)
_HEXADECIMAL = re.compile(
    r"[0-9a-fA-F](?<![A-Za-z0-9].)(?:"
    r"[0-9a-fA-F]{7}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
    # Neither a number nor a word. Digests of content (a commit, a file) have 40 or 64 digits and are values.
    rf"|[0-9a-fA-F]{{15,31}}{_END}(?<!\d{{16}})(?<![a-fA-F]{{16}})"
    rf"){_END}"
)
_ULID = re.compile(rf"[0-7](?<![A-Za-z0-9].)(?=[0-9]{{0,24}}[A-Z])[0-9A-HJKMNP-TV-Z]{{25}}{_END}")
_PREFIXED_ID = re.compile(
    r"[_-](?<=[celgnpqstu].)(?:(?<=call.)|(?<=toolu.)|(?<=tooluse.)|(?<=chatcmpl.)|(?<=\breq.)|(?<=\bfc.)|(?<=\brs.)|(?<=\bresp.)"
    r"|(?<=\bmsg.)|(?<=\brun.)|(?<=\bevt.)|(?<=\bgen.))(?:(?=[A-Za-z]*\d)|(?=[A-Za-z]{16}))"
    r"[A-Za-z0-9]+(?![A-Za-z0-9_])"
)
_EPOCH = re.compile(rf"1(?<![A-Za-z0-9.].)[5-9]\d{{8}}(?:\.\d+|\d{{3}}|\d{{6}}|\d{{9}}){_END}")
_ADDRESS = re.compile(rf"0x[0-9a-fA-F]{{8,16}}{_END}")
_TEMPORARY = re.compile(r"/tmp[a-z0-9_]{8}(?![A-Za-z0-9_])")
_MEASUREMENT = re.compile(
    r" (?:(?<=\bin.)|(?<=\btook.)|(?<=\bafter.)|(?<=\belapsed.)|(?<=\belapsed:.))"
    r"\d+(?:\.\d+)? ?(?:ns|µs|us|ms|s|secs?|seconds?)(?![A-Za-z])"
)
_MEASURED_ASIDE = re.compile(r"\(\d+\.\d+ ?(?:s|secs?|seconds?)\)")
# An age in quotes or after "since" was chosen by someone, for example in a query.
_AGO = re.compile(
    r"[ (\n](?<!since.)(?:\d+|an?) (?:sec(?:ond)?|min(?:ute)?|hour|hr|day|week|month|year)s? ago(?![A-Za-z])"
)
# `key: value` in prose, log lines and serialized objects; `_mask_keyed_value` checks the key.
_KEY_WITH_NUMBER = re.compile(r"""[:=]\s?(?:\\?["'])?[a-zA-Z_.:+-]{0,64}+\d[\w.:+-]*""")
_LAST_WORD = re.compile(r"[A-Za-z][\w-]*\Z")
_WORD = re.compile(r"[^\W_]")
# A digit first, so that the engine skips to digits.
_POSITION = re.compile(
    r"\d(?:(?i:(?<=\bline .)|(?<=\blines .)|(?<=\bcolumn .)|(?<=\brow .)|(?<=\bcol .)|(?<=\bline.)|(?<=\bL.)"
    r"|(?<=#.))\d*"
    r"|(?<=[\w)]:.)\d*(?=[:,)\s]|\Z)|(?<=[(,].)\d*(?=[,)]))"
)
# Failure formats in results of tools that report no error status.
_FAILURE_SHAPE = re.compile(
    r"Traceback \(most recent call last\)|^[ \t]*File \"[^\"\n]+\", line \d"
    r"|^\S+?:\d+(?::\d+)?: (?:fatal )?error\b|^[ \t]*(?:  |\t)at .+[:(]\d+(?::\d+)?\)?$|\bpanicked at "
    r"|^Exception in thread |^\S+\(\d+(?:,\d+)?\): error\b|^error(?:\[E\d+\])?: .*\n[ \t]*--> ",
    re.MULTILINE,
)
_FAILURE_HINTS: Final = ("error", "Traceback", 'File "', "  at ", "\tat ", "panicked at ", "Exception in ")
# The same in a short text: a place, and a word of failure.
_PLACE: Final = re.compile(
    r"\d(?i:(?<=\bline .)|(?<=\bcolumn .)|(?<=\brow .)|(?<=\bcol .)|(?<=\bline.)|(?<=\bl.)|(?<=#.)"
    r"|(?<=\w:.)\d*:\d)"
)
_FAILURE_WORD: Final = re.compile(
    r"\b(?:error|fail(?:s|ed|ure)?|invalid|unexpected|bad|can(?:no|')t|could not|exception|missing|denied"
    r"|unable|undefined|unknown|illegal|malformed|mismatch|wrong|refused|nope)\b",
    re.IGNORECASE,
)
_MAX_SHORT_LENGTH: Final = 400
# A short result that reports a failure; "error rate" and "2 errors" are about something else.
_FAILURE: Final = re.compile(
    r"(?<!\d )(?:Error|Exception|Traceback)\b|^\W*(?:error:|fatal:|failed to\b)"
    r"|\b(?:refused|timed out|out of memory)\b",
    re.MULTILINE,
)
_FAILED_HINTS: Final = ("rror", "xception", "Traceback", "fatal", "failed", "refused", "timed out", "memory")
# Attempt numbers: a later attempt fails the same way.
_ATTEMPT: Final = re.compile(
    r"\b(?:attempt|retry)(?: (?:number|no\.?))?[ :=#]{0,2}\d+(?: ?(?:/|of|out of) ?\d+)?(?!\w)"
    r"|\b\d+(?:st|nd|rd|th)?(?: ?(?:/|of|out of) ?\d+)? (?:(?:failed|unsuccessful) )?"
    r"(?:attempts?|retr(?:y|ies)|tries)\b",
    re.IGNORECASE,
)
# Numbers that differ between equal failures: times, sizes. Not a code ("HTTP 404", "errno 111"), a count
# ("3 tests", "tests: 3") or a share ("3/9", "3 of 9", "3 %").
_NUMBER_OF_FAILURE: Final = re.compile(
    r"(?P<code>(?i:\b(?:HTTP(?:/[\d.]+)?|status(?: code)?|code|errno|WinError)[ :=]{1,2}\d+|\berror \d{3}\b))"
    r"|\d(?<![\w.,/:=-].)(?<![:=] .)[\d.,]*+"
    r"(?: ?(?:[nmu\u00b5]?s|sec(?:ond)?s?|min(?:ute)?s?|[KMGT]?i?B|bytes|times)\b"
    r"|(?! ?[\w/%]))"
)
# Some browsers number what they report; an action on a named element does not count pages.
_STEP_COUNT: Final = re.compile(
    r"\"?\W{0,3}(?:step|turn|action|iteration) #?\d+(?: ?(?:of|/) ?\d+)?\W+(?=\w)", re.IGNORECASE
)
_STEP_COUNT_BEGINS: Final = frozenset("sStTaAiI[(*#")
_ELEMENT_KEYS: Final = frozenset(
    {"ref", "selector", "element", "element_id", "bid", "xpath", "index", "coordinate"}
)
# A result without matches: as text, or as an object with an empty list.
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
_NOTHING_FOUND_STARTS: Final = frozenset({"", *"nN0zZfFeE<[](.'o \n\""})
"""Possible second characters; the first marks the type."""
# A text without any of these contains no id.
_TRIGGER = re.compile(r"\d|[_-][A-Za-z]{16}")
# A clock reading has seconds; a time without them was chosen by someone.
_READ_STAMP = re.compile(
    rf"\d{{4}}-\d\d-\d\d[T ](?!\d\d:\d\d:00(?!\.\d*[1-9])){_CLOCK} ?(?:Z|[+-]\d\d:?\d\d)?"
)
_CHOSEN_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::00(?:\.0+)?)?(?:Z|[+-]\d\d:?\d\d)?")


def fingerprint(value: object) -> str:
    """
    Return the fingerprint of a value: 16 hexadecimal characters, stable across processes.

    A JSON text and the object that it represents have the same fingerprint. Never raises. The work is bounded
    for long texts and large containers: all of them is hashed, only a part is searched for ids.
    """
    return _digest(_canonicalize(value))


def arguments_fingerprint(arguments: object) -> str:
    """
    Return the fingerprint of a call's arguments.

    Unlike ``fingerprint``, it ignores only what belongs to the call by its key (call and request ids, nonces,
    idempotency keys, the time of the call) next to other arguments, and temporary file names. Two calls about
    different messages, runs or UUIDs are different calls. Never raises.
    """
    return _digest(_canonicalize(arguments, is_arguments=True))


def result_fingerprint(result: object, arguments: object = None, *, has_failed: bool = False) -> str:
    """
    Return the fingerprint of a tool's result, without the text that it repeats from its arguments.

    Two searches that find nothing for different words therefore have the same fingerprint. A result that only
    repeats a sentence of its arguments is ``NOTHING_NEW``. An empty result, or one that says that nothing was
    found, is ``NOTHING_FOUND``. For an error, reported or with the shape of one (a traceback, a compiler's
    message), line and column numbers and the number of the attempt are ignored too. So are times and sizes in
    a text that reports a failure, if the arguments are equal. Codes ("HTTP 404") count. Never raises.

    Args:
        result: The result: text or any value.
        arguments: The arguments of the call; None if unknown.
        has_failed: Whether the call failed.
    """
    canonical = _canonicalize(result)
    if arguments is not None and len(canonical) <= _MAX_SEARCHED_FOR_ARGUMENTS:
        repeats = False
        for text in _list_texts(arguments):
            if text not in canonical:
                if "~" not in canonical:
                    continue
                text = scrub(text)
                if text not in canonical:
                    continue
            canonical = canonical.replace(text, "~")
            repeats = repeats or len(text) >= _MIN_SENTENCE_LENGTH
        if repeats and _WORD.search(canonical) is None:
            return NOTHING_NEW
    if (
        canonical[1:2] in _NOTHING_FOUND_STARTS
        and len(canonical) <= _NOTHING_FOUND_LIMIT
        and _NOTHING_FOUND.fullmatch(canonical) is not None
    ):
        return NOTHING_FOUND
    is_failure = has_failed or _has_failure_shape(canonical, arguments)
    if is_failure:
        canonical = _POSITION.sub("#", canonical)
    reports_failure = bool(arguments) and _reports_failure(canonical)
    if is_failure or reports_failure:
        canonical = _ATTEMPT.sub("#", canonical)
    if reports_failure:
        text_without_numbers = _NUMBER_OF_FAILURE.sub(lambda match: match["code"] or "#", canonical)
        if text_without_numbers != canonical:
            # With other arguments, the numbers may belong to another failure.
            canonical = text_without_numbers + _canonicalize(arguments, is_arguments=True)
    step_count = _STEP_COUNT.match(canonical) if canonical[1:2] in _STEP_COUNT_BEGINS else None
    if step_count is not None and _acts_on_element(arguments):
        canonical = canonical[step_count.end() :]
    return _digest(canonical)


def _has_failure_shape(canonical: str, arguments: object) -> bool:
    head = canonical[:_MAX_SEARCHED_FOR_FAILURE]
    # A search for words takes a tenth of the pattern's time.
    if any(word in head for word in _FAILURE_HINTS) and _FAILURE_SHAPE.search(head) is not None:
        return True
    # Without arguments, each call may concern another place.
    return (
        bool(arguments)
        and len(canonical) <= _MAX_SHORT_LENGTH
        and _PLACE.search(canonical) is not None
        and _FAILURE_WORD.search(canonical) is not None
    )


def _reports_failure(canonical: str) -> bool:
    """Return whether a text reports a failure."""
    if canonical[:1] != '"' or len(canonical) > _MAX_SEARCHED_FOR_FAILURE:
        return False
    if len(canonical) > _MAX_SHORT_LENGTH:
        return "Traceback " in canonical and _FAILURE_SHAPE.search(canonical) is not None
    return any(word in canonical for word in _FAILED_HINTS) and _FAILURE.search(canonical) is not None


def _acts_on_element(arguments: object) -> bool:
    """Return whether a call names an element of a page."""
    if isinstance(arguments, str) and arguments[:1] == "{":
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return False
    return isinstance(arguments, Mapping) and not _ELEMENT_KEYS.isdisjoint(arguments)


def _digest(canonical: str) -> str:
    return blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _canonicalize(value: object, *, is_arguments: bool = False) -> str:
    try:
        if type(value) is str:
            return _canonicalize_text(value, is_arguments=is_arguments)
        parts = _Parts(is_arguments=is_arguments)
        _append_value(value, parts, _MAX_DEPTH, None)
        return "".join(parts)
    except Exception:  # a __repr__ that raises, a container changed by another thread, endless recursion
        return f"<{type(value).__qualname__}>"


def _list_texts(arguments: object) -> list[str]:
    """Return the strings in a call's arguments, longest first."""
    if isinstance(arguments, str):
        text = arguments.strip()
        if text[:1] == "{" and len(text) <= _JSON_LIMIT:
            try:
                arguments = json.loads(text)
            except (ValueError, RecursionError):
                return []  # truncated JSON
        if isinstance(arguments, str):
            return [text] if len(text) >= _MIN_TEXT_LENGTH else []
    if not isinstance(arguments, Mapping):
        return []
    texts: list[str] = []
    for value in list(arguments.values())[:_MAX_TEXTS]:
        items = value[:_MAX_TEXTS] if isinstance(value, list | tuple) else (value,)
        texts += [item.strip() for item in items if isinstance(item, str)]
    texts = [text for text in texts if len(text) >= _MIN_TEXT_LENGTH]
    return sorted(texts, key=len, reverse=True)[:_MAX_TEXTS] if len(texts) > 1 else texts


def _canonicalize_text(text: str, *, is_arguments: bool) -> str:
    """Return the canonical form of a text; JSON becomes its object."""
    text = text.strip()
    if text[:1] in "{[" and len(text) <= _JSON_LIMIT and text[-1:] in "}]":
        try:
            json_value = json.loads(text)
        except ValueError:
            pass
        else:
            parts = _Parts(is_arguments=is_arguments)
            _append_value(json_value, parts, _MAX_DEPTH, None)
            return "".join(parts)
    return '"' + _mask(text, is_arguments=is_arguments)


def scrub(text: str) -> str:
    """Replace generated ids, timestamps and measured durations in ``text`` by ``~``."""
    if len(text) <= _TEXT_HEAD + _TEXT_TAIL:
        return text if _TRIGGER.search(text) is None else _scrub(text)
    return _scrub(text[:_TEXT_HEAD]) + text[_TEXT_HEAD:-_TEXT_TAIL] + _scrub(text[-_TEXT_TAIL:])


def _scrub(text: str) -> str:
    # Each pattern runs only if its shape is present. With every digit (or hexadecimal digit) mapped to 0, a
    # shape is a plain substring, which is found twenty times faster than a pattern.
    raw = text.encode("utf-8", "surrogatepass")
    digits = raw.translate(_DIGITS_AS_0)
    size = len(text)
    if b":" in raw or b"=" in raw:
        if b"00:00:00" in digits:
            for pattern in _STAMPS:
                text = pattern.sub("~", text)
        text = _KEY_WITH_NUMBER.sub(_mask_keyed_value, text, _MAX_KEYED)
    if size >= 16:
        hexadecimal = raw.translate(_HEXADECIMAL_AS_0)
        if _HEXADECIMAL_SHAPE in hexadecimal or _UUID_SHAPE in hexadecimal:
            text = _HEXADECIMAL.sub("~", text)
        if size >= 26 and _ULID_SHAPE in raw.translate(_CAPITALS_AS_0):
            text = _ULID.sub("~", text)
    if b"_" in raw or b"-" in raw:
        text = _PREFIXED_ID.sub("~", text)
    if b"0000000000" in digits:
        text = _EPOCH.sub("~", text)
    if b"0x" in raw:
        text = _ADDRESS.sub("~", text)
    if b"/tmp" in raw:
        text = _TEMPORARY.sub("~", text)
    if b" 0" in digits and _MEASURED_SHAPE.search(digits) is not None:
        text = _MEASUREMENT.sub("~", text)
    if b"s)" in raw:
        text = _MEASURED_ASIDE.sub("~", text)
    if b" ago" in raw:
        text = _AGO.sub("~", text)
    return text


def _mask(text: str, *, is_arguments: bool) -> str:
    if not is_arguments:
        return scrub(text)
    return _TEMPORARY.sub("~", text) if "/tmp" in text else text


def _map_to_zero(characters: bytes) -> bytes:
    return bytes.maketrans(characters, b"0" * len(characters))


_DIGITS_AS_0: Final = _map_to_zero(b"0123456789")
_HEXADECIMAL_AS_0: Final = _map_to_zero(b"0123456789abcdefABCDEF")
_CAPITALS_AS_0: Final = _map_to_zero(b"0123456789ABCDEFGHJKMNPQRSTVWXYZ")
_HEXADECIMAL_SHAPE: Final = b"0" * 16
_UUID_SHAPE: Final = b"00000000-0000-0000-0000-000000000000"
_ULID_SHAPE: Final = b"0" * 26
_MEASURED_SHAPE: Final = re.compile(
    rb" 0(?:(?<=\bin..)|(?<=\btook..)|(?<=\bafter..)|(?<=\belapsed..)|(?<=\belapsed:..))"
)


def _mask_keyed_value(match: re.Match[str]) -> str:
    """Return ``key: value``, with the value masked if the key's values are new for every call."""
    text, start = match.string, match.start()
    # Before the colon: a space, a quote, a backslash.
    end = start - 1 if start and text[start - 1].isspace() else start
    end = end - 1 if end and text[end - 1] in "\"'" else end
    end = end - 1 if end and text[end - 1] == "\\" else end
    word = _LAST_WORD.search(text, max(0, end - 24), end)
    if word is None or _normalize_key(word[0]) not in _VOLATILE_KEYS:
        return match[0]
    return "~"


class _Parts(list[str]):
    """The canonical form of a container so far, and how many more characters of strings to search for ids."""

    search_budget = _MAX_TEXT

    def __init__(self, *, is_arguments: bool) -> None:
        super().__init__()
        self.is_arguments = is_arguments


def _append_value(value: Any, parts: _Parts, depth: int, key: str | None) -> None:
    """Append the canonical form of ``value``, the value of ``key``, to ``parts``."""
    kind = type(value)
    if kind is str:
        parts.search_budget -= len(value)
        if parts.search_budget < 0 or (key is not None and _CHOSEN_STAMP.fullmatch(value)):
            parts.append('"' + value)
        elif value[:1] in ("{", "[") and depth > 0:
            parts.append(_canonicalize_text(value, is_arguments=parts.is_arguments))
        else:
            parts.append('"' + _mask(value, is_arguments=parts.is_arguments))
    elif kind is int or kind is float or kind is bool or value is None:
        parts.append(repr(value))
    elif depth <= 0 or len(parts) > _MAX_NODES:
        parts.append(_dump(value) if depth > 0 else "...")
    elif isinstance(value, Mapping):
        _write_mapping(value, parts, depth)
    elif isinstance(value, list | tuple):
        parts.append("[")
        for index, item in enumerate(value):
            if len(parts) > _MAX_NODES:
                parts.append(_dump(value[index:]))
                break
            _append_value(item, parts, depth - 1, None)
            parts.append(",")
        parts.append("]")
    else:
        parts.append(_canonicalize_other(value, is_arguments=parts.is_arguments))


def _write_mapping(value: Mapping[Any, Any], parts: _Parts, depth: int) -> None:
    try:
        keys = sorted(value)
    except TypeError:  # keys of several types
        keys = sorted(value, key=repr)
    parts.append("{")
    for index, key in enumerate(keys):
        if len(parts) > _MAX_NODES:
            parts.append(_dump({later_key: value[later_key] for later_key in keys[index:]}))
            break
        item = value[key]
        name = key if type(key) is str else repr(key)
        entry = _key_cache.get(name)
        if entry is None:
            entry = _classify_key(name)
        canonical_key, is_volatile, is_call_key = entry
        if parts.is_arguments:
            is_volatile = is_call_key if len(keys) > 1 else None
        if is_volatile is not None and is_volatile(item):
            parts.append(canonical_key + "~,")
            continue
        parts.append(canonical_key)
        _append_value(item, parts, depth - 1, name)
        parts.append(",")
    parts.append("}")


_ValueTest = Callable[[object], bool] | None

_key_cache: Final[dict[str, tuple[str, _ValueTest, _ValueTest]]] = {}
"""Cache by key: its canonical form, and tests for values that are new for every call: in any value, in
arguments."""


def _classify_key(key: str) -> tuple[str, _ValueTest, _ValueTest]:
    plain_key = _normalize_key(key)
    is_volatile: _ValueTest = None
    is_call_key: _ValueTest = None
    if plain_key in _VOLATILE_KEYS:
        is_volatile = _is_scalar
    elif plain_key in ("duration", "durationseconds"):
        is_volatile = _is_measured
    elif plain_key in _MAYBE_KEYS:
        is_volatile = _is_clock_reading
    if plain_key in _CALL_KEYS:
        is_call_key = _is_generated
    elif plain_key in _TIME_OF_CALL:
        is_call_key = _is_clock_reading
    entry = (f"{key!r}:", is_volatile, is_call_key)
    if len(_key_cache) < _MAX_CACHED_KEYS and len(key) < 100:
        _key_cache[key] = entry
    return entry


def _is_scalar(value: object) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _is_generated(value: object) -> bool:
    # A number usually identifies what the call is about, for example a person's request.
    return isinstance(value, str) and not value.isdigit()


def _is_measured(value: object) -> bool:
    return isinstance(value, float)


def _is_clock_reading(value: object) -> bool:
    if isinstance(value, str):
        return _READ_STAMP.fullmatch(value) is not None
    return isinstance(value, int | float) and value >= 1_000_000_000


def _normalize_key(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "").replace(".", "")


def _canonicalize_other(value: object, *, is_arguments: bool = False) -> str:
    """Return the canonical form of a value that is not JSON."""
    if isinstance(value, str | bool | int | float | UUID):  # subclasses: enumerations and the like
        return '"' + _mask(str(value), is_arguments=is_arguments)
    if isinstance(value, bytes | bytearray | memoryview):
        return "b" + blake2b(value, digest_size=8).hexdigest()
    if isinstance(value, set | frozenset):
        parts: list[_Parts] = []
        for item in value:
            parts.append(_Parts(is_arguments=is_arguments))
            _append_value(item, parts[-1], 2, None)
        return "(" + ",".join(sorted("".join(part) for part in parts)) + ")"
    return "<" + scrub(repr(value))


_dump: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_canonicalize_other).encode

NOTHING_NEW: Final = _digest("~")
"""Fingerprint of a result that only repeats its arguments."""

NOTHING_FOUND: Final = _digest("")
"""Fingerprint of a result that is empty, or says that nothing was found."""
