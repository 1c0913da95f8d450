"""
The command line. Each command imports what it needs when it runs, so that ``--help`` is quick.

A coding agent waits for `queenright hook` at each of its tool calls: it takes the way without the parser.
"""

import sys

if sys.argv[1:2] == ["hook"] and "--help" not in sys.argv:
    from queenright.cli.hook import main
else:
    from queenright.cli.main import main

__all__ = ["main"]
