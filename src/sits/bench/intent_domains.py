"""What is shipped of the labelled set: the twelve domains as resources, and the background; of the split `examples` alone; and
the embeddings of both.

    python -m sits.bench.intent_domains [FOLDER]

writes them anew where the set has changed, the embedding model being fetched into FOLDER (`data`) unless it is there; tests hold
that they agree with the set and the model.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

import sits.state.intent
from sits.bench.intent import queries
from sits.resources.domains import DOMAINS_FOLDER, Domain, DomainSpec
from sits.resources.vocabulary import Metadata
from sits.resources.writing import to_yaml
from sits.state.intent import shipped
from sits.state.intent.embedders import Deep, open_e5, weights_named
from sits.state.intent.labelled import UNKNOWN, domains_of
from sits.state.intent.material import Kind, Unasked

BACKGROUND = Path(sits.state.intent.__file__).parent / "background.jsonl"
KINDS = BACKGROUND.with_name("kinds.jsonl")
FEW = 24
"""Examples of a domain, in each language, that tell what other kinds of task look like."""
EMBEDDED = BACKGROUND.with_name(shipped.FILE)
DESCRIPTIONS = {
    "code": "Writing, reading, mending and explaining programs, queries, scripts and configuration.",
    "compliance": "Whether something keeps to regulations, standards and policies, and what these ask for.",
    "cross-modal": "Images, audio, video and documents as pictures: describing, comparing, finding and reading them.",
    "customer-service": "Orders, deliveries, returns, accounts and complaints of customers.",
    "inspection": "Inspecting plants, machines and structures: defects, readings, what to do about them.",
    "legal": "Questions of law, contracts, disputes.",
    "maths": "Calculating, solving and proving.",
    "medical": "Complaints, illnesses, medicines, findings and care.",
    "multi-hop": "Questions whose answer takes several facts, one after the other.",
    "risk": "Credit, fraud, market and operational risk: judging, modelling and limiting it.",
    "summary": "Making a given text shorter: summaries, minutes, key points.",
    "translation": "Translating texts, and judging translations.",
}


def files() -> dict[Path, str]:
    """What is shipped, by where it lies."""
    examples = [query for query in queries() if query.split == "examples"]
    found = {}
    kinds = []
    for name in domains_of(examples):
        listed = {lang: [one.text for one in examples if (one.domain, one.lang) == (name, lang)] for lang in ("en", "zh")}
        # Spread over all of them: they were written subject by subject.
        kinds += [Kind(some[at * len(some) // FEW], name) for some in listed.values() for at in range(FEW)]
        spec = DomainSpec(examples=listed, description=DESCRIPTIONS[name])
        found[DOMAINS_FOLDER / f"{name}.yaml"] = to_yaml([Domain(Metadata(name), spec)])
    unasked = [Unasked(one.text, one.lang) for one in examples if one.domain == UNKNOWN]
    found[BACKGROUND] = "".join(msgspec.json.encode(one).decode() + "\n" for one in unasked)
    found[KINDS] = "".join(msgspec.json.encode(one).decode() + "\n" for one in kinds)
    return found


def texts() -> list[str]:
    """The texts that are shipped, in the order of the set."""
    return [query.text for query in queries() if query.split == "examples"]


def embeddings(deep: Deep) -> bytes:
    """The embeddings of them, as they are shipped."""
    return shipped.pack(weights_named(), texts(), deep.embed(texts()))


if __name__ == "__main__":
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    EMBEDDED.write_bytes(embeddings(open_e5(Path(sys.argv[1] if len(sys.argv) > 1 else "data"))))
