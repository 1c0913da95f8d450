"""The command line. Every command imports what it needs when it runs, so `--help` is fast."""

import sys

__all__ = ["main"]


def main() -> None:
    """Run `queenright`."""
    # Coding agents wait for `queenright hook` on each of their tool calls, so it skips the parser.
    if sys.argv[1:2] == ["hook"] and "--help" not in sys.argv:
        from queenright.cli.hook import main as run
    else:
        try:
            from queenright.cli.app import main as run
        except KeyboardInterrupt:
            sys.exit(130)
        except ModuleNotFoundError as error:
            if sys.argv[1:] in (["--version"], ["-V"]):
                from queenright.cli.version import print_version

                print_version()
                return
            from queenright.cli.extras import explain_missing_extra

            if (message := explain_missing_extra(error.name)) is None:
                raise
            sys.exit(f"queenright: {message}")
    run()
