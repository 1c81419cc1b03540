"""What can go wrong with a model server, and what the client must get: the fault matrix as data, written down before it is run.

A `Trouble` is one way in which the first target of a route fails. There is a second, healthy one. For each trouble stands what is
right when a whole answer was asked for, when a stream was, and when a stream of a route was that continues (`onBrokenStream`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sits.chaos.script import Fault

Operation = Literal["chat", "completions", "responses", "messages"]
OPERATIONS: tuple[Operation, ...] = ("chat", "completions", "responses", "messages")
PATHS: dict[Operation, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
TOKENS = 60
BROKEN_AT = 40
"""The token after which answers break off in the middle."""
FIRST, SECOND = "1st", "2nd"


class Right(msgspec.Struct, frozen=True):
    """The outcome that is right. `ok` with all tokens by the first target, unless it says otherwise."""

    status: int = 200
    """HTTP status for the client."""
    code: str = ""
    """The gateway's code: in the header of a plain error, in the last event of a stream that ends by one."""
    outcomes: tuple[str, ...] = ("ok",)
    """Of the attempts, in order: in the decision record, the metrics and the ledger."""
    statuses: tuple[int, ...] = (200,)
    """What the targets themselves answered, in the same order; 0 where nothing came."""
    tokens: int | None = TOKENS
    """How many of the numbered tokens come, each once and in order; None: some but not all."""
    skipped: int = 0
    """Events that were left out."""
    retry_after: str = ""
    """The header `retry-after`."""
    told: str = ""
    """The target's own code, which is passed on."""
    continued: bool = False
    """The second target went on where the first broke off."""

    @property
    def complete(self) -> bool:
        return self.status == 200 and not self.code

    @property
    def short(self) -> str:
        """For a table."""
        if self.status != 200:
            return f"{self.status}"
        if self.code:
            return f"{'some' if self.tokens is None else self.tokens} + `{self.code}`"
        who = FIRST if len(self.outcomes) == 1 else SECOND
        return "both" if self.continued else who


ITSELF = Right()
"""The first target answers all the same."""


def other(outcome: str, status: int) -> Right:
    """The first target fails, and the second one answers without the client noticing."""
    return Right(outcomes=(outcome, "ok"), statuses=(status, 200))


def refused(status: int, code: str, outcome: str, told: str = "") -> Right:
    """The first target's refusal is the answer: nobody else is asked."""
    return Right(status, code, (outcome,), (status,), 0, told=told)


def broken(code: str, tokens: int | None = BROKEN_AT) -> Right:
    """So many tokens, then one error event and no terminator."""
    return Right(200, code, (code,), (200,), tokens)


def continued(outcome: str) -> Right:
    """The first target breaks off and the second one goes on from there."""
    return Right(outcomes=(outcome, "ok"), statuses=(200, 200), continued=True)


class Trouble(msgspec.Struct, frozen=True):
    """One way to fail, and what is right then."""

    number: int
    """Of its class; `CLASSES` has their names."""
    name: str
    words: str
    """What the server does."""
    whole: Right
    stream: Right
    on_continue: Right | None = None
    """Of a stream where the route continues; as `stream` when None."""
    fault: Fault | None = None
    """What the first server does; None: nobody listens there."""
    fault_whole: Fault | None = None
    """The same for a whole answer, where that is done in another way."""
    deadlines: dict[str, float] = {}
    """Of the first target, where one has to pass; the others are long."""
    second: Fault | None = None
    """What the second server does; nothing: it is well."""
    second_deadlines: dict[str, float] = {}
    larger: bool = False
    """Whether the second model declares a larger context."""

    def right(self, *, streamed: bool, continues: bool) -> Right:
        if not streamed:
            return self.whole
        return self.on_continue or self.stream if continues else self.stream


