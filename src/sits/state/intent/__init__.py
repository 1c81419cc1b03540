"""Reading what requests want: embeddings of both stages, labelled queries, and a reader that keeps no loop waiting."""
