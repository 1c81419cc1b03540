"""Real processes, killed with SIGKILL: each continues in the folder that the one before it left."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from sits.bench.crash_nursery import Nursery, Story


def test_what_an_outbox_has_taken_outlives_a_kill_at_any_moment(tmp_path: Path) -> None:
    dice = random.Random(29)
    story = Story(str(tmp_path), 29)
    with Nursery() as nursery:
        for kill in range(8):
            acknowledged = nursery.kill("outbox", story, seconds=dice.uniform(0, 0.05), from_fork=kill % 4 == 3)
            story = msgspec.structs.replace(story, lives=(*story.lives, acknowledged))
            found = nursery.look("outbox", story)
            assert (found.lost, found.apart, found.unexplained, found.kept, found.notes) == (0, 0, 0, 0, ())
    assert story.acknowledged > 0
