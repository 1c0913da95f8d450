"""Loaded before its own code by every Python process that has this folder in PYTHONPATH."""

import os

import default_ports  # type: ignore[import-not-found]

if default_ports.REFUSALS_ENV in os.environ:
    default_ports.install()
