"""Who makes the embeddings that the gateway itself goes by: domains, and services found by meaning."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sits.resources.vocabulary import Name, Spec

Prefix = Annotated[str, msgspec.Meta(max_length=500)]


class EmbedderSpec(Spec, frozen=True):
    """A declared Model in place of the built-in embedding model."""

    model: Name
    """The Model; it can do `embeddings`."""
    query_prefix: Prefix = ""
    """What its makers want in front of what is asked, `query: ` or an instruction; bge-m3 wants nothing."""
    document_prefix: Prefix = ""
    """The same in front of what is found: the cards of services."""
