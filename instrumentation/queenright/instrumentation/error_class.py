"""
Error classes: errors of one class have the same cause and differ only in names, paths and numbers.

Clients report an error's type in many ways: an exception's name, `error`, an exit code, or not at all. If the
type is not specific, the class comes from the text. Recorded runs and live telemetry use the same functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Final

from queenright.instrumentation.effect import READING, Effect

SHELL_REFUSED: Final = "refused by the shell"
"""Class of commands that a shell could not run: unknown command or invalid syntax."""

_CLASS_LIMIT: Final = 80
_TAIL_LENGTH: Final = 4_000
"""Characters at the end of a text that are searched for an error's name."""
_LINE_LIMIT: Final = 400
_MIN_ARGUMENT_LENGTH: Final = 3

_EXCEPTION_NAME: Final = re.compile(r"\b[A-Za-z_][\w.]{0,120}(?:Error|Exception|Timeout)\b")
_ERROR_WORD: Final = re.compile(
    r"error|exception|fail|fatal|denied|invalid|not found|no such|cannot|unable", re.IGNORECASE
)
_SENTENCE_END: Final = re.compile(r"(?<=[\w~)\]'\"])[.;!?] ")
_PHRASES: Final = "|".join(
    re.escape(status.phrase) for status in HTTPStatus if status >= HTTPStatus.BAD_REQUEST
)
# Parts in which errors of one class differ: quoted names, paths, ids, durations, numbers. Status codes
# ("HTTP 404", "404 Not Found") are kept.
_VARIABLE_PART: Final = re.compile(
    rf"""(['"`])(?:(?P<status>[45]\d\d) (?i:{_PHRASES})|.*?)\1"""
    rf"""|\b(?P<known>[45]\d\d)(?= (?i:{_PHRASES})\b)"""
    r"""|^(?P<first>[45]\d\d)(?=[: ]|$)(?![: ]*(?:\d|of\b|[mnu\u00b5]?s\b|(?:sec|min)(?:ond|ute)?s?\b))"""
    r"""|(?<!\S)[^\s/\\'"`]*+[/\\]\S*"""
    r"""|\b(?P<code>[45]\d\d)\b(?i:(?<=HTTP ...)|(?<=HTTP/1.1 ...)|(?<=(?:code|atus|rror)[ :=]...)"""
    r"""|(?<=(?:code|atus|rror): ...))"""
    r"""|\b[0-9a-fA-F]{8}(?:(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]*)\b"""
    r"""|\b\d+(?:[.,:]\d+)*(?: ?(?:[mnu\u00b5]s|s(?:ec(?:ond)?s?)?|min(?:ute)?s?)\b|\b)"""
    r"""|\b(?=[a-zA-Z_]*\d)\w+"""
)

_STATUSES: Final = ("code", "status", "known", "first")

_ONE_WORD: Final = re.compile(r"[\w.-]{1,60}")
_EDITING_EFFECTS: Final = frozenset({Effect.EDITS, Effect.SUBMITS})

_GENERIC: Final = re.compile(
    r"(?:(?:tool|command|execution|call|api|function|shell|runtime|internal|unknown)[ _]?)?"
    r"(?:error|failed|failure|exception|unknown|none|false)|\w{0,8}\.?_OTHER|other|ok"
    r"|(?:exit[ _]?(?:code|status)?[ _]?)?-?\d+",
    re.IGNORECASE,
)
"""Types that are too generic to distinguish errors."""

