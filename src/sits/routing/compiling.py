"""A word to mypyc, which compiles parts of routing into the wheel: a class that plugins, which are not compiled, may subclass.

`mypy_extensions` is there when it compiles and need not be when the gateway runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr as mypyc_attr
else:

    def mypyc_attr(**_):
        """Nothing, to whoever is not mypyc."""
        return lambda found: found
