"""The service itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from queenright import api
from queenright.client.answers import body, parsed
from queenright.client.synchronous.group import Group


class Service(Group):
    """How the service is, and what holds for all workers."""

    def status(self) -> api.Status:
        """Return everything that the status page shows."""
        return self._ask.one(api.Status, "/api/status")

    def version(self) -> api.Version:
        """Return which service this is."""
        return self._ask.one(api.Version, "/api/version")

    def ready(self) -> api.Ready:
        """Return whether it does its work; if not, what is missing."""
        return parsed(api.Ready, self._ask.get("/readyz", also=503))

    def settings(self) -> api.SettingsInForce:
        """Return all settings in force, secrets masked."""
        return self._ask.one(api.SettingsInForce, "/api/settings")

    def telemetry(self) -> api.Telemetry:
        """Return who sends telemetry, what of it was not used and why, and what senders have to set."""
        return self._ask.one(api.Telemetry, "/api/telemetry")

    def providers(self) -> Sequence[api.Provider]:
        """Return how each model provider does, by the fleet's own calls of the last ten minutes."""
        return (self._ask.one(api.Providers, "/api/providers")).providers

    def reload(self) -> api.Reloaded:
        """Let it read its settings again; what can be changed while it runs is, the rest is named."""
        return self._ask.acted(api.Reloaded, "/-/reload")

    def emergency_stop(self) -> api.EmergencyStop:
        """Return whether acting is frozen, since when, by whom and why."""
        return self._ask.one(api.EmergencyStop, "/api/emergency-stop")

    def set_emergency_stop(self, on: bool, reason: str, *, by: str | None = None) -> api.EmergencyStop:
        """Freeze acting, or let it go on."""
        sent = body(on=on, reason=reason, by=by)
        return self._ask.acted(api.EmergencyStop, "/api/emergency-stop", sent, method="PUT")

    def notifications(self, *, limit: int | None = None) -> Iterator[api.Notification]:
        """Yield what was handed to Alertmanager, newest first."""
        return self._ask.every(api.Notification, "/api/notifications", "notifications", limit)

    def judge_checks(self, *, limit: int | None = None) -> Iterator[api.JudgeCheck]:
        """Yield the judge's checks, newest first: what woke it, what came of it, what it cost."""
        return self._ask.every(api.JudgeCheck, "/api/judge/checks", "checks", limit)
