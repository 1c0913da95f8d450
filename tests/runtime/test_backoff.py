from random import Random

from hypothesis import given
from hypothesis import strategies as st

from queenright.runtime.nodes.model_request import backoff

SEEDS = st.integers(0, 2**32)


@given(attempt=st.integers(0, 200), seed=SEEDS)
def test_wait_doubles_up_to_the_cap_with_jitter(attempt: int, seed: int) -> None:
    max_wait = min(60.0, 2.0**attempt)

    assert max_wait / 2 <= backoff(attempt, random=Random(seed)) <= max_wait


@given(attempt=st.integers(0, 20), retry_after=st.floats(0, 10_000), seed=SEEDS)
def test_wait_is_at_least_retry_after(attempt: int, retry_after: float, seed: int) -> None:
    assert backoff(attempt, retry_after=retry_after, random=Random(seed)) >= retry_after


def test_backoff_has_jitter() -> None:
    random = Random(1)

    assert len({backoff(3, random=random) for _ in range(100)}) == 100
