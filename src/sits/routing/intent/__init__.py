"""What a request wants: the arithmetic. Nothing here loads a model or waits; `sits.state.intent` brings the embeddings."""
