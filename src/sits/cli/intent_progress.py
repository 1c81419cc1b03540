"""How far `sits intent` is, on the error stream: a bar for each thing that is done where somebody watches, else a line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click._termui_impl import ProgressBar


class Shown:
    """Hears what is being done, and how much of it is; nothing is shown where it is `quiet`. Close it in the end."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bars = sys.stderr.isatty()
        self._what = ""
        self._done = 0
        self._bar: ProgressBar[int] | None = None

    def __call__(self, what: str, done: int, of: int) -> None:
        if self._quiet or not of:
            return
        if what != self._what:
            self.close()
            self._what, self._done = what, 0
            if self._bars:
                self._bar = click.progressbar(length=of, label=what, file=sys.stderr)
                self._bar.render_progress()
            else:
                click.echo(f"{what}: {of:,} step{'' if of == 1 else 's'}", err=True)
        if self._bar is not None:
            self._bar.update(max(0, done - self._done))
        self._done = max(done, self._done)

    def close(self) -> None:
        """End the line that the bar is on."""
        if self._bar is not None:
            self._bar.render_finish()
            self._bar = None
        self._what = ""
