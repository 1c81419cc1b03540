"""Who is embedded when: the order of the slices, and what is dropped."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.engines.local.e5_lines import SLICE, WAITING, Crowded, Job, Line, Lines


class Library:
    """Notes what it embeds; a text's vector is the text."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, texts: Sequence[bytes], query: bool) -> list[bytes]:
        self.calls.append([text.decode() for text in texts])
        if b"broken" in texts:
            raise OSError("e5_embed_batch returned 1")
        return list(texts)


class Client:
    """Asks for texts, each with its size, and may go."""

    def __init__(self, name: str, *sizes: int, own: bool = False) -> None:
        self.here = True
        texts = [f"{name}{at}".encode() for at in range(len(sizes))]
        self.job = Job(texts, sizes, True, own, lambda: self.here)

    @property
    def served(self) -> bool:
        return self.job.done.is_set() and self.job.whole and self.job.rows == self.job.texts


def worked(clients: Sequence[Client], turns: int = 100) -> list[list[str]]:
    """The calls of a line that these clients ask."""
    library = Library()
    line = Line(library)
    for client in clients:
        line.put(client.job)
    for _ in range(turns):
        line.turn()
    return library.calls


ORDERS = {
    "short texts go together": ([Client("a", 50, 50, 28, 1)], [["a0", "a1", "a2"], ["a3"]]),
    "a long text goes alone": ([Client("a", 500, 500, 20)], [["a0"], ["a1"], ["a2"]]),
    "who came later and got less is next": ([Client("a", 500, 500, 500), Client("b", 200)], [["a0"], ["a1"], ["b0"], ["a2"]]),
    "the oldest has every other slice": (
        [Client("a", 500, 500), Client("b", 500, 500), Client("c", 500)],
        [["a0"], ["a1"], ["b0"], ["b1"], ["c0"]],
    ),
    "the gateway's own is before others": (
        [Client("a", 500, 500, 500), Client("own", 300, 300, own=True)],
        [["own0"], ["a0"], ["own1"], ["a1"], ["a2"]],
    ),
}


@pytest.mark.parametrize("row", ORDERS.values(), ids=ORDERS)
def test_slices_come_in_this_order(row: tuple[list[Client], list[list[str]]]) -> None:
    clients, calls = row
    assert worked(clients) == calls
    assert all(client.served for client in clients)


def test_the_work_of_who_has_gone_ends_with_the_slice() -> None:
    library = Library()
    line = Line(library)
    long, short = Client("a", *[500] * 2000), Client("b", 200)
    line.put(long.job)
    line.turn()
    long.here = False
    line.put(short.job)
    line.turn()
    assert library.calls == [["a0"], ["b0"]]
    assert (long.job.done.is_set(), long.job.whole, short.served) == (True, False, True)
    line.turn()
    assert library.calls == [["a0"], ["b0"]], "nobody waits"


def test_who_meets_a_failure_hears_of_it_and_the_others_go_on() -> None:
    broken, fine = Client("a", 500, 500), Client("b", 500)
    broken.job.texts = [b"broken", b"never"]
    assert worked([broken, fine]) == [["broken"], ["b0"]]
    assert (str(broken.job.error), broken.job.done.is_set(), fine.served) == ("e5_embed_batch returned 1", True, True)


DEFECTS = {"no memory": MemoryError("no room"), "a defect": ValueError("an odd text")}


@pytest.mark.parametrize("error", DEFECTS.values(), ids=DEFECTS)
def test_a_defect_of_the_library_ends_the_request_that_meets_it_and_no_line(error: Exception) -> None:
    def embed(texts: Sequence[bytes], query: bool) -> list[bytes]:
        if b"broken" in texts:
            raise error
        return list(texts)

    line, broken, other = Line(embed), Client("x", 1), Client("b", 1)
    broken.job.texts = [b"broken"]
    for client in (broken, other):
        line.put(client.job)
    line.turn()
    line.turn()
    assert (broken.job.done.is_set(), str(error) in str(broken.job.error), other.served) == (True, True, True)


def test_a_text_without_a_vector_is_a_failure_and_not_asked_for_for_ever() -> None:
    line, client = Line(lambda texts, query: list(texts)[1:]), Client("a", 5, 5)
    line.put(client.job)
    line.turn()
    assert (client.job.done.is_set(), str(client.job.error)) == (True, "2 texts have 1 embeddings")


def test_a_line_takes_so_many_and_no_more() -> None:
    line = Line(Library())
    for _ in range(WAITING):
        line.put(Client("a", 5).job)
    with pytest.raises(Crowded, match="1024 requests wait"):
        line.put(Client("b", 5).job)


@given(
    wishes=st.lists(st.tuples(st.lists(st.integers(4, 512), min_size=1, max_size=6), st.booleans(), st.booleans()), max_size=6)
)
@settings(max_examples=100, deadline=None)
def test_everybody_who_stays_gets_a_row_for_each_text_and_no_call_is_longer_than_it_need_be(
    wishes: list[tuple[list[int], bool, bool]],
) -> None:
    clients = [Client(f"{at}.", *sizes, own=own) for at, (sizes, own, _) in enumerate(wishes)]
    for client, (_, _, stays) in zip(clients, wishes, strict=True):
        client.here = stays
    sizes = {text.decode(): size for client in clients for text, size in zip(client.job.texts, client.job.sizes, strict=True)}
    calls = worked(clients)
    assert [client.served for client in clients] == [stays for _, _, stays in wishes]
    assert all(client.job.done.is_set() for client in clients)
    assert all(len(call) == 1 or sum(sizes[text] for text in call) <= SLICE for call in calls)


def test_what_is_short_is_done_while_a_long_text_is_in_the_library() -> None:
    """The long one is not let out of the library before the short one has its answer."""
    entered, leave = threading.Event(), threading.Event()

    def embed(texts: Sequence[bytes], query: bool) -> list[bytes]:
        if texts[0].startswith(b"long"):
            entered.set()
            assert leave.wait(30)
        return list(texts)

    lines = Lines(embed)
    long, short, own = Client("long", 500), Client("short", 20), Client("own", 500, 500, own=True)
    behind = threading.Thread(target=lines.do, args=(long.job,))
    behind.start()
    try:
        assert entered.wait(30)
        assert (lines.do(short.job), lines.do(own.job), long.job.done.is_set()) == (True, True, False)
    finally:
        leave.set()
        behind.join(30)
    assert long.served
