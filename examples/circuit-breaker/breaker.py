"""A circuit breaker with a planted fault: run this file, or `pytest` in this folder.

After four failures in a row the breaker is OPEN and rejects requests. When it was left alone for three ticks it is
HALF_OPEN, and one more success closes it. The shortest way to HALF_OPEN takes seven calls.
"""

import adagoal


class Breaker:
    def __init__(self):
        self.mode = "CLOSED"
        self.failures = 0
        self.timers = {}

    def request(self, succeeds):
        if self.mode == "OPEN":
            self.timers["cooldown"] = 3  # a rejected request starts the waiting time again
        elif succeeds:
            self.mode, self.failures = "CLOSED", 0
        else:
            self.failures += 1
            if self.mode == "HALF_OPEN" or self.failures == 4:
                self.mode, self.timers["cooldown"] = "OPEN", 3

    def tick(self):
        if self.mode == "CLOSED":
            return
        self.timers["cooldown"] -= 1  # the fault: in HALF_OPEN the timer is gone
        if self.timers["cooldown"] == 0:
            del self.timers["cooldown"]
            self.mode, self.failures = "HALF_OPEN", 0


def state(breaker):
    return breaker.mode, breaker.failures, breaker.timers.get("cooldown", 0)


def machine():
    return adagoal.machine(Breaker, {"request": [True, False], "tick": []}, state, deterministic=True)


if __name__ == "__main__":
    result = adagoal.explore(machine(), radius=10, epsilon=0.5)
    print(result)
    for row in result.table():
        print(f"{row['lower']:4g} to {row['upper']:g} calls: {row['label']}")
    print()
    print(result.script("crash:KeyError"))
