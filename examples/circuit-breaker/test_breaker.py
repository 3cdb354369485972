"""What the pytest plug-in of adagoal asserts about the breaker."""

import pytest
from breaker import Breaker, machine, state


def test_half_open_is_reached(reach):
    reach(machine(), ("HALF_OPEN", 0, 0), within=10)


@pytest.mark.xfail(reason="the planted fault", strict=True)
def test_nothing_fails_within_ten_calls(explored):
    explored(machine(), radius=10)


# Pasted from result.script("crash:KeyError").
def test_crash_keyerror():
    machine = Breaker()
    machine.request(False)
    machine.request(False)
    machine.request(False)
    machine.request(False)
    machine.tick()
    machine.tick()
    machine.tick()
    assert state(machine) == ("HALF_OPEN", 0, 0)
    with pytest.raises(KeyError):
        machine.tick()
