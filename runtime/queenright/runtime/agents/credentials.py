"""Environment variables that an agent needs, and which of them are missing. Values are never shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from queenright.instrumentation.errors import QueenrightError
from queenright.instrumentation.redaction import hide

PROVIDER_VARIABLES: Final[Mapping[str, tuple[str, ...]]] = {
    "anthropic": ("ANTHROPIC_API_KEY",),
    "azure": ("AZURE_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": ("FIREWORKS_API_KEY", "FIREWORKS_AI_API_KEY"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "mistral": ("MISTRAL_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY",),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "together_ai": ("TOGETHERAI_API_KEY", "TOGETHER_API_KEY"),
    "xai": ("XAI_API_KEY",),
}
"""Variables by the prefix of a litellm model name; one of them must be set. Other prefixes are unknown."""

# Models that litellm accepts without a prefix, by the start of the name.
_MODELS_WITHOUT_PREFIX: Final = (
    (re.compile(r"gpt-|chatgpt-|o[1-9](?:-|$)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
)

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class MissingCredentialError(QueenrightError):
    """Raised when a required environment variable is not set."""

    def __init__(self, variables: Iterable[str], required_by: str) -> None:
        self.variables = tuple(variables)
        names = ", ".join(self.variables)
        super().__init__(f"{required_by}: not set in the environment: {names}; set it and try again.")


def get_model_variables(model: str) -> tuple[str, ...]:
    """Return the variables for ``model``, one of which must be set; empty if none is needed or known."""
    prefix, slash, _ = model.partition("/")
    if slash:
        return PROVIDER_VARIABLES.get(prefix, ())
    for pattern, provider in _MODELS_WITHOUT_PREFIX:
        if pattern.match(model):
            return PROVIDER_VARIABLES[provider]
    return ()


def find_missing_credentials(
    names: Iterable[str], models: Iterable[str], environment: Mapping[str, str]
) -> list[str]:
    """
    Return the names of variables that are unset or empty; ``A or B`` where either is enough.

    Args:
        names: Variables that the agent declares.
        models: Names of the models that it uses.
        environment: The environment, usually ``os.environ``.
    """
    alternatives = [(name,) for name in names] + [get_model_variables(model) for model in models]
    missing = [
        " or ".join(variables)
        for variables in alternatives
        if variables and not any(map(environment.get, variables))
    ]
    return list(dict.fromkeys(missing))


def hide_variables(names: Iterable[str], models: Iterable[str], environment: Mapping[str, str]) -> None:
    """
    Mask the values of variables wherever text leaves the process.

    Args:
        names: Variables that hold credentials.
        models: Model names; the variables that their providers read are masked too.
    """
    model_variables = [name for model in models for name in get_model_variables(model)]
    hide(environment.get(name, "") for name in (*names, *model_variables))


def find_references(text: str) -> list[str]:
    """Return the variables that ``text`` references as ``${NAME}``, in order."""
    return _REFERENCE.findall(text)


def substitute_variables(text: str, environment: Mapping[str, str], *, required_by: str) -> str:
    """
    Replace each ``${NAME}`` in ``text`` with the value of the variable.

    Raises:
        MissingCredentialError: Variables are not set; lists all of them.
    """
    missing = [name for name in dict.fromkeys(find_references(text)) if name not in environment]
    if missing:
        raise MissingCredentialError(missing, required_by)
    return _REFERENCE.sub(lambda match: environment[match[1]], text)