CLASSES: dict[int, str] = {
    1: "refuse",
    2: "reset",
    3: "stall before headers",
    4: "stall before first token",
    5: "stall mid-stream",
    6: "trickle",
    7: "truncated stream",
    8: "garbage event",
    9: "400",
    10: "401",
    11: "429 with Retry-After",
    12: "429 without",
    13: "500",
    14: "503",
    15: "529",
    16: "quota error as later event",
    17: "wrong content type",
    18: "double failure",
}
HEADERS, FIRST_TOKEN, IDLE = {"headers": 1.0}, {"firstToken": 1.0, "idle": 1.0}, {"idle": 1.2}
TOTAL = {"total": 0.9}
_QUOTA: dict[str, Any] = {"error": {"message": "You exceeded your current quota", "type": "insufficient_quota"}}
_QUOTA_ANTHROPIC: dict[str, Any] = {"type": "error", "error": {**_QUOTA["error"], "type": "rate_limit_error"}}
_VALUE: dict[str, Any] = {"error": {"message": "temperature: too hot", "type": "invalid_request_error", "code": "invalid_value"}}
_LONG: dict[str, Any] = {
    "error": {"message": "This model's maximum context length is 4096 tokens.", "code": "context_length_exceeded"}
}
_RATE, _OVER = "upstream_rate_limited", "upstream_error"
_BROKEN, _TIMEOUT = "upstream_broken", "upstream_timeout"
_MIDDLE = (broken("stream_broken"), continued("stream_broken"))


def _error(status: int, body: dict[str, Any] | None = None, **headers: str) -> Fault:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    word = {429: "rate_limit_error", 529: "overloaded_error"}.get(status, "server_error")
    return Fault("error", status=status, body=body, headers=fields, word=word)


