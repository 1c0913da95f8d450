"""The OTLP receiver: converts telemetry of agents of any framework into events."""

from queenright.server.otlp.errors import OverloadedError
from queenright.server.otlp.forward import Forwarder
from queenright.server.otlp.receiver import Counts, OtlpReceiver

__all__ = ["Counts", "Forwarder", "OtlpReceiver", "OverloadedError"]
