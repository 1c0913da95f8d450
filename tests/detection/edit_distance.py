"""
The edit distance of agent-loop-guard, forty times faster: its own function takes half an hour on these runs.

A property test checks that both return the same values.
"""

from __future__ import annotations


def normalized_edit_distance(s1: str, s2: str) -> float:
    """
    Return the Levenshtein distance divided by the longer length: 0.0 for equal texts, 1.0 if one is empty.

    Uses the bit-parallel algorithm of Myers (1999) in the form of Hyyrö (2003), one column per step.
    """
    if s1 == s2:
        return 0.0
    if not s1 or not s2:
        return 1.0
    return _distance(s1, s2) / max(len(s1), len(s2))


def _distance(pattern: str, text: str) -> int:
    places: dict[str, int] = {}
    for index, letter in enumerate(pattern):
        places[letter] = places.get(letter, 0) | 1 << index
    everything, last = (1 << len(pattern)) - 1, 1 << (len(pattern) - 1)
    more, less, distance = everything, 0, len(pattern)
    for letter in text:
        equal = places.get(letter, 0)
        vertical = equal | less
        equal |= ((equal & more) + more) ^ more
        up = less | (everything & ~(equal | more))
        down = more & equal
        distance += bool(up & last)
        distance -= bool(down & last)
        up = (up << 1) | 1
        down <<= 1
        more = (down | ~(vertical | up)) & everything
        less = up & vertical & everything
    return distance


def install() -> None:
    """Make agent-loop-guard use this function in this process."""
    from loop_guard import similarity

    similarity.normalized_edit_distance = normalized_edit_distance
