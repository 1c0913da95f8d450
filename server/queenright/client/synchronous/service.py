"""The service itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queenright import api
from queenright.client.responses import json_body, parse_model
from queenright.client.synchronous.resource import Resource


class Service(Resource):
    """State of the service, and settings for all workers."""

    def status(self) -> api.Status:
        """Return the content of the status page."""
        return self._transport.get_model(api.Status, "/api/status")

    def version(self) -> api.Version:
        """Return the version of the service."""
        return self._transport.get_model(api.Version, "/api/version")

    def ready(self) -> api.Ready:
        """Return whether the service is ready, and what is missing."""
        return parse_model(api.Ready, self._transport.get_json("/readyz", accepted_status=503))

    def settings(self) -> api.CurrentSettings:
        """Return all settings in force, with secrets masked."""
        return self._transport.get_model(api.CurrentSettings, "/api/settings")

    def telemetry(self) -> api.Telemetry:
        """Return the telemetry sources, unused records with reasons, and what senders must configure."""
        return self._transport.get_model(api.Telemetry, "/api/telemetry")

    def providers(self) -> Sequence[api.Provider]:
        """Return the status of each model provider, from the fleet's calls of the last ten minutes."""
        return (self._transport.get_model(api.Providers, "/api/providers")).providers

    def reload(self) -> api.Reloaded:
        """Reload the settings; returns which changes need a restart."""
        return self._transport.send_for_model(api.Reloaded, "/-/reload")

    def emergency_stop(self) -> api.EmergencyStop:
        """Return the state of the emergency stop."""
        return self._transport.get_model(api.EmergencyStop, "/api/emergency-stop")

    def set_emergency_stop(self, on: bool, reason: str, *, by: str | None = None) -> api.EmergencyStop:
        """Set or release the emergency stop."""
        body = json_body(on=on, reason=reason, by=by)
        return self._transport.send_for_model(api.EmergencyStop, "/api/emergency-stop", body, method="PUT")

    def notifications(self, *, limit: int | None = None) -> Iterator[api.Notification]:
        """Yield the notifications sent to Alertmanager, newest first."""
        return self._transport.list_models(api.Notification, "/api/notifications", "notifications", limit)

    def judge_checks(self, *, limit: int | None = None) -> Iterator[api.JudgeCheck]:
        """Yield the judge's checks, newest first, with trigger, result and cost."""
        return self._transport.list_models(api.JudgeCheck, "/api/judge/checks", "checks", limit)
