"""Answers kept, so that the same question is not paid for twice.

    fingerprint  what counts as the same question
    rules        what may be kept, and for how long
    exact        the cache of one process; `tinylfu` chooses what goes when it is full
    flight       equal questions that are asked at the same time are asked once
    shared       the cache of all nodes, over the store port
    replay       a kept answer in the form that is asked for, whole or streamed

Everything but `shared` is pure: no loop, no socket, no clock.
"""
