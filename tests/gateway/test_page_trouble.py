"""What a page that was broken off is answered with."""

from __future__ import annotations

import errno

import pytest

from sits.gateway.pages import _unforeseen
from sits.inner.errors import Code

TROUBLE = {
    "a full disk": (
        OSError(errno.ENOSPC, "No space left on device", "/data/x"),
        Code.STATE_UNAVAILABLE,
        "/data/x: No space left",
    ),
    "a folder that is not ours": (OSError(errno.EROFS, "Read-only", "/data/x"), Code.STATE_UNAVAILABLE, "may write to"),
    "another error of the system": (OSError(errno.ENOENT, "No such file", "/data/x"), Code.INTERNAL, "under request id r1"),
    "a defect": (KeyError("x"), Code.INTERNAL, "a defect of the gateway; its log has the details under request id r1"),
}


@pytest.mark.parametrize(("error", "code", "words"), TROUBLE.values(), ids=TROUBLE.keys())
def test_what_an_operator_can_mend_is_no_defect(error: Exception, code: Code, words: str) -> None:
    told = _unforeseen(error, "r1")
    assert (told.code, words in told.message) == (code, True)
