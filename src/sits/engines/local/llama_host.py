"""Serving a GGUF model with llama.cpp's own server, in this process. Imported only by the host."""

from __future__ import annotations

import http.client
import urllib.parse

from sits.engines.local.hosting import READY_WITHIN, CannotServe, HostSpec
from sits.engines.local.memory import BATCH, CHECKPOINTS, EMBEDDING_BATCH

# What changes when the model has done anything: tokens in, tokens from the cache, tokens out.
_WORK = (b"llamacpp:prompt_tokens_total", b"llamacpp:prompt_tokens_cached_total", b"llamacpp:tokens_predicted_total")
_IN_HAND = (b"llamacpp:requests_processing", b"llamacpp:requests_deferred")


def serve(spec: HostSpec) -> Llama:
    """The model, answering on loopback.

    Raises:
        CannotServe: the package is missing, or llama.cpp refused the file; its reason is on stderr.
    """
    try:
        import xllamacpp
    except ImportError as error:
        raise CannotServe(f"install sits[local]: {error}") from error
    try:
        server = xllamacpp.Server(_params(xllamacpp, spec))
    except RuntimeError as error:
        raise CannotServe(f"llama.cpp could not load {spec.weights}") from error
    return Llama(server, server.listening_address, spec.key)


def _params(xllamacpp: object, spec: HostSpec) -> object:
    params = xllamacpp.CommonParams()  # type: ignore[attr-defined]
    params.model.path = spec.weights
    params.model_alias = {spec.name}
    params.n_ctx = spec.context * spec.slots  # llama.cpp divides it by the slots
    params.n_parallel = spec.slots
    params.n_batch = params.n_ubatch = BATCH
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = spec.threads
    params.n_threads_http = spec.slots * 2 + 4  # a streamed answer holds one; others must still be able to ask and to cancel
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [spec.key]
    params.cors_origins = ""
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.ui = False
    params.offline = True
    params.verbosity = 2  # warnings; the levels above name no content either, but say much
    params.fit_params = False  # what does not fit is refused before, with figures; never shrunk in silence
    params.cache_idle_slots = False
    params.cache_ram_mib = 0 if spec.embedding else spec.prefixes_mib  # part of the estimate
    params.n_ctx_checkpoints = CHECKPOINTS
    if spec.embedding:
        params.embedding = True
        params.n_batch = params.n_ubatch = max(EMBEDDING_BATCH, spec.context)  # an input to embed must fit one batch
    if spec.pooling is not None:
        params.pooling_type = getattr(
            xllamacpp.llama_pooling_type,  # type: ignore[attr-defined]
            f"LLAMA_POOLING_TYPE_{spec.pooling.upper()}",
        )
    return params


class Llama:
    """A running llama.cpp server; ends with the process."""

    __slots__ = ("_connection", "_key", "_server", "address")

    def __init__(self, server: object, address: str, key: str) -> None:
        self._server = server
        self.address = address
        self._key = key
        split = urllib.parse.urlsplit(address)
        self._connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=READY_WITHIN)

    def activity(self) -> tuple[int, int]:
        in_hand = work = 0
        for line in self._metrics().splitlines():
            name, _, value = line.partition(b" ")
            if name in _IN_HAND:
                in_hand += int(float(value))
            elif name in _WORK:
                work += int(float(value))
        return in_hand, work

    def _metrics(self) -> bytes:
        try:
            self._connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {self._key}"})
            return self._connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            self._connection.close()  # it was idle for too long; the next request opens a new one
            return b"llamacpp:requests_processing 1\n"