# A shell starts the line with its name or a position in the command; text about shells does not.
_SHELL: Final = r"(?:\S*\b(?:ba|da|z|k|a|c|tc|fi)?sh(?:\[\d+\])?|\(eval\))(?::\d+)?"
_SHELL_REFUSED: Final = re.compile(
    rf"^{_SHELL}: (?:.{{0,300}}[: ])?(?:command not found\b|not found(?: \[.{{1,80}}\])?\s*$"
    r"|unknown command\b|syntax error\b|parse error near|unexpected EOF while looking for matching"
    r"|unexpected end of file)"
    rf"|^{_SHELL}: (?:line \d+: )?[^\s:]{{1,300}}: No such file or directory\s*$"
    r"|^[^\s:]{1,200}: [^\s:]{1,300}: cannot execute\b"
    r"|^(?:[^\s:]{1,80}: command not found|Unknown command:? \S{1,80})\s*$"
    r"|^.{0,300}\bline \d+: (?:.{1,300}: command not found\s*$|syntax error\b"
    r"|unexpected EOF while looking for matching|unexpected end of file)"
    r"|^.{0,200}\bis not recognized as (?:an?|the) (?:internal or external command"
    r"|name of a cmdlet|\w+ ?command\b)"
    r"|^The term '.{1,200}' is not recognized\b|\bCommandNotFoundException\b"
    r"|\bCommand ['`\"].{1,80}['`\"] not found\b|: executable file not found in [$%]PATH"
    r"|<returncode>12[67]</returncode>|^.{0,40}\bexit(?:ed with)?(?: code| status)?[: ]{1,2}12[67]\b",
    re.MULTILINE | re.IGNORECASE,
)
# Every refusal of a shell contains one of these; searching for them takes a tenth of the time.
_SHELL_HINT: Final = re.compile(
    r"not found|yntax error|arse error|unexpected (?:EOF|end)|recognized|ommandNotFound|nknown command"
    r"|cannot execute|No such file|12[67]|COMMAND NOT"
)

NOT_ACCEPTED: Final = "not accepted"
"""Class of responses that reject a submission."""

_NOT_ACCEPTED: Final = re.compile(
    r"(?:\W*|.*[.!:\n]\s*)(?:(?:the|your|this) )?(?:\w+ )?(?:(?:is|was|has been) )?"
    r"(?:not (?:yet )?accepted|rejected)(?: yet)?\W*",
    re.IGNORECASE | re.DOTALL,
)
_REFUSES_EDIT: Final = re.compile(
    r"\W*(?:error\b|failed\b|failure\b|invalid\b|rejected\b|refused\b|denied\b|no match"
    r"|not (?:yet )?accepted\b"
    r"|(?:could|can|did) ?not\b|unable to\b"
    r"|[^.!:;,\n]{1,120}\b(?:failed(?=\W*[.!:\n]|\W*$)|failed to \w|unable to \w"
    r"|(?:could|can|did|does|was|were) ?n[o']t (?:be )?(?:appl|match|found\b|edit|chang|updat|replac|writ"
    r"|modif|accept|unique\b|valid\b|pars|locat|sav)))",
    re.IGNORECASE,
)
"""Matches a result whose first sentence starts with the failure, or reports it for the submission."""
_REFUSES_CALL: Final = re.compile(
    r"\W*(?:(?:invalid|unknown|unrecogni[sz]ed|illegal|unsupported) "
    r"(?:action|command|tool|function|operation|argument|input|parameter)s?\b"
    r"|(?:HTTP(?:/[\d.]+)?|status(?: code)?:?) [45]\d\d\b)",
    re.IGNORECASE,
)
_FAILED_STATUS: Final = frozenset({"error", "failed", "failure"})
_FAILURE_KEY: Final = re.compile(r'"(?:error|success|ok|isError|is_error|status)"')
"""Keys that may report a failure; text without any of them is not parsed."""
_END_LENGTH: Final = 60
_MAX_REFUSAL_LENGTH: Final = 400
"""Characters; a longer result without a reported failure is regular output."""


def is_refused_by_shell(text: str) -> bool:
    """Return whether a text is a shell's error about a command that it could not run."""
    text = text[-_TAIL_LENGTH:]
    return _SHELL_HINT.search(text) is not None and _SHELL_REFUSED.search(text) is not None


