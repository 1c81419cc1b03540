"""`sits chat` in a terminal: a talk of several turns, through a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from serving import BIN, PATIENCE, Served, Upstream, environment, says
from sits.engines.scripted import Received, chunked

PROMPT = "you > "
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """What stands on the screen, and a keyboard."""

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._raw = b""
        self._read = 0

    def until(self, text: str) -> str:
        """What is new on the screen up to and with `text`."""
        end = time.monotonic() + PATIENCE
        while True:
            screen = ESCAPES.sub("", self._raw.decode("utf-8", "ignore")).replace("\r", "")
            found = screen.find(text, self._read)
            if found >= 0:
                new = screen[self._read : found + len(text)]
                self._read = found + len(text)
                return new
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not appear: {screen[self._read :]!r}"
            try:
                self._raw += os.read(self._fd, 4096)
            except OSError:  # the other end is closed
                raise AssertionError(f"{text!r} did not appear before the end: {screen[self._read :]!r}") from None

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())


@contextmanager
def terminal(*arguments: str, url: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(BIN / "sits"), *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(SITS_URL=url, TERM="xterm", LC_ALL="C.UTF-8"),
        start_new_session=True,
        # Tests that are run in the background have Ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def parrot(request: Received) -> bytes:
    """Says again what was asked last, and how many turns there were; asked to be silent, begins and goes no further."""
    messages = json.loads(request.body)["messages"]
    asked = messages[-1]["content"]
    texts = ["one", "..."] if asked == "stall" else [f"{len(messages)}:", asked]
    pieces = [{"model": "m", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]} for text in texts]
    last = {"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events = [f"data: {json.dumps(one)}\n\n".encode() for one in (pieces if asked == "stall" else [*pieces, last])]
    ending = [] if asked == "stall" else [b"data: [DONE]\n\n"]
    return chunked(200, *events, *ending, fields=[("content-type", "text/event-stream")], end=asked != "stall")


def test_a_talk_goes_on_turn_after_turn_until_ctrl_d(gateway: Served) -> None:
    with Upstream(says(parrot)) as upstream, gateway.model("parrot", upstream.url, engine="vllm"):
        with terminal("chat", "-m", "parrot", "-s", "Repeat.", url=gateway.url) as screen:
            assert f"talking to parrot at {gateway.url}" in screen.until(PROMPT)
            screen.type("你好\n")
            assert "2:你好\n" in screen.until(PROMPT)
            screen.type("and again\n")
            assert "4:and again\n" in screen.until(PROMPT)
            screen.type("\x04")
            assert screen.process.wait(PATIENCE) == 0
        assert [message["content"] for message in upstream.bodies[-1]["messages"]] == [
            "Repeat.",
            "你好",
            "2:你好",
            "and again",
        ]


def test_ctrl_c_stops_an_answer_and_the_talk_goes_on(gateway: Served) -> None:
    with (
        Upstream(says(parrot)) as upstream,
        gateway.model("parrot-2", upstream.url, engine="vllm"),
        terminal("chat", "-m", "parrot-2", url=gateway.url) as screen,
    ):
        screen.until(PROMPT)
        screen.type("stall\n")
        screen.until("one...")
        os.kill(screen.process.pid, signal.SIGINT)
        screen.until("(stopped)")
        upstream.until(lambda server: server.gone >= 1)
        screen.until(PROMPT)
        screen.type("go on\n")
        assert "3:go on\n" in screen.until(PROMPT)


def test_a_turn_that_goes_wrong_does_not_end_the_talk(gateway: Served) -> None:
    with terminal("chat", "-m", "nobody", url=gateway.url) as screen:
        screen.until(PROMPT)
        screen.type("hi\n")
        assert "Error: 404: there is no model 'nobody'" in screen.until(PROMPT)
        screen.type("\x04")
        assert screen.process.wait(PATIENCE) == 0
