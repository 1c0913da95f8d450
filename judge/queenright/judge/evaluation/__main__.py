"""``python -m queenright.judge.evaluation --score DIR``."""

from __future__ import annotations

import sys

from queenright.judge.evaluation.score import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
