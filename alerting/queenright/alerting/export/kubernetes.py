"""
Export for the Prometheus operator: a Kustomize folder, and values for the Helm chart kube-prometheus-stack.

The objects belong to ``monitoring.coreos.com/v1``. Alertmanager's configuration is exported as Helm values
and as a snippet instead of an AlertmanagerConfig object, because the operator limits such an object to alerts
with the object's ``namespace`` label. The queen's alerts and fleet-wide alerts do not have that label.
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
    """Namespace of the objects ("" for kubectl's current namespace) and labels for all of them."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def metadata(self, name: str, **labels: str) -> dict[str, Any]:
        """Return an object's ``metadata``."""
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
        selectors: Matchers of the rules. The scrape jobs are named accordingly.
        service_url: URL at which Alertmanager reaches Queenright in the cluster.
    """
    objects = {
        "prometheusrule.yaml": prometheus_rule(groups, place),
        "servicemonitor.yaml": _service_monitor(place, _find_job_name(selectors.service, "queenright")),
        "podmonitor.yaml": _pod_monitor(place, _find_job_name(selectors.worker, "queenright-workers")),
    }
    for name, text in extras.dashboards.items():
        stem = PurePosixPath(name).stem
        objects[f"dashboards/{stem}.yaml"] = _dashboard(stem, text, place)
    config = render_config(service_url, deadman_url=deadman_url)
    deadman = deadman_warning(deadman_url)
    section = queenright_section(config)
    return {
        "kustomization.yaml": yaml_text(_kustomization(sorted(objects)), comments=[_HEADER]),
        **{path: yaml_text(content, comments=[_HEADER]) for path, content in objects.items()},
        "alertmanager-snippet.yaml": yaml_text(
            {
                "route": {"routes": [section["route"]]},
                "inhibit_rules": section["inhibit_rules"],
                "receivers": section["receivers"],
                "templates": ["/etc/alertmanager/config/*.tmpl"],
            },
            comments=[_HEADER, *_SNIPPET_COMMENTS, *deadman],
        ),
        "helm-values.yaml": yaml_text(
            _helm_values(groups, extras, selectors), comments=[_HEADER, *_VALUES_COMMENTS]
        ),
        "helm-values-alertmanager.yaml": yaml_text(
            _helm_alertmanager(section, extras), comments=[_HEADER, *_ALERTMANAGER_VALUES_COMMENTS, *deadman]
        ),
        **{f"templates/{name}": text for name, text in extras.templates.items()},
    }


_SNIPPET_COMMENTS: Final = (
    "For your own Alertmanager: put the route before your routes, and add the other entries to your lists.",
    "The folder of secrets must contain the files slack_api_url and pagerduty_routing_key.",
    "The templates are in templates/.",
)
_VALUES_COMMENTS: Final = (
    "Rules, scraping and dashboards for the Helm chart kube-prometheus-stack.",
    "helm upgrade RELEASE prometheus-community/kube-prometheus-stack --reuse-values -f helm-values.yaml",
)
_ALERTMANAGER_VALUES_COMMENTS: Final = (
    "Alertmanager for the Helm chart kube-prometheus-stack. Helm replaces lists: add your own entries.",
    "The secret queenright-alerting contains the files slack_api_url and pagerduty_routing_key.",
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
            # Agents run in the namespaces of their owners.
            "namespaceSelector": {"any": True},
            "selector": {"matchLabels": {"queenright.worker": "true"}},
            "podMetricsEndpoints": [
                {"port": "metrics", "path": "/metrics", "interval": "15s", **_relabel_job(job)}
            ],
        },
    }


def _relabel_job(job: str) -> dict[str, Any]:
    # The operator names a job after its object, but the rules and dashboards expect this name.
    return {"relabelings": [{"targetLabel": "job", "replacement": job}]}


def _find_job_name(matchers: str, default: str) -> str:
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
    def to_monitor(manifest: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": manifest["metadata"]["name"], **manifest["spec"]}

    no_placement = Placement()
    service = to_monitor(_service_monitor(no_placement, _find_job_name(selectors.service, "queenright")))
    workers = to_monitor(_pod_monitor(no_placement, _find_job_name(selectors.worker, "queenright-workers")))
    return {
        "additionalPrometheusRulesMap": {"queenright": {"groups": [group.to_dict() for group in groups]}},
        "prometheus": {
            # Must equal the service's alerting.cluster, otherwise a page does not inhibit the agent's
            # symptoms.
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


def _helm_alertmanager(section: Mapping[str, Any], extras: Extras) -> dict[str, Any]:
    return {
        "alertmanager": {
            "config": {
                "route": {"receiver": "null", "routes": [section["route"]]},
                "inhibit_rules": section["inhibit_rules"],
                "receivers": [{"name": "null"}, *section["receivers"]],
                "templates": ["/etc/alertmanager/config/*.tmpl"],
            },
            "templateFiles": dict(extras.templates),
            "alertmanagerSpec": {"secrets": ["queenright-alerting"]},
        }
    }
