"""Replacing a model by another while requests run, by several gateways and without a leader.

- `state.py`: what was noted, and what it means together: a join semilattice, with the rule for what contradicts.
- `watching.py`: what each gateway saw of the two models, summed over all.
- `proof.py`: sequential tests that may look as often as they like.
- `gates.py`: whether what must hold does.
- `machine.py`: what is to be noted next.
- `divert.py`: on the way of a request: who is asked instead of whom.
- `board.py`: the facts, over the bus and in the store.
"""
