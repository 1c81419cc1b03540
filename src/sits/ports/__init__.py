"""Outside things behind small contracts: store, bus, vectors, flows.

Each port has one contract (`base.py`), one set of checks that ships with it (`checks.py`), a fake with a virtual clock for
tests (`memory.py`), an adapter that needs no server, and adapters to real ones. `Settings` names which one is used.
"""
