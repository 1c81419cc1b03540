"""Quality of service: who is let in, in which order, how many at once, while there are more requests than the models can take.

Pure: clocks are passed in, and nothing here waits. `gate` is the door of one route, `limit` finds how many may be inside,
`classes` and `deadline` read what a request says of itself, `course` says what each class is given under overload.
"""
