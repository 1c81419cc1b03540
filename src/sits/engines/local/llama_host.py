"""Serving a GGUF model with llama.cpp's own server, in this process. Imported only by the host."""

from __future__ import annotations

import urllib.parse
from typing import Any

from sits.engines.local.hosting import READY_WITHIN, CannotServe, HostSpec
from sits.engines.local.memory import BATCH, CHECKPOINTS, EMBEDDING_BATCH
from sits.engines.local.zeros import give_zeros_back, trim

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
    return Llama(xllamacpp, spec)


def _params(xllamacpp: Any, spec: HostSpec) -> object:
    params = xllamacpp.CommonParams()
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
            xllamacpp.llama_pooling_type,
            f"LLAMA_POOLING_TYPE_{spec.pooling.upper()}",
        )
    return params


class Llama:
    """A running llama.cpp server; ends with the process.

    It rests by being made anew. What it has read, kept and computed goes with the old server, and nothing has to be known of it.
    The new one has its vocabulary, its buffers and its weights mapped, but was never asked anything, so its context is zeros,
    which are given back. The first request finds a server that is ready. Making it takes 0.3 s, and nobody waits for that.
    """

    __slots__ = ("_binding", "_connection", "_server", "_spec", "address")

    def __init__(self, binding: Any, spec: HostSpec) -> None:
        self._binding = binding
        self._spec = spec
        self._connection: Any = None
        self._server: Any = None
        self.address = ""
        self._make()

    def rest(self) -> bool:
        # What lies on an accelerator is not seen from here, so that it could be neither given back nor counted.
        kinds = self._binding.ggml_backend_dev_type
        if any(
            one["type"] not in (kinds.GGML_BACKEND_DEVICE_TYPE_CPU, kinds.GGML_BACKEND_DEVICE_TYPE_ACCEL)
            for one in self._binding.get_device_info()
        ):
            return False
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._server = None
        trim()  # it must not become part of the new one's heap
        self._make()
        try:
            give_zeros_back()
        except OSError as error:
            raise CannotServe(f"its memory cannot be given back: {error}") from error
        return True

    def _make(self) -> None:
        try:
            self._server = self._binding.Server(_params(self._binding, self._spec))
        except RuntimeError as error:
            raise CannotServe(f"llama.cpp could not load {self._spec.weights}") from error
        self.address = self._server.listening_address

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
        import http.client  # 16 of the 330 ms of CPU of a start, and not needed for it

        for _ in range(2):  # the server closes a connection that was idle, or had its hundred requests
            if self._connection is None:
                split = urllib.parse.urlsplit(self.address)
                self._connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=READY_WITHIN)
            try:
                self._connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {self._spec.key}"})
                return bytes(self._connection.getresponse().read())
            except (OSError, http.client.HTTPException):
                self._connection.close()
                self._connection = None
        return b"llamacpp:requests_processing 1\n"
