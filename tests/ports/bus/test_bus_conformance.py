from __future__ import annotations

import pytest
from bus_rig import FaultyPlace, LocalPlace, ServerPlace, finish

from sits.ports.bus.checks import CHECKS, FEW, RETENTION_CHECKS, Check, Place, run


@pytest.fixture(params=["local", "faulty without faults", "nats", "kafka"])
def place(request: pytest.FixtureRequest) -> Place:
    if request.param == "local":
        return LocalPlace()
    if request.param == "faulty without faults":
        return FaultyPlace()
    return ServerPlace(request.getfixturevalue(f"{request.param}_address"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_bus_conforms(place: Place, check: Check) -> None:
    finish(run(check, place))


@pytest.mark.parametrize("check", RETENTION_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("place", ["local", "faulty without faults", "nats"], indirect=True)
def test_bus_that_counts_what_it_keeps_conforms(place: Place, check: Check) -> None:
    finish(run(check, place, kept=FEW))
