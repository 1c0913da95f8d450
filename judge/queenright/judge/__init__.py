"""Judge and queen: what stands between a finding and a person."""

from queenright.judge.colony import JudgeAndQueen
from queenright.judge.settings import JudgeSettings, ModelSettings

__all__ = ["JudgeAndQueen", "JudgeSettings", "ModelSettings"]
