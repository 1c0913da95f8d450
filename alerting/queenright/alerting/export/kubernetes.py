"""
Export for the Prometheus operator: a Kustomize folder, and values for Helm's kube-prometheus-stack.

The objects belong to ``monitoring.coreos.com/v1``. Alertmanager's configuration is exported as values and a
snippet instead of an AlertmanagerConfig, because the operator limits such an object to alerts with its own
``namespace`` label, which the queen's alerts and fleet-wide alerts do not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from queenright.alerting.export.alertmanager import (
    UNSET_DEADMAN_URL,
    deadman_warning,
    queenright_section,
    render_config,
)
from queenright.alerting.export.extra_files import Extras
from queenright.alerting.export.yaml_text import yaml_text
from queenright.alerting.rules import Group, Selectors

_MONITORING: Final = "monitoring.coreos.com/v1"
_JOB: Final = re.compile(r'(?:^|,)\s*job\s*=\s*"([^"]*)"')
_HEADER: Final = "Written by `queenright rules export --format kubernetes`."


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Namespace of the objects (empty for kubectl's current one) and labels for all of them."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def metadata(self, name: str, **labels: str) -> dict[str, Any]:
        """Return the metadata of an object."""
        metadata: dict[str, Any] = {"name": name}
        if self.namespace:
            metadata["namespace"] = self.namespace
        metadata["labels"] = {"app.kubernetes.io/part-of": "queenright", **self.labels, **labels}
        return metadata


def prometheus_rule(groups: Sequence[Group], place: Placement) -> dict[str, Any]:
    """Return a PrometheusRule object with all rule groups."""
    return {
        "apiVersion": _MONITORING,
        "kind": "PrometheusRule",
        "metadata": place.metadata("queenright"),
        "spec": {"groups": [group.to_dict() for group in groups]},
    }


def kubernetes_files(
    groups: Sequence[Group],
    extras: Extras,
    place: Placement,
    *,
    selectors: Selectors,
    service_url: str,
    deadman_url: str = UNSET_DEADMAN_URL,
) -> dict[str, str]:
    """
    Return the files of the export folder, by path.

    Args:
        selectors: Matchers of the rules; the jobs are named accordingly.
        service_url: URL at which Alertmanager reaches Queenright in the cluster.
    """
    objects = {
        "prometheusrule.yaml": prometheus_rule(groups, place),
        "servicemonitor.yaml": _service_monitor(place, _job(selectors.service, "queenright")),
        "podmonitor.yaml": _pod_monitor(place, _job(selectors.worker, "queenright-workers")),
    }
    for name, text in extras.dashboards.items():
        stem = PurePosixPath(name).stem
        objects[f"dashboards/{stem}.yaml"] = _dashboard(stem, text, place)
    config = render_config(service_url, deadman_url=deadman_url)
    deadman = deadman_warning(deadman_url)
    part = queenright_section(config)
    return {
        "kustomization.yaml": yaml_text(_kustomization(sorted(objects)), comments=[_HEADER]),
        **{path: yaml_text(content, comments=[_HEADER]) for path, content in objects.items()},
        "alertmanager-snippet.yaml": yaml_text(
            {
                "route": {"routes": [part["route"]]},
                "inhibit_rules": part["inhibit_rules"],
                "receivers": part["receivers"],
                "templates": ["/etc/alertmanager/config/*.tmpl"],
            },
            comments=[_HEADER, *_SNIPPET, *deadman],
        ),
        "helm-values.yaml": yaml_text(_helm_values(groups, extras, selectors), comments=[_HEADER, *_VALUES]),
        "helm-values-alertmanager.yaml": yaml_text(
            _helm_alertmanager(part, extras), comments=[_HEADER, *_ALERTMANAGER_VALUES, *deadman]
        ),
        **{f"templates/{name}": text for name, text in extras.templates.items()},
    }


_SNIPPET: Final = (
    "For your own Alertmanager: put the route before yours, and add the rest to your lists.",
    "Secrets: a folder with the files slack_api_url and pagerduty_routing_key. Templates: templates/.",
)
_VALUES: Final = (
    "For Helm's kube-prometheus-stack: rules, scraping and dashboards.",
    "helm upgrade RELEASE prometheus-community/kube-prometheus-stack --reuse-values -f helm-values.yaml",
)
_ALERTMANAGER_VALUES: Final = (
    "For Helm's kube-prometheus-stack: Alertmanager. Helm replaces lists: add your own routes and receivers.",
    "The secret queenright-alerting has the files slack_api_url and pagerduty_routing_key.",
)


def _service_monitor(place: Placement, job: str) -> dict[str, Any]:
    return {
        "apiVersion": _MONITORING,
        "kind": "ServiceMonitor",
        "metadata": place.metadata("queenright"),
        "spec": {
            "namespaceSelector": {"any": True},
            "selector": {"matchLabels": {"app.kubernetes.io/name": "queenright"}},
            "endpoints": [{"port": "http", "path": "/metrics", "interval": "15s", **_relabel_job(job)}],
        },
    }


def _pod_monitor(place: Placement, job: str) -> dict[str, Any]:
    return {
        "apiVersion": _MONITORING,
        "kind": "PodMonitor",
        "metadata": place.metadata("queenright-workers"),
        "spec": {
            # Agents live in the namespaces of their owners.
            "namespaceSelector": {"any": True},
            "selector": {"matchLabels": {"queenright.worker": "true"}},
            "podMetricsEndpoints": [
                {"port": "metrics", "path": "/metrics", "interval": "15s", **_relabel_job(job)}
            ],
        },
    }


def _relabel_job(job: str) -> dict[str, Any]:
    # The operator names a job after its object, but rules and dashboards need these names.
    return {"relabelings": [{"targetLabel": "job", "replacement": job}]}


def _job(matchers: str, default: str) -> str:
    match = _JOB.search(matchers)
    return match[1] if match else default


def _dashboard(stem: str, text: str, place: Placement) -> dict[str, Any]:
    metadata = place.metadata(f"queenright-dashboard-{stem}", grafana_dashboard="1")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "annotations": {"grafana_folder": "Queenright"}},
        "data": {f"queenright-{stem}.json": text},
    }


def _kustomization(resources: Sequence[str]) -> dict[str, Any]:
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": list(resources),
    }


def _helm_values(groups: Sequence[Group], extras: Extras, selectors: Selectors) -> dict[str, Any]:
    def monitor(manifest: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": manifest["metadata"]["name"], **manifest["spec"]}

    nowhere = Placement()
    service = monitor(_service_monitor(nowhere, _job(selectors.service, "queenright")))
    workers = monitor(_pod_monitor(nowhere, _job(selectors.worker, "queenright-workers")))
    return {
        "additionalPrometheusRulesMap": {"queenright": {"groups": [group.to_dict() for group in groups]}},
        "prometheus": {
            # Must equal alerting.cluster of the service, otherwise a page does not inhibit its symptoms.
            "prometheusSpec": {"externalLabels": {"cluster": "default"}},
            "additionalServiceMonitors": [service],
            "additionalPodMonitors": [workers],
        },
        "grafana": {
            "dashboardProviders": {
                "dashboardproviders.yaml": {
                    "apiVersion": 1,
                    "providers": [
                        {
                            "name": "queenright",
                            "folder": "Queenright",
                            "type": "file",
                            "disableDeletion": True,
                            "options": {"path": "/var/lib/grafana/dashboards/queenright"},
                        }
                    ],
                }
            },
            "dashboards": {
                "queenright": {
                    f"queenright-{PurePosixPath(name).stem}": {"json": text}
                    for name, text in extras.dashboards.items()
                }
            },
        },
    }


def _helm_alertmanager(part: Mapping[str, Any], extras: Extras) -> dict[str, Any]:
    return {
        "alertmanager": {
            "config": {
                "route": {"receiver": "null", "routes": [part["route"]]},
                "inhibit_rules": part["inhibit_rules"],
                "receivers": [{"name": "null"}, *part["receivers"]],
                "templates": ["/etc/alertmanager/config/*.tmpl"],
            },
            "templateFiles": dict(extras.templates),
            "alertmanagerSpec": {"secrets": ["queenright-alerting"]},
        }
    }
