"""Registrations under kill -9: models are put on the shelf and taken off again."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing

from sits.bench.crash_nursery import Found, Story
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import Model, ModelSpec
from sits.resources.vocabulary import Metadata
from sits.state.database import Database
from sits.state.registrations import Registrations

NAMES = tuple(f"model-{number}" for number in range(5))


class RegistrationsPart:
    """A step puts a model on the shelf, or takes it off when it is there. One that was under way is taken again."""

    def write(self, story: Story, say: Callable[[], None]) -> None:
        shelf = Registrations(Database(story.folder))
        step = story.acknowledged
        held = _after(story.seed, step)
        say()
        while True:
            name = _name(story.seed, step)
            try:
                if name in held:
                    shelf.remove(name)
                    del held[name]
                else:
                    held[name] = step
                    shelf.add(_model(name, step), by="bench", at=float(step))
            except SitsError as error:
                # The step of the life before had been taken, though nobody had heard.
                if error.code not in (Code.CONFLICT, Code.NOT_FOUND) or step != story.acknowledged:
                    raise
                held = _after(story.seed, step + 1)
            say()
            step += 1

    def look(self, story: Story) -> Found:
        """What is on the shelf is what was acknowledged, or one step more."""
        with closing(Database(story.folder)) as database:
            shelf = Registrations(database)
            found = {kept.name: int(kept.at) for kept in shelf.all()}
            notes = tuple(f"{bad.name} cannot be read: {bad.why}" for bad in shelf.unreadable())
            strange = [kept.name for kept in shelf.all() if kept.resource != _model(kept.name, int(kept.at))]
        possible = [_after(story.seed, story.acknowledged + more) for more in (0, 1)]
        lost = min(sum(found.get(name) != held.get(name) for name in NAMES) for held in possible)
        return Found(lost=lost, notes=notes + tuple(f"{name} is another model" for name in strange))


def _name(seed: int, step: int) -> str:
    return random.Random(f"{seed}/{step}").choice(NAMES)  # noqa: S311 - no secrets


def _after(seed: int, steps: int) -> dict[str, int]:
    """What is on the shelf after so many steps: name -> the step that put it there."""
    held: dict[str, int] = {}
    for step in range(steps):
        name = _name(seed, step)
        if held.pop(name, None) is None:
            held[name] = step
    return held


def _model(name: str, step: int) -> Model:
    return Model(Metadata(name, annotations={"步": str(step)}), ModelSpec("vllm", f"http://127.0.0.1:{step % 1000 + 1}"))
