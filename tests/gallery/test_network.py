"""The certificates of NASim's networks contain the expected actions that its probabilities of success imply."""

from __future__ import annotations

import pytest
from network_attack import RADIUS, Network, access_goals

import adagoal

SSH, HTTP, FTP = 1 / 0.9, 1 / 0.9, 1 / 0.6  # expected attempts in "small"


def explore(scenario: str) -> adagoal.Result:
    env = Network(scenario)
    return adagoal.explore(env, RADIUS[scenario], seed=1, goals=access_goals(env.hosts))


def contains(result: adagoal.Result, goal: str, value: float) -> bool:
    lower, upper = result.certificate(goal)
    return lower <= value <= upper


def test_every_host_of_tiny_can_be_taken() -> None:
    result = explore("tiny")
    assert result.status == "certified"
    assert len(result.goals) == 6
    exploit = 1 / 0.8
    assert contains(result, "user on (1, 0)", exploit)
    assert contains(result, "root on (3, 0)", exploit + 1 + exploit + 1)
    assert contains(result, "root on (2, 0)", exploit + 1 + exploit + exploit + 1)


@pytest.mark.filterwarnings("default")
def test_three_hosts_of_small_give_no_root() -> None:
    result = explore("small")
    assert result.status == "certified"
    names = {result.goal_label(goal) for goal in result.goals}
    # These hosts run no process that the attacker can use.
    assert set(result.goal_names or ()) - names == {f"root on {host}" for host in ((1, 0), (3, 0), (3, 3))}
    inside = HTTP + 1 + SSH + HTTP  # user on (3, 1), through (1, 0), a scan of its subnet, and (2, 0)
    assert contains(result, "user on (3, 1)", inside)
    assert contains(result, "root on (3, 2)", inside + FTP + 1)
    assert contains(result, "root on (4, 0)", inside + 1 + SSH + 1)
