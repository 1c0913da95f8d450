"""Every Python process with this folder in PYTHONPATH loads this module before its own code."""

import os

import default_ports  # type: ignore[import-not-found]

if default_ports.REFUSALS_ENV in os.environ:
    default_ports.install()
