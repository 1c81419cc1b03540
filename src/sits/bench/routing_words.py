"""What the page of `sits bench routing` says between its tables."""

from __future__ import annotations

from sits.bench.routing_cluster import HOLDS
from sits.bench.routing_cluster import LOAD as CLUSTER_LOAD
from sits.bench.routing_pool import EVEN, LIMIT, LOAD, SHORT

INTRO = """\
A route with several backends asks one of them first. Its `policy` says which; a route that says nothing of weights or policies
has `least-added`, which is our own. Here all policies are compared: by simulation, with the very code that a gateway asks, on the
same requests at the same moments; and in a real gateway before real servers."""
SETUP = f"""\
Eight backends serve one model on three generations of hardware. Each works on as many requests at once as it has slots; a token
takes half as long again when all are busy as when one is; further requests wait there, first come first served. A prompt is 400
tokens and an answer 150 in the median, both log-normal (655 and 203 in the mean); one request in 100 needs three times the
work. A client that has no content after 60 s goes away, and counts as 60 s. Capacity is what a backend does with all slots
busy.

No policy is told how long an answer will be; `least-added` and `least-expected` see how long prompts are. Those without weights
are told nothing of the backends: they see when their requests begin to be answered, end and fail. `all-knowing` is no policy
for use: it knows the speeds and slots of all backends beforehand (not their troubles), and shows what can be had by choosing.
**At least** and **at most** in the tables are no policy
at all, but arithmetic: the lowest mean latency that any choice can give at that rate, also one that knows the future, where it
does not know how long answers will be; and so the most times that any can be quicker (`sits.bench.routing_bound` says why).

Traces are 300 s long; each figure is the mean of three seeds. A rate is carried when 99 of 100 whole answers take at most
{LIMIT:.0f} s and at most 1 % have none; the peak is found by halving. One configuration of each policy is used for everything
on this page. In the drawings, `least-conn.` has no weights, `lc, slots` and `lc, exact` have those.

Pool, lengths and traffic were set before the first run; the limit of 45 s and the 70 % were put into code after the first
looks, and not changed since. `least-added` was: that it learns the time of a token rather than of a request, and the room of a
backend from late first contents, came from looking at the mixed pool with seed 1; that an idle backend is forgotten in 30 s,
and what a second in line counts, came from the same pool and traffic with other seeds (11 to 13). The runs with several
gateways showed a mistake that was mended: a silence counted for the requests of other gateways too. The four generations showed
another: where a line lasted, waiting in it came to be taken for the usual time to a first content, and the server for one with
more room (before that was mended, `least-added` was 0.91 times as quick as slots there). The pool of equal backends and the
real servers played no part."""
WHICH = """\
It is as good as its weights, and what is said of it depends on whose they are. All of these are here:

| weights | whose they are |
| --- | --- |
| none | the default of nginx, HAProxy and Envoy: all alike |
| **slots** | the settings of the engines, which every operator has |
| data sheet | arithmetic by what the maker says (in the first pool, the same as slots: 4 : 2 : 1) |
| stale | exact, but from before one of the largest backends and one of the next class changed places |
| exact | the capacities, to the last digit: nobody has them, and they are right until something changes |

**The bounds are held against slots**: weights that somebody can set without measuring his traffic, that are neither the default
nor an oracle, and that the same rule gives for every pool. Until now the page held them against exact weights. Those leave
nothing to gain by construction: whoever sends each backend what it can do uses all of the pool, so that no policy has a higher
peak, and a bound of 1.13 on the peak can only be meant for weights that are somewhat off. The figures against all others are
below (`..._vs_wlc_exact`, `..._vs_wlc_stale`, `..._vs_wlc_data_sheet`, `..._vs_least_connections`). Known when this was
decided: in the first pool slots are almost as good as exact weights, and of weights that are alike (so are slots before the
real servers) an earlier run said 1.9. The four generations had not been run. Before the real servers the bound holds against
slots that are alike; against exact weights and data sheets there it would not."""
GENERATIONS_TEXT = f"""\
The same requests before two each of four generations, one model of 7 billion parameters on each: a token is as fast as its
memory is read, a prompt as its arithmetic (40 % of it), slots are the memory that the weights leave over the longest request,
all by data sheets and set before the first run. Traces are {SHORT:.0f} s long, for there are eight times as many requests a
second; the limit is that of the first pool by the speed of the slowest backend: 17.5 s. One of the two largest is four times as
slow in the second third of `degrading`. After the first run one thing of the simulator was changed: a backend refused the 513th
request in its line, which in the first pool never happens, and here did in bursts."""
TALKS = """\
What the pools above leave out is how most requests begin: as one before. Here every request is a turn of a conversation of four
turns in the mean, of one of twelve applications with instructions of their own; a prompt is all that was said before and
something new: 3,500 tokens in the mean, of which 450 were never read. Servers read one prompt after the other, 2,048 tokens in
each step beside the answers they write, and need not read again what they keep; they keep the state of as many tokens as their
memory holds, what was not used for longest going first. Nothing of that is told to any policy: `least-added` remembers, as it
does in a gateway, digests of how prompts began that it sent to whom, and learns from first contents what a byte takes each
server to read and whether it keeps anything. What is read twice costs the more, the more are under way beside it; that is
weighed against everything else, in seconds.

`sticky conversations` is policy `hash` by session, told exact weights; `cache-aware` the policy of this name of SGLang's and
vLLM's routers, as their documentation describes it, at their defaults; `least-added, prompts unread` our own without what it
knows of prompts. Capacity is what the pool could do if nothing were ever read twice and memories had no end, so that nobody comes
near it. Traces are 100 s long, of six seeds; the limit is 20 s by the speed of the slowest backend. Pool and conversations were
set before the first run but for two numbers, changed after one look at what share of a trace is new, before any policy had seen
it (six turns and 120 tokens said in the median had made that 8 %). What `least-added` learns of reading was found on steady and
bursty traffic of this pool with seeds 1 to 3: a first version believed in a rush that servers forget, and then nobody kept to
one, and they did; a second one knew nothing of reading before it had seen eight answers of each, and guesses now. Three seeds
were too few to place a peak (1.10 times that of slots in bursty traffic with these, before six were taken).
In the pools above, where prompts are read side by side and slow nobody down, it reckons with a slowdown that is not there: that
costs it up to 5 % on the four generations."""
TRAFFIC_TEXT = {
    "steady": f"Poisson arrivals. The table is at {LOAD:.0%} of the capacity of the pool.",
    "bursty": "Poisson arrivals whose rate jumps: twice the mean for 8 s, six tenths of it for 20 s, both exponential. "
    f"The table is at {LOAD:.0%} of the capacity.",
    "degrading": "Steady, and one of the two largest backends is four times as slow in the second third of the trace. "
    f"The table is at {LOAD:.0%} of the capacity.",
}
COMPARED = f"""\
At {LOAD:.0%} of the capacity, or at the other policy's own peak where that is lower: at a rate that it cannot carry, its
latency would only say how long the trace is. Above 1, `least-added` is quicker. `at most` is what any policy could be, see
above: in this pool nobody can be 2.18 times as quick as round robin at rates that it carries, nor 1.44 times as quick as
least-connections by slots in steady and degrading traffic. Most of a latency is the answer's own
time on the quickest backends."""
EVEN_TEXT = f"""\
The same at the highest rate, up to {LOAD:.0%} of the capacity, at which the other policy gives at least {EVEN:.0%} as many
answers in the time of the trace as `least-added` does, however late they come. This comparison was added after the first
results."""
FAILING_TEXT = f"""\
Steady traffic at {LOAD:.0%}; in the second third, one of the two largest backends answers nine of ten requests with an error
after 10 ms. Nothing is tried again here and no breaker is open, as there would be in a gateway. Who counts only what is under way
takes it for the idlest of all."""
GATEWAYS = f"""\
Steady traffic, spread over gateways in turn, so that a turn of a conversation comes to any of them: single prompts before the
mixed pool at {LOAD:.0%} of the capacity, conversations before servers that remember at 50%. Each gateway sees its own requests.
It may know more: by the metrics of the backends (running and waiting requests, read every second, as vLLM and TGI tell them), or
by reports of the other gateways, 20 ms after there is something to tell: what they have under way, how long answers took, who has
read which prompts (`sits.routing.reports`, the code of the gateway)."""
CLUSTER = f"""\
A thousand nodes with 8, 16 or 32 GiB of KV memory; requests hold 1 to 16 GiB for {HOLDS:.0f} s in the mean; arrivals take
{CLUSTER_LOAD:.0%} of all memory. Scheduling latency is the time from the arrival of a request until it has a node, choosing
included. The plain scorer looks at all nodes and takes the one with the largest share free, as Kubernetes' `LeastAllocated`
does (where the real one looks at a sample of the nodes); the other one takes the node on which least is left. Fragmentation:
the share of the free memory that a request drawn at random cannot use, for its node has too little (Weng et al., USENIX ATC
2023). How long a request runs does not depend on its node here, so that what is measured is the placing alone. The tightest fit
is the code of the score `memory-fit` (`sits.routing.policies.fit`): a route that has it places by the same object."""
REAL = """\
One `sits serve`, in a process of its own, not compiled; one route for each policy; behind it four model servers
(`sits.chaos.server`), 5, 10, 20 and 40 ms a token, each with 8 slots and a line. Answers are streamed, 38 tokens in the mean.
Every policy gets the same requests at the same moments, sent when they are due whether others are answered or not, and begins
knowing nothing: each route has models of its own. Breakers and outliers are off, so that only choosing is measured (a breaker
takes a server with a line for one that is not well). Slots are alike here, so that least-connections by slots is the one
without weights. For the data sheet the servers are taken for four generations that are about as fast to each other. The same
requests are simulated beside it, with other random numbers for the policies that draw; `answers /s` are those that came before
the last request was sent."""
REAL_TALKS = """\
One `sits serve`, not compiled, and for each policy a route of two models: SmolLM2 135M in llama.cpp, one thread and two slots
each, in processes that have read nothing before, and keep 32 MiB of what left a slot: 1,400 tokens. Eight conversations at a
time, of six turns; all begin with the same 80 words, each turn adds 40 to 100 words, answers have 16 tokens. Turns come when they
are due, whether the ones before are answered or not, the same for all policies, which run one after the other; prompts too short
to be remembered have the models loaded before. The two models are alike, so that least-connections by slots is the one without
weights. No bound is held here: the servers are as fast as each other, and wait for requests most of the time.

What is read twice here is less than one would think: a server that a conversation wanders to has read all but the last turn or
two of it. Looking at single requests of earlier runs showed two things that simulation had not. A byte's time was learned as half
of what it is where all prompts are about as long (since then, what reading nothing takes counts, too). And llama.cpp gives a new
conversation the slot of the one that begins most alike, which is then to be read again; since then, local models keep what left
its slot (`prefixesMib`)."""
COST = """\
In CPython, not compiled unless SITS was installed so; medians. Of more than 16 targets, `least-added` and `least-expected` look
at 16."""