TROUBLES: tuple[Trouble, ...] = (
    Trouble(1, "refuse", "nobody listens", *2 * (other("upstream_unreachable", 0),)),
    Trouble(2, "reset", "RST before the head", *2 * (other(_BROKEN, 0),), fault=Fault("reset")),
    Trouble(2, "reset-opened", "RST after head and opening frames", *2 * (other(_BROKEN, 200),), fault=Fault("reset", at=0)),
    Trouble(2, "reset-middle", "RST after 40 tokens", other(_BROKEN, 200), *_MIDDLE, fault=Fault("reset", at=BROKEN_AT)),
    Trouble(3, "stall", "silence", *2 * (other(_TIMEOUT, 0),), fault=Fault("stall"), deadlines=HEADERS),
    Trouble(
        4, "stall-opened", "head and opening frames, then silence", *2 * (other(_TIMEOUT, 200),),
        fault=Fault("stall", at=0), deadlines=FIRST_TOKEN,
    ),
    Trouble(
        4, "pings", "head and opening frames, then pings for ever", *2 * (other(_TIMEOUT, 200),),
        fault=Fault("pings", seconds=0.05), deadlines={"firstToken": 0.6, **TOTAL},
    ),
    Trouble(
        5, "stall-middle", "silence after 40 tokens", other(_TIMEOUT, 200),
        broken("stream_stalled"), continued("stream_stalled"), Fault("stall", at=BROKEN_AT), deadlines=IDLE,
    ),
    Trouble(
        6, "trickle", "10 ms a token", ITSELF, ITSELF, fault=Fault("trickle", at=0, seconds=0.01), deadlines={"idle": 2.0},
    ),
    Trouble(6, "crumbs", "a few bytes at a time, cut anywhere", ITSELF, ITSELF, fault=Fault("crumbs")),
    Trouble(
        6, "trickle-on", "50 ms a token, longer than the attempt may take", other(_TIMEOUT, 200),
        broken("stream_stalled", None), continued("stream_stalled"),
        Fault("trickle", at=0, seconds=0.05), Fault("pings", seconds=0.05), deadlines=TOTAL,
    ),
    Trouble(7, "cut", "closed after 40 tokens", other(_BROKEN, 200), *_MIDDLE, fault=Fault("close", at=BROKEN_AT)),
    Trouble(7, "cut-opened", "closed after the opening frames", *2 * (other(_BROKEN, 200),), fault=Fault("close", at=0)),
    Trouble(
        7, "unfinished", "40 tokens, and an end without finish", other(_BROKEN, 200), *_MIDDLE,
        fault=Fault("unfinished", at=BROKEN_AT),
    ),
    Trouble(
        8, "garbage", "one event that is not JSON, after 40 tokens", other(_BROKEN, 200), Right(skipped=1),
        fault=Fault("garbage", at=BROKEN_AT),
    ),
    Trouble(
        8, "garbage-first", "one event that is not JSON, before the first token", other(_BROKEN, 200), Right(skipped=1),
        fault=Fault("garbage", at=0),
    ),
    Trouble(
        9, "400", "400 invalid_value", *2 * (refused(400, "upstream_rejected", "upstream_rejected", "invalid_value"),),
        fault=_error(400, _VALUE),
    ),
    Trouble(
        9, "400-long", "400 context too long; the second has no larger one",
        *2 * (refused(400, "context_length_exceeded", "context_length_exceeded", "context_length_exceeded"),),
        fault=_error(400, _LONG),
    ),
    Trouble(
        9, "400-larger", "400 context too long; the second has a larger one", *2 * (other("context_length_exceeded", 400),),
        fault=_error(400, _LONG), larger=True,
    ),
    Trouble(10, "401", "401 of the provider", *2 * (other("upstream_auth_failed", 401),), fault=_error(401)),
    Trouble(11, "429-after", "429, Retry-After: 7", *2 * (other(_RATE, 429),), fault=_error(429, retry_after="7")),
    Trouble(12, "429", "429", *2 * (other(_RATE, 429),), fault=_error(429)),
    Trouble(13, "500", "500", *2 * (other(_OVER, 500),), fault=_error(500)),
    Trouble(14, "503", "503", *2 * (other(_OVER, 503),), fault=_error(503)),
    Trouble(15, "529", "529", *2 * (other(_OVER, 529),), fault=_error(529)),
    Trouble(
        16, "quota", "200, opening frames, then a quota error", *2 * (other(_RATE, 200),),
        fault=Fault("error_event", at=0, word="insufficient_quota"), fault_whole=_error(200, _QUOTA),
    ),
    Trouble(
        16, "quota-middle", "a quota error after 40 tokens", other(_RATE, 200), *_MIDDLE,
        fault=Fault("error_event", at=BROKEN_AT, word="insufficient_quota"), fault_whole=_error(200, _QUOTA),
    ),
    Trouble(17, "html", "a page of HTML with 200", *2 * (other(_BROKEN, 200),), fault=Fault("content_type")),
    Trouble(
        17, "label", "the right body as text/plain", ITSELF, other(_BROKEN, 200),
        fault=Fault("label", headers={"content-type": "text/plain"}),
    ),
    Trouble(
        17, "otherwise", "whole where a stream was asked for, a stream where not", other(_BROKEN, 200), ITSELF,
        fault=Fault("otherwise"),
    ),
    Trouble(
        17, "middle-otherwise", "RST after 40 tokens; the second whole where a stream was asked for, a stream where not",
        Right(502, _BROKEN, (_BROKEN, _BROKEN), (200, 200), 0), *_MIDDLE, Fault("reset", at=BROKEN_AT), second=Fault("otherwise"),
    ),
    Trouble(
        18, "both-503", "503, and the second 503 too", *2 * (Right(502, _OVER, (_OVER, _OVER), (503, 503), 0),),
        fault=_error(503), second=_error(503),
    ),
    Trouble(
        18, "both-quota", "a quota error after the opening frames; the second 429, Retry-After: 7",
        *2 * (Right(429, _RATE, (_RATE, _RATE), (200, 429), 0, retry_after="7"),),
        fault=Fault("error_event", at=0, word="insufficient_quota"), fault_whole=_error(200, _QUOTA),
        second=_error(429, retry_after="7"),
    ),
    Trouble(
        18, "both-silent", "refused; the second silent after the opening frames",
        *2 * (Right(504, _TIMEOUT, ("upstream_unreachable", _TIMEOUT), (0, 200), 0),),
        second=Fault("stall", at=0), second_deadlines=FIRST_TOKEN,
    ),
    Trouble(
        18, "both-middle", "RST after 40 tokens; the second 503",
        Right(502, _OVER, (_BROKEN, _OVER), (200, 503), 0), broken("stream_broken"),
        Right(200, "stream_broken", ("stream_broken", _OVER), (200, 503), BROKEN_AT),
        Fault("reset", at=BROKEN_AT), second=_error(503),
    ),
)  # fmt: skip


