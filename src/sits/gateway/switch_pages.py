"""`/v1/admin/switches`: how each switch is, and what can be said to it."""

from __future__ import annotations

from functools import partial

import msgspec

from sits.gateway.bodies import body_of
from sits.gateway.pages import Answer, Page, Pages, Visit, json_answer
from sits.gateway.switch_status import SwitchEvent, SwitchStatus
from sits.gateway.switching import Switching
from sits.inner.errors import Code, SitsError

COMMANDS = ("start", "pause", "resume", "abort", "promote")
LONGEST_WHY = 500


class SwitchCommand(msgspec.Struct, forbid_unknown_fields=True):
    """What comes with a command."""

    why: str = ""


class SwitchList(msgspec.Struct, frozen=True):
    """Every declared switch."""

    data: list[SwitchStatus]


class SwitchDetail(msgspec.Struct, frozen=True):
    """One of them, with what was noted of earlier generations too."""

    switch: SwitchStatus
    audit: list[SwitchEvent]


class SwitchPages:
    """The pages that `sitsctl switch` asks."""

    def __init__(self, switching: Switching) -> None:
        self._switching = switching

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", "/v1/admin/switches", self.all, "admin")
        pages.add("GET", "/v1/admin/switches/{name}", self.one, "admin")
        for action in COMMANDS:
            page: Page = partial(self.command, action)
            pages.add("POST", f"/v1/admin/switches/{{name}}/{action}", page, "admin")

    async def all(self, visit: Visit) -> Answer:
        """GET /v1/admin/switches: every declared switch."""
        return json_answer(SwitchList(self._switching.all()))

    async def one(self, visit: Visit) -> Answer:
        """GET /v1/admin/switches/{name}: one, with its audit."""
        return json_answer(SwitchDetail(self._switching.status(visit.name), await self._switching.history(visit.name)))

    async def command(self, action: str, visit: Visit) -> Answer:
        """POST /v1/admin/switches/{name}/{action}: done here when it is answered, and on its way to the others."""
        said = body_of(visit.request.body, SwitchCommand) if visit.request.body else SwitchCommand()
        if len(said.why) > LONGEST_WHY:
            raise SitsError(Code.INVALID_REQUEST, f"`why` has {len(said.why)} characters; {LONGEST_WHY} are taken", param="why")
        who = visit.key.name if visit.key is not None else "anybody"
        return json_answer(await self._switching.command(visit.name, action, who, said.why))
