"""What the page of `sits bench routing` says between its tables."""

from __future__ import annotations

from sits.bench.routing_cluster import HOLDS
from sits.bench.routing_cluster import LOAD as CLUSTER_LOAD
from sits.bench.routing_pool import EVEN, LIMIT, LOAD

INTRO = """\
A route with several backends asks one of them first. A policy says which. Here they are compared by simulation, with the code
that a gateway is to run (none asks it yet: routes draw by weight), on the same requests at the same moments, and a few of them
before real servers. `least-added` is our own."""
SETUP = f"""\
Eight backends serve one model on three generations of hardware. Each works on as many requests at once as it has slots; a token
takes half as long again when all are busy as when one is; further requests wait there, first come first served. A prompt is 400
tokens and an answer 150 in the median, both log-normal (655 and 203 in the mean); one request in 100 needs three times the work.
A client that has no content after 60 s goes away, and counts as 60 s. Capacity is what a backend does with all slots busy.

No policy is told how long an answer will be. `exact weights` are the capacities of this table, to the last digit: better than an
operator knows them, and right until something changes. `slots as weights` are the settings of the engines. All others are told
nothing: they see when their requests begin to be answered, end and fail. `all-knowing` is no policy for use: it knows the speeds
and slots of all backends beforehand (not their troubles), and shows what can be had by choosing.

Traces are 300 s long; each figure is the mean of three seeds. A rate is carried when 99 of 100 whole answers take at most
{LIMIT:.0f} s and at most 1 % have none; the peak is found by halving. One configuration of each policy is used for everything on
this page. In the drawings, `least-conn.` has no weights and `lc, exact` has exact ones.

Pool, lengths and traffic were set before the first run; the limit of 45 s, the 70 % and that exact weights are what counts were
put into code after the first looks, and not changed since. `least-added` was: that it learns the time of a token rather
than of a request, and the room of a backend from late first contents, came from looking at the mixed pool with seed 1;
that an idle backend is forgotten in 30 s, and what a second in line counts, came from the same pool and traffic with other seeds
(11 to 13). The runs with several gateways showed a mistake that was mended: a silence counted for the requests of other gateways
too. The pool of equal backends and the real servers played no part."""
TRAFFIC_TEXT = {
    "steady": f"Poisson arrivals. The table is at {LOAD:.0%} of the capacity of the pool.",
    "bursty": "Poisson arrivals whose rate jumps: twice the mean for 8 s, six tenths of it for 20 s, both exponential. "
    f"The table is at {LOAD:.0%} of the capacity.",
    "degrading": "Steady, and one of the two largest backends is four times as slow in the second third of the trace. "
    f"The table is at {LOAD:.0%} of the capacity.",
}
COMPARED = f"""\
At {LOAD:.0%} of the capacity, or at the other policy's own peak where that is lower: at a rate that it cannot carry, its latency
would only say how long the trace is. Above 1, `least-added` is quicker."""
EVEN_TEXT = f"""\
The same at the highest rate, up to {LOAD:.0%} of the capacity, at which the other policy gives at least {EVEN:.0%} as many
answers in the time of the trace as `least-added` does, however late they come. This comparison was added after the first
results."""
FAILING_TEXT = f"""\
Steady traffic at {LOAD:.0%}; in the second third, one of the two largest backends answers nine of ten requests with an error
after 10 ms. Nothing is tried again here and no breaker is open, as there would be in a gateway. Who counts only what is under way
takes it for the idlest of all."""
GATEWAYS = f"""\
Steady traffic at {LOAD:.0%}, spread over gateways that know nothing of each other: each sees its own requests only, unless it
reads the metrics of the backends: running and waiting requests, as vLLM and TGI tell them."""
CLUSTER = f"""\
A thousand nodes with 8, 16 or 32 GiB of KV memory; requests hold 1 to 16 GiB for {HOLDS:.0f} s in the mean; arrivals take
{CLUSTER_LOAD:.0%} of all memory. Scheduling latency is the time from the arrival of a request until it has a node, choosing
included. The plain scorer looks at all nodes and takes the one with the largest share free, as Kubernetes' `LeastAllocated` does
(where the real one looks at a sample of the nodes); the other one takes the node on which least is left. Fragmentation: the share
of the free memory that a request drawn at random cannot use, for its node has too little (Weng et al., USENIX ATC 2023). How long
a request runs does not depend on its node here, so that what is measured is the placing alone."""
REAL = """\
Four model servers of `sits.chaos.server` on this machine: 8 slots each, 5, 10, 20 and 40 ms a token; streamed answers of 38
tokens in the mean. The same requests are simulated beside it."""
COST = "In CPython, not compiled; medians. Of more than 16 targets, `least-added` and `least-expected` look at 16."
