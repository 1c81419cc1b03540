"""Colours of traffic: which experiment a request belongs to, over every hop.

Two fields say it, `x-experiment-id` and `x-traffic-color`. Who says nothing is `stable`, here as at every other hop, so nothing
is added to a plain request: what was given is passed on, to model servers, in the answer, in the decision record, in messages
and flows, and to whatever is asked behind the answer. gRPC has the same fields as metadata, under the same names.

A value is a short token, so that it can stand in a header, a log line, a subject and a label without being quoted. It is still a
client's word: metrics know only the colours that the configuration names (`Palette`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from sits.engines.base import Headers
from sits.inner.errors import Code, SitsError
from sits.resilience.share import Alarm, Share

EXPERIMENT = b"x-experiment-id"
COLOUR = b"x-traffic-color"
STABLE = "stable"
"""The colour of who says none."""
OTHER = "_other"
"""The label of colours that no configuration names."""
LONGEST = 64
MOST_KNOWN = 1024
"""Tints kept ready; when they are more, clients make them up, and it is begun anew."""
MOST_NAMED = 64
"""Colours that are told apart in metrics."""
_TOKEN = re.compile(rb"[A-Za-z0-9._-]{1,%d}" % LONGEST)


class Tint(msgspec.Struct, frozen=True):
    """What a request says of itself, checked, in the forms that are needed. Equal sayings are the same object for a while."""

    colour: str = STABLE
    experiment: str = ""
    fields: tuple[tuple[bytes, bytes], ...] = ()
    """What passes on to the next hop: what was given."""
    lines: bytes = b""
    """The same in wire form, for the head of the answer."""

    @property
    def plain(self) -> bool:
        """Whether nothing was said."""
        return not self.fields

    def noted(self) -> dict[str, str]:
        """What records and log lines say of it; nothing of a plain one."""
        found = {} if self.colour == STABLE else {"colour": self.colour}
        return found | {"experiment": self.experiment} if self.experiment else found


PLAIN = Tint()
_known: dict[tuple[bytes | None, bytes | None], Tint] = {}


def read(headers: dict[bytes, bytes], required: bool = False) -> Tint:
    """The tint of a request. 0.1 us where neither field is there, 0.2 us for one that was seen before.

    Raises:
        SitsError: `invalid_request`: a value is no short token, or the colour is `required` and missing; `param` is the field.
    """
    colour, experiment = headers.get(COLOUR), headers.get(EXPERIMENT)
    if colour is None:
        if required:
            raise _refusal(COLOUR, "this route wants to know the colour of its traffic: send `x-traffic-color: stable`, say")
        if experiment is None:
            return PLAIN
    found = _known.get((colour, experiment))
    return found if found is not None else _made(colour, experiment)


def tint(colour: str = "", experiment: str = "") -> Tint:
    """The tint that was kept as two words (of a job, a message, a flow); plain where they are none."""
    given: dict[bytes, bytes] = {}
    for name, value in ((COLOUR, colour), (EXPERIMENT, experiment)):
        if value and _TOKEN.fullmatch(value.encode("utf-8", "replace")) is not None:
            given[name] = value.encode()
    return read(given)


def _made(colour: bytes | None, experiment: bytes | None) -> Tint:
    fields: list[tuple[bytes, bytes]] = []
    for name, value in ((COLOUR, colour), (EXPERIMENT, experiment)):
        if value is None:
            continue
        if _TOKEN.fullmatch(value) is None:
            raise _refusal(name, f"{name.decode()}: wanted 1 to {LONGEST} of the characters A-Z a-z 0-9 . _ -")
        fields.append((name, value))
    if len(_known) >= MOST_KNOWN:
        _known.clear()
    made = _known[colour, experiment] = Tint(
        colour.decode() if colour is not None else STABLE,
        experiment.decode() if experiment is not None else "",
        tuple(fields),
        b"".join([b"%b: %b\r\n" % field for field in fields]),
    )
    return made


def _refusal(name: bytes, message: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, message, param=name.decode())


class Palette:
    """The colours that a configuration names: those that metrics tell apart."""

    __slots__ = ("_named",)

    def __init__(self, named: Iterable[str] = ()) -> None:
        self._named = frozenset((STABLE, *sorted(set(named))[: MOST_NAMED - 1]))

    def label(self, colour: str) -> str:
        """The colour as a label value."""
        return colour if colour in self._named else OTHER


# Messages and flows: those of ours are bytes without headers, so the tint goes in front.

_MARK = b"\xc1"
"""Begins a coloured payload. MessagePack never uses this byte and UTF-8 has no place for it, so no payload of ours begins with
it: a reader that knows nothing of colours is never given one by somebody who says none."""
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[str, str, bytes]).decode


def wrap(payload: bytes, tinted: Tint) -> bytes:
    """A message's or a flow's payload with the tint of the request that it is about; the same bytes for a plain one."""
    if tinted.plain and not payload.startswith(_MARK):
        return payload
    return _MARK + _pack((tinted.colour if COLOUR in dict(tinted.fields) else "", tinted.experiment, payload))


def unwrap(message: bytes) -> tuple[bytes, Tint]:
    """What `wrap` was given.

    Raises:
        SitsError: `invalid_request`: the envelope is torn.
    """
    if not message.startswith(_MARK):
        return message, PLAIN
    try:
        colour, experiment, payload = _unpack(memoryview(message)[1:])
    except msgspec.MsgspecError as error:
        raise SitsError(Code.INVALID_REQUEST, f"a coloured message cannot be read: {error}") from error
    return payload, tint(colour, experiment)


# The passing rate: whether the next hop says the colour back.

ECHO_SECONDS = 300.0
ECHO_VOLUME = 20
LOST = 0.01
"""The largest share of coloured requests that a hop which echoes may lose the colour of."""
MOST_HOPS = 4096


def echoed(headers: Headers, tinted: Tint) -> bool | None:
    """Whether an answer's fields say the tint back as it was sent; None when they say nothing of it at all."""
    found = [field for field in headers if field[0] in (COLOUR, EXPERIMENT)]
    return sorted(found) == sorted(tinted.fields) if found else None


class Hop:
    """One target as a hop: it is known to echo once it ever did, and is held to it from then on."""

    __slots__ = ("alarm", "echoes", "lost")

    def __init__(self) -> None:
        self.echoes = False
        self.lost = Share(ECHO_SECONDS)
        self.alarm = Alarm(LOST, ECHO_VOLUME)

    def passing(self, now: float) -> float | None:
        """The share of coloured requests whose colour came back; None for a hop that never says it, or was asked nothing."""
        lost = self.lost.look(now)
        return 1.0 - lost.rate if self.echoes and lost.total else None


class Passing:
    """The passing rate of each hop."""

    __slots__ = ("hops",)

    def __init__(self) -> None:
        self.hops: dict[str, Hop] = {}

    def heard(self, target: str, echo: bool | None, now: float) -> bool:
        """A coloured request was answered by this target; whether an alarm sounds with it.

        A refusal before the target's own code ran (a proxy's 502, say) tells nothing of it: call this for 2xx only.
        """
        hop = self.hops.get(target)
        if hop is None:
            if len(self.hops) >= MOST_HOPS:
                self.hops.clear()
            hop = self.hops[target] = Hop()
        if echo is not None:
            hop.echoes = True
        if not hop.echoes:
            return False
        hop.lost.count(not echo, now)
        return hop.alarm.judge(hop.lost)

    def retain(self, live: Iterable[str]) -> None:
        """Forget the targets that are not among `live`."""
        kept = set(live)
        for name in [name for name in self.hops if name not in kept]:
            del self.hops[name]
