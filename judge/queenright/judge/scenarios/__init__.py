"""Evaluate the judge and the queen on labeled scenarios, which run through the real components."""

from queenright.judge.scenarios.agreement import Agreement, agreement, kappa
from queenright.judge.scenarios.playing import Outcome, model_maker, play, play_all
from queenright.judge.scenarios.scenario import InvalidScenarioError, Label, Scenario, load_scenarios
from queenright.judge.scenarios.score import Score, score

__all__ = [
    "Agreement",
    "InvalidScenarioError",
    "Label",
    "Outcome",
    "Scenario",
    "Score",
    "agreement",
    "kappa",
    "load_scenarios",
    "model_maker",
    "play",
    "play_all",
    "score",
]
