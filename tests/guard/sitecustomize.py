"""Loaded by every Python process that has this folder in PYTHONPATH, before its own code."""

import os

import default_ports  # type: ignore[import-not-found]

if default_ports.REFUSALS_ENV in os.environ:
    default_ports.install()
