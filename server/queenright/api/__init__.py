"""Models of the HTTP API: the service returns them, and the client reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from queenright.instrumentation.lazy_imports import lazy_attributes

# A type checker reads all names of the modules; at runtime only those of `_MODELS` are public.
if TYPE_CHECKING:
    from queenright.api.agent_slot import *  # noqa: F403
    from queenright.api.agents import *  # noqa: F403
    from queenright.api.alerts import *  # noqa: F403
    from queenright.api.attention import *  # noqa: F403
    from queenright.api.base_model import *  # noqa: F403
    from queenright.api.breakers import *  # noqa: F403
    from queenright.api.cluster import *  # noqa: F403
    from queenright.api.events import *  # noqa: F403
    from queenright.api.incidents import *  # noqa: F403
    from queenright.api.interventions import *  # noqa: F403
    from queenright.api.judge import *  # noqa: F403
    from queenright.api.loaded_agents import *  # noqa: F403
    from queenright.api.problem import *  # noqa: F403
    from queenright.api.recoveries import *  # noqa: F403
    from queenright.api.service import *  # noqa: F403
    from queenright.api.status import *  # noqa: F403
    from queenright.api.steps import *  # noqa: F403
    from queenright.api.telemetry import *  # noqa: F403
    from queenright.api.tickets import *  # noqa: F403

_MODELS: Final = {
    "interventions": (
        "Approval ApprovalsPage EmergencyStop Escalation EscalationResult EscalationsPage "
        "Instruction Instructions Intervention InterventionsPage NudgeResult PermissionRequest "
        "PermissionResult PermissionsPage TerminationResult"
    ),
    "agents": (
        "AgentCounts AgentHealth AgentHealthPage AgentRow AgentsPage Finding HealthMetrics Heartbeat "
        "HeartbeatReceipt HistoryPage HistoryRow Ladder Signal"
    ),
    "alerts": (
        "DeliveriesReceipt IncidentReceipt Notification NotificationPeer NotificationsPage Outbox "
        "OutboxPeer RefusedAlert Silence SilencePeer SilenceResult Silences SlackReply "
        "SymptomsReceipt"
    ),
    "attention": "AttentionItem AttentionList",
    "breakers": "Breaker BreakersPage",
    "cluster": "Backlog ClusterMember ClusterPartition ClusterStatus",
    "events": "Event",
    "judge": "JudgeCheck JudgeChecksPage",
    "loaded_agents": (
        "ActiveGraph AgentDetail AgentStats CheckpointPage CheckpointRow DiscoveredAgent "
        "DiscoveredPage Edge EntryPoint EntryPointPage ExecutionRow GoalCriterion GoalState "
        "GraphPage GraphRow Injected LogPage MessagePage MessageRow NodeCriteria NodeDetail "
        "NodePage NodeRow Progress RunTotals SessionDetail SessionPage SessionRow SessionRun "
        "Started Stopped ToolUse"
    ),
    "service": (
        "AuditPage AuditedEvent CurrentCaller CurrentSettings Reloaded Timeline TimelineEntry Version"
    ),
    "problem": "Problem",
    "recoveries": "RecoveriesPage Recovery RecoveryResult RecoveryStatus",
    "incidents": "Incident Incidents Provider ProviderError Providers",
    "agent_slot": "AgentSlot",
    "status": (
        "Acting Budget FeedLine Ready StandInMessage Status StatusApproval StatusBreaker "
        "StatusEmergencyStop StatusEscalation StatusLadder StatusRecovery Storm"
    ),
    "steps": (
        "DetectorClock DetectorValue Evaluation FiredFinding Moment ReplayFinding Step Steps Threshold"
    ),
    "telemetry": "MissingPart RefusedRequests Telemetry TelemetrySource UnusedRecords",
    "tickets": "ChatMessage ChatMessages ReceiverDelivery Ticket TicketSilence TicketsPage",
    "base_model": "ApiModel",
}
"""Models by module. A module is imported on first access, because a command needs few of them."""

if not TYPE_CHECKING:
    _MODULE_OF = {name: module for module, names in _MODELS.items() for name in names.split()}
    __all__ = sorted(_MODULE_OF)
    __getattr__, __dir__ = lazy_attributes(__name__, _MODULE_OF)
