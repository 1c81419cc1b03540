"""Schemas and examples of the pages of intent, feedback and what was learned."""

from __future__ import annotations

from sits.gateway.openapi.shapes import (
    BOOLEAN,
    COUNT,
    FILLED,
    NUMBER,
    OBJECT,
    STRING,
    Schema,
    listed,
    nullable,
    one_of,
    record,
    said,
)

READ = {"text": "my landlord keeps the deposit"}
FEEDBACK = {"request_id": "req_1", "thumbs": "up"}


def schemas() -> dict[str, Schema]:
    """Of the forms that the pages take and answer with."""
    near = record({"domain": nullable(STRING), "text": STRING, "cosine": NUMBER})
    return {
        "Intent": record(
            {
                "state": one_of(("none", "building", "quick", "ready", "failed")),
                "embedded": said(record({"done": COUNT, "of": COUNT}), "Examples whose embeddings are there."),
                "trouble": STRING,
                "making": said(STRING, "How far what is being made is, and by what requests are read meanwhile."),
                "resting": said(
                    nullable(record({"why": STRING, "again_seconds": NUMBER})),
                    "Why the embedder is left alone, and in how many seconds it may be asked again. Quick verdicts stand.",
                ),
                "declared": listed(STRING),
                "domains": said(listed(STRING), "Those that requests are read by now."),
                "embedder": said(
                    nullable(record({"name": STRING, "dimension": nullable(COUNT), "built_in": BOOLEAN, "wanted": STRING})),
                    "Whose embeddings requests are read by, and whose are wanted by the configuration.",
                ),
                "examples": COUNT,
                "index": nullable(STRING),
                "indexed": said(BOOLEAN, "Whether the index has all examples."),
                "verdicts": {"type": "object", "additionalProperties": COUNT},
                "tuning": nullable(OBJECT),
            }
        ),
        "IntentText": record({"text": FILLED}, ["text"], additionalProperties=False),
        "IntentVerdict": record(
            {
                "domain": said(nullable(STRING), "null: of none."),
                "confidence": NUMBER,
                "stage": one_of(("quick", "deep")),
                "nearest": STRING,
                "near": said(listed(near), "The examples that are nearest."),
            }
        ),
        "Feedback": record(
            {
                "request_id": {"type": "string", "minLength": 1, "maxLength": 200},
                "score": {"type": "number", "minimum": -1, "maximum": 1},
                "thumbs": one_of(("up", "down")),
                "comment": {"type": "string", "maxLength": 2000},
                "key": said(
                    {"type": "string", "minLength": 1, "maxLength": 200},
                    "Whose request it is, for administrators, where several keys use the same id.",
                ),
            },
            ["request_id"],
            additionalProperties=False,
            oneOf=[{"required": ["score"]}, {"required": ["thumbs"]}],
        ),
        "FeedbackTaken": record({"request_id": FILLED, "status": one_of(("counted", "repeated", "changed", "late"))}),
        "PluginList": plugins(),
        "Learning": record(
            {
                "worker": said(STRING, "The process whose figures these are."),
                "workers": said(listed(STRING), "Those of this machine whose `tally` is in the `together` of each route."),
                "silent": said(COUNT, "Further ones that did not answer in time."),
                "trouble": STRING,
                "room": said(record({"held": COUNT, "most": COUNT}), "Decisions that are known of, and how many may be."),
                "lost": said(COUNT, "Outcomes that other processes were not told, or that came from them too fast."),
                "routes": {"type": "object", "additionalProperties": OBJECT},
            }
        ),
    }


def plugins() -> Schema:
    """Of the page of plugins."""
    return record(
        {
            "data": listed(
                record(
                    {
                        "name": STRING,
                        "kind": STRING,
                        "source": STRING,
                        "state": one_of(("live", "fenced", "failed")),
                        "why": STRING,
                        "version": said(STRING, "The beginning of the SHA-256 of its file, or the version of its package."),
                        "calls": said(COUNT, "Of this version; so are the troubles and the times."),
                        "troubles": {"type": "object", "additionalProperties": COUNT},
                        "stale": said(BOOLEAN, "Its file is another one by now, which cannot be loaded."),
                        "since": NUMBER,
                        "mean_us": nullable(NUMBER),
                        "max_us": nullable(NUMBER),
                    }
                )
            ),
            "problems": listed(STRING),
            "missing": said(listed(record({"route": FILLED, "kind": FILLED, "name": FILLED})), "Used and not there."),
            "cuts": said(BOOLEAN, "Whether a call that takes too long is cut."),
        }
    )