class Way(msgspec.Struct, frozen=True):
    """One pass over the matrix."""

    name: str
    title: str
    words: str
    engines: dict[Operation, str]
    """Who speaks which dialect: the engine of the first target, by the endpoint that is asked."""
    seconds: dict[Operation, str]
    """The same of the second target."""
    continues: bool = False
    """Whether the routes continue broken streams."""
    prefill: bool = True
    """Whether the targets take the text so far as the beginning of an answer."""
    library: bool = False
    """Whether the official client libraries ask."""


OWN: dict[Operation, str] = {"chat": "openai", "completions": "openai", "responses": "openai", "messages": "anthropic"}
OTHERS: dict[Operation, str] = {"chat": "anthropic", "responses": "vllm", "messages": "openai"}
ABLE: dict[Operation, str] = {"chat": "vllm", "completions": "vllm", "responses": "vllm", "messages": "anthropic"}
"""Servers whose dialect has a way to say how an answer begins."""
WAYS: tuple[Way, ...] = (
    Way("relayed", "The client's own dialect", "Both targets speak the client's dialect; `onBrokenStream: error`", OWN, OWN),
    Way(
        "translated", "Another dialect",
        "The first target speaks another dialect than client and second; `onBrokenStream: error`", OTHERS, OWN,
    ),
    Way(
        "continued", "Streams that are gone on with",
        "`onBrokenStream: continue`; the targets take the text so far as the beginning of an answer (`prefill`)", ABLE, ABLE,
        continues=True,
    ),
    Way(
        "replayed", "Streams that are said again",
        "`onBrokenStream: continue`; the targets have no `prefill`, which only completions can do without", OWN, OWN,
        continues=True, prefill=False,
    ),
    Way(
        "crossed", "Streams that another dialect goes on with",
        "`onBrokenStream: continue`; the first target speaks another dialect than client and second", OTHERS, ABLE,
        continues=True,
    ),
    Way(
        "library", "Official client libraries", "As the first table, asked by the packages `openai` and `anthropic`", OWN, OWN,
        library=True,
    ),
)  # fmt: skip


class Cell(msgspec.Struct, frozen=True):
    """One request, and what is right."""

    way: Way
    trouble: Trouble
    operation: Operation
    streamed: bool

    @property
    def name(self) -> str:
        kind = "stream" if self.streamed else "whole"
        return f"{self.way.name}.{self.trouble.name}.{self.operation}.{kind}"

    @property
    def right(self) -> Right:
        return self.trouble.right(streamed=self.streamed, continues=self.way.continues)

    @property
    def again(self) -> bool:
        """Whether who goes on with the answer says all of it again."""
        return not self.way.prefill and self.operation != "completions"

    @property
    def first_fault(self) -> Fault | None:
        """What the first server does, in the words of its dialect."""
        fault = self.trouble.fault if self.streamed else self.trouble.fault_whole or self.trouble.fault
        if fault is None or self.way.engines[self.operation] != "anthropic":
            return fault
        if fault.word == "insufficient_quota":
            return msgspec.structs.replace(fault, word="rate_limit_error")
        return msgspec.structs.replace(fault, body=_QUOTA_ANTHROPIC) if fault.body is _QUOTA else fault


def cells(way: Way) -> list[Cell]:
    """All cells of one pass. Only streams can be continued."""
    kinds = (True,) if way.continues else (False, True)
    return [Cell(way, trouble, operation, streamed) for trouble in TROUBLES for operation in way.engines for streamed in kinds]


def few(way: Way) -> list[Cell]:
    """Some cells of one pass: every way to fail, or to go on, once, over the endpoints by turns."""
    every = cells(way)
    around = len(every) // len(TROUBLES)
    mine = [every[place * around + place % around] for place in range(len(TROUBLES))]
    return [cell for cell in mine if not way.continues or cell.trouble.on_continue is not None]
