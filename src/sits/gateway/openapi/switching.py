"""Schemas and examples of `/v1/admin/switches`, from the forms that the pages answer with."""

from __future__ import annotations

from typing import Any

from sits.gateway.openapi.shapes import BOOLEAN, COUNT, FILLED, NUMBER, STRING, Schema, listed, nullable, one_of, record, said

COMMAND = {"why": "the new model answers in the wrong language"}
STATES = ("idle", "prepare", "warm", "verify", "shift", "drain", "retired", "aborted")
GATES = ("open", "fine", "doubt", "broken")


def schemas() -> dict[str, Schema]:
    """Of the pages of switches."""
    event = record(
        {
            "switch": FILLED,
            "generation": COUNT,
            "event": said(STRING, "`start`, a phase, `shift, step 2`, `pause`, `resume`, `promote` or `abort`."),
            "who": said(STRING, "The name of a key, or of the gateway that found it right."),
            "why": STRING,
            "at": said(NUMBER, "Unix seconds."),
        }
    )
    arm = record({"requests": COUNT, "failures": COUNT, "p95_ms": said(nullable(NUMBER), "To the first content.")})
    status = record(_status(event, arm))
    return {
        "Switch": status,
        "SwitchList": record({"data": listed(status)}),
        "SwitchDetail": record({"switch": status, "audit": said(listed(event), "Of earlier generations too, oldest first.")}),
        "SwitchCommand": record({"why": {"type": "string", "maxLength": 500}}, [], additionalProperties=False),
    }


def _status(event: Schema, arm: Schema) -> dict[str, Any]:
    gate = record({"gate": FILLED, "state": one_of(GATES), "why": STRING})
    gateway = record(
        {
            "id": FILLED,
            "there": said(BOOLEAN, "Whether it was heard of late."),
            "ready": said(STRING, "The last phase of which it has done its part."),
            "busy": said(COUNT, "Answers of the old model under way, while it drains."),
        }
    )
    return {
        "name": FILLED,
        "old": said(FILLED, "The model that goes."),
        "new": said(FILLED, "The model that comes."),
        "routes": said(listed(STRING), "That it is about; all when empty."),
        "state": one_of(STATES),
        "generation": said(COUNT, "How often it was started."),
        "step": COUNT,
        "steps": listed(NUMBER),
        "share": said(NUMBER, "Of the requests, for the new model."),
        "paused": BOOLEAN,
        "promoted": BOOLEAN,
        "over": BOOLEAN,
        "why": said(STRING, "What it waits for, or why it ended."),
        "started": said(nullable(NUMBER), "Unix seconds."),
        "seconds": said(NUMBER, "Since it came to where it is."),
        "observed": record({"old": arm, "new": arm}),
        "gates": listed(gate),
        "gateways": listed(gateway),
        "history": said(listed(event), "What was noted since it was started, oldest first."),
    }
