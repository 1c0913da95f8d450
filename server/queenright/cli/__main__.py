"""Run `python -m queenright.cli`."""

from queenright.cli import main

if __name__ == "__main__":
    main()
