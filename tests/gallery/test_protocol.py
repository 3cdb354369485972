"""The certificates of AALpy's broker contain the values of its model."""

from __future__ import annotations

from aalpy.utils.BenchmarkSULs import get_faulty_mqtt_SMM
from protocol_model import Machine, last_output

import adagoal

# Publishing fails with probability 0.1 and closes the connection: V = 1 + 1 + 0.1 V.
TRUE_VALUES = {"CONNACK": 1, "CONCLOSED": 1, "SUBACK": 2, "UNSUBACK": 2, "PUBACK": 2 / 0.9, "PUBLISH_PUBACK": 3}


def test_certificates_contain_the_true_values() -> None:
    result = adagoal.explore(Machine(get_faulty_mqtt_SMM()), 6, epsilon=0.5, seed=1, goals=last_output)
    assert result.status == "certified"
    assert {result.goal_label(goal) for goal in result.goals} == {"nothing", *TRUE_VALUES}
    for name, value in TRUE_VALUES.items():
        lower, upper = result.certificate(name)
        assert lower <= value <= upper
