from __future__ import annotations

import pytest

from queenright.instrumentation.redaction import MASK, hide
from queenright.judge.quoting import sanitise
from queenright.judge.redacting_model import MaskedStream
from tests.instrumentation.test_redaction import SECRETS
from tests.instrumentation.test_redaction_shapes import SHAPES

SECRET_SENTENCES = [
    "The password is correct horse battery staple, and it works.",
    "the api key for the hive is\nAbc123def",
    "password:\n\n  hunter2 is it",
    "passwd bob: hunter2 now",
    "password changed from hunter1 to hunter2. Then more",
    'tokens: ["a1b2c3", \n "d4e5f6"] and more',
    "<password>two. words</password> and more",
    "curl https://x. now\n-u a:hunter2 and more",
    "password **hunter2**. It is so. password `hunter3` there",
    '{"password": "a. long one\nof two lines", "x": 1}',
    "Basic dXNlcjpwYXNzd29yZA== and Bearer abcdef0123456789 then",
    "the secret is out. The secret is swarm of nine bees. Yes",
]


def stream_text(text: str, size: int = 1) -> list[str]:
    output: list[str] = []
    masked_stream = MaskedStream(output.append)
    for start in range(0, len(text), size):
        masked_stream.add(text[start : start + size])
    return output


@pytest.mark.parametrize(
    "text", [*(template.format(secret) for template, secret in SECRETS), *SHAPES.values(), *SECRET_SENTENCES]
)
@pytest.mark.parametrize("prefix", ["", "I looked at it. ", "What was set is\n"])
def test_streamed_text_keeps_its_masks(text: str, prefix: str) -> None:
    full_text = f"{prefix}{text}. That is all, and more follows.\nThe end"
    masked_text = str(sanitise(full_text))

    assert masked_text.endswith("The end")
    for size in (1, 7):
        assert masked_text.startswith("".join(stream_text(full_text, size)))


def test_longer_mask_does_not_cut_the_beginning() -> None:
    assert sanitise("I saw pwd=a there") == f"I saw pwd={MASK} there"


def test_text_is_streamed_word_by_word() -> None:
    assert stream_text("It repeats one call. ") == ["It ", "repeats ", "one ", "call. "]


def test_sentence_that_names_a_secret_is_streamed_whole() -> None:
    assert stream_text("It used the token budget. It stops. ")[:4] == [
        "It ",
        "used ",
        "the ",
        "token budget. ",
    ]


def test_hidden_value_of_several_words_is_masked() -> None:
    hide(["nine wild queens of the comb"])

    output = "".join(stream_text("These are nine wild queens of the comb, and that is all. "))

    assert output == f"These are {MASK}, and that is all. "


def test_letter_by_letter_input_is_not_slow() -> None:
    text = "The worker repeats the same call with the same result again and again. " * 60

    assert "".join(stream_text(text)) == text