def find_unreported_failure(result: object, effect: str | None, arguments: object = None) -> str:
    """
    Return the class of a failure in the result of a call that reported no failure; "" if there is none.

    Failures are commands that the shell could not run, actions that the tool does not know, rejected
    submissions and edits, and objects with an error. Results of reading calls are skipped, because they may
    quote such text.
    """
    if effect in READING:
        return ""
    if isinstance(result, str) and result[:1] == "{" and len(result) <= _TAIL_LENGTH:
        if _FAILURE_KEY.search(result) is None:
            return ""
        try:
            result = json.loads(result)
        except (ValueError, RecursionError):
            return ""  # truncated, or not JSON
    if isinstance(result, Mapping):
        return _find_object_failure(result, arguments)
    if not isinstance(result, str) or len(result) > _MAX_REFUSAL_LENGTH:
        return ""
    if is_refused_by_shell(result):
        return SHELL_REFUSED
    ending = result[-_END_LENGTH:]
    if ("ccepted" in ending or "ejected" in ending) and _NOT_ACCEPTED.fullmatch(result) is not None:
        return NOT_ACCEPTED
    refusal_pattern = _REFUSES_EDIT if effect in _EDITING_EFFECTS else _REFUSES_CALL
    return classify_error_text(result, arguments) if refusal_pattern.match(result) is not None else ""


def _find_object_failure(result: Mapping[str, object], arguments: object) -> str:
    """Return the class of the failure that an object reports, by its flags or its error."""
    error = result.get("error")
    if isinstance(error, Mapping):
        error = error.get("message") or error.get("type") or "error"
    flags = [result.get(name) for name in ("success", "ok")]
    is_failed = (
        False in flags
        or True in (result.get("isError"), result.get("is_error"))
        or str(result.get("status")).lower() in _FAILED_STATUS
    )
    if not is_failed and (not error or True in flags):
        return ""
    text = next((text for text in (error, result.get("message")) if isinstance(text, str) and text), "error")
    return classify_error_text(text, arguments)


def classify_error_text(text: str, arguments: object = None) -> str:
    """
    Return the class of an error's text: the name of its exception, otherwise its first sentence, generalized.

    Names, paths, numbers and text repeated from the call's arguments are replaced by ``~``. ``error`` if the
    text is empty.

    Args:
        text: The reported text; only its last 4,000 characters are used.
        arguments: The arguments of the call; None if unknown.
    """
    text = text[-_TAIL_LENGTH:]
    if is_refused_by_shell(text):
        return SHELL_REFUSED
    if ("Error" in text or "Exception" in text or "Timeout" in text) and (
        exception_names := _EXCEPTION_NAME.findall(text)
    ):
        return str(exception_names[-1])[:_CLASS_LIMIT]
    lines = [line.strip() for line in reversed(text.splitlines()) if line and not line.isspace()]
    line = next((line for line in lines if _ERROR_WORD.search(line)), lines[0] if lines else "")
    for argument in _list_strings(arguments):
        line = line.replace(argument, "~")
    line = _SENTENCE_END.split(line, maxsplit=1)[0]
    prefix, _, last_word = line.rpartition(": ")
    if (
        " " in prefix
        and _ONE_WORD.fullmatch(last_word) is not None
        and _ERROR_WORD.search(prefix) is not None
    ):
        line = f"{prefix}: ~"  # the last word is a value
    return (
        _VARIABLE_PART.sub(
            lambda match: next(filter(None, match.group(*_STATUSES)), "~"), line[:_LINE_LIMIT]
        )[:_CLASS_LIMIT]
        or "error"
    )


def classify_error(error_type: str, text: str) -> str:
    """
    Return the class of an error from its type, or from its text where the type is generic.

    Return "" if neither identifies the error, such as ``error`` or an exit code alone: errors without a class
    never count as the same error.
    """
    if error_type and not _is_generic(error_type):
        return error_type
    if error_type in _SHELL_EXITS or not text:
        return SHELL_REFUSED if error_type in _SHELL_EXITS else ""
    text_class = classify_error_text(text)
    return "" if _GENERIC.fullmatch(text_class) else text_class


@lru_cache(1024)
def _is_generic(error_type: str) -> bool:
    return _GENERIC.fullmatch(error_type) is not None


_SHELL_EXITS: Final = frozenset({"exit_code_126", "exit_code_127", "126", "127"})


def _list_strings(arguments: object) -> list[str]:
    """Return the strings among a call's arguments, longest first; very short ones are omitted."""
    if isinstance(arguments, str) and arguments[:1] == "{":
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return []  # truncated
    values = arguments.values() if isinstance(arguments, Mapping) else [arguments]
    texts = [value for value in values if isinstance(value, str) and len(value) >= _MIN_ARGUMENT_LENGTH]
    return sorted(texts, key=len, reverse=True)
