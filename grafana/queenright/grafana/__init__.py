"""
Grafana dashboards as code.

The builders (``fleet``, ``agent``) require grafana-foundation-sdk, a development dependency. ``queries``
reads the generated JSON and has no dependencies.
"""
