"""The gateways that are measured, how each is started, and what each has switched on. A gateway is a row of `GATEWAYS`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from sits.bench import BenchError, bodies, own_build
from sits.bench.child import Child
from sits.ports.servers.process import free_port


class Spot(msgspec.Struct, frozen=True):
    """Where a gateway is to run."""

    folder: Path
    """Its own, empty: configuration, data, log."""
    cache: Path
    """Where the virtual environments of the peers are."""
    core: int
    upstream: str
    """Address of the model server, without a path."""


class Command(msgspec.Struct, frozen=True):
    """How to start one."""

    argv: list[str]
    port: int
    env: dict[str, str] = {}
    headers: dict[str, str] = {}
    """What a client must send."""
    ready: str | None = None
    """Path that answers 200 once it is ready; without one a first answer is waited for."""


class Gateway(msgspec.Struct, frozen=True):
    name: str
    switched_on: str
    """For the page: what it does on each request, and what a user would have turned off."""
    command: Callable[[Spot], Command]
    requirements: tuple[str, ...] = ()
    """What pip installs for it; empty for SITS itself, which runs from the environment of the bench."""
    package: str = ""
    """Whose version is shown; the folder in the cache has the name of the gateway."""
    extra: str = ""
    """An extra of `package` that is installed too, but for `companions`."""
    companions: tuple[str, ...] = ()


class Running(msgspec.Struct, frozen=True):
    """A started gateway."""

    gateway: Gateway
    child: Child
    url: str
    headers: dict[str, str]
    ready: str | None


def start(gateway: Gateway, spot: Spot) -> Running:
    """Start it; it may not be ready yet. Whoever calls stops `child`.

    Raises:
        BenchError: it is not installed.
    """
    command = gateway.command(spot)
    if not Path(command.argv[0]).exists():
        raise BenchError(f"{gateway.name} is not installed ({command.argv[0]}): run `sits bench gateway --setup`")
    child = Child(gateway.name, command.argv, core=spot.core, log=spot.folder / "log", env=command.env)
    return Running(gateway, child, f"http://127.0.0.1:{command.port}", command.headers, command.ready)


def version(gateway: Gateway, cache: Path) -> str:
    """The installed version of a peer."""
    python = cache / gateway.name / "bin" / "python"
    code = f"import importlib.metadata as m; print(m.version({gateway.package!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or "unknown"


def _sits(spot: Spot, compiled: bool = True, declared: bool = False) -> Command:
    """Everything at its default, one remote model behind one route, and a key, which makes the key needed. `declared`: with a
    second model, and everything declared that keeps requests from being dropped."""
    config, data, port = spot.folder / "config", spot.folder / "data", free_port()
    config.mkdir()
    resources: dict[str, dict[str, Any]] = {
        "model.json": {
            "kind": "Model",
            "metadata": {"name": "upstream"},
            "spec": {"engine": "openai", "endpoint": spot.upstream, "upstreamModel": bodies.MODEL},
        },
        "route.json": {
            "kind": "Route",
            "metadata": {"name": bodies.MODEL},
            "spec": {"backends": [{"model": "upstream"}], **(_DECLARED if declared else {})},
        },
    }
    if declared:
        spare = {**resources["model.json"], "metadata": {"name": "spare"}}
        resources |= {"spare.json": spare, "settings.json": {"kind": "Settings", "spec": {"qos": {}}}}
    for name, resource in resources.items():
        (config / name).write_bytes(msgspec.json.encode({"apiVersion": "sits/v1", **resource}))
    program = str(own_build.program(spot.cache)[0] if compiled else Path(sys.executable).parent / "sits")
    made = subprocess.run(  # noqa: S603 - our own program
        [program, "keys", "new", "--name", "bench", "--data", str(data), "--json"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise BenchError(f"sits keys new failed:\n{made.stderr[-2000:]}")
    key = msgspec.json.decode(made.stdout)["key"]
    argv = [
        program,
        "serve",
        "--config",
        str(config),
        "--data",
        str(data),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    return Command(argv, port, headers=_client_headers(key), ready="/readyz")


def _router(program: str, *module: str, policy: str | None = "round_robin") -> Callable[[Spot], Command]:
    """Both routers come from one root and take the same flags."""

    def command(spot: Spot) -> Command:
        name = "vllm-router" if not module else "sglang-router"
        port = free_port()
        argv = [
            str(spot.cache / name / "bin" / program), *module,
            "--host", "127.0.0.1", "--port", str(port), "--worker-urls", spot.upstream, *(("--policy", policy) if policy else ()),
            "--log-level", "error", "--prometheus-port", str(free_port()), "--worker-startup-check-interval", "1",
        ]  # fmt: skip
        return Command(argv, port, headers=_client_headers("sk-bench"))

    return command


def _litellm(spot: Spot) -> Command:
    port, key = free_port(), "sk-bench-master"
    config = spot.folder / "config.json"
    model = {"model": f"openai/{bodies.MODEL}", "api_base": f"{spot.upstream}/v1", "api_key": "none"}
    config.write_bytes(
        msgspec.json.encode(
            {
                "model_list": [{"model_name": bodies.MODEL, "litellm_params": model}],
                "general_settings": {"master_key": key},
                "litellm_settings": {"telemetry": False},
            }
        )
    )
    argv = [
        str(spot.cache / "litellm" / "bin" / "litellm"),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    # LITELLM_RUST is pinned off rather than left out, so that nothing in the caller's environment turns it on.
    env = {"LITELLM_MODE": "PRODUCTION", "LITELLM_LOG": "ERROR", "LITELLM_RUST": "false"}
    return Command(argv, port, env=env, headers=_client_headers(key), ready="/health/liveliness")


def _aiohttp(spot: Spot) -> Command:
    port = free_port()
    argv = [
        str(spot.cache / "aiohttp" / "bin" / "python"), "-m", "uvicorn",
        "--app-dir", str(Path(__file__).parent), "peer_aiohttp:app", "--host", "127.0.0.1", "--port", str(port),
        "--loop", "uvloop", "--http", "httptools", "--no-access-log", "--log-level", "warning",
    ]  # fmt: skip
    return Command(argv, port, env={"UPSTREAM": spot.upstream}, headers=_client_headers("sk-bench"))


def _client_headers(key: str) -> dict[str, str]:
    """What every client sends, whether the gateway looks at it or not."""
    return {"authorization": f"Bearer {key}", "traceparent": bodies.TRACEPARENT}


_DECLARED = {
    "fallbacks": ["spare"],
    "retry": {"same": 1},
    "hedge": {"afterMs": 1000},
    "ladder": {"template": "No model can answer now."},
    "qos": {"priority": "P0"},
}
_ROUTER_WORDS = (
    "Rust. Metrics, retries, circuit breaker and health checks on, as by default; request ids; no key is asked of clients; "
    "`--policy round_robin --log-level error`, so no line a request."
)

_DEFAULT_POLICY = (
    "The same program with the policy that it has when nobody names one, cache_aware, which costs it more CPU a request. "
    "The bounds are held against the cheaper round robin."
)

GATEWAYS: Mapping[str, Gateway] = {
    row.name: row
    for row in (
        Gateway(
            "sits",
            "Everything at its default, which is on: API keys (one exists, so one is asked for), metrics, a log line "
            "and a decision record a request, latency anatomy, traceparent in and out, failover. One worker, no local model. "
            "As it is shipped: the wheel with the hot path compiled.",
            _sits,
        ),
        Gateway(
            "sits-declared",
            "The same with a second model, tries of the same target, hedges, a ladder and classes of service declared: all that "
            "is asked of a request on the way. Breakers are on in both.",
            partial(_sits, declared=True),
        ),
        Gateway("sits-python", "The same from source, nothing compiled.", partial(_sits, compiled=False)),
        Gateway("vllm-router", _ROUTER_WORDS, _router("vllm-router"), ("vllm-router==0.1.17",), "vllm-router"),
        Gateway("vllm-router-default", _DEFAULT_POLICY, _router("vllm-router", policy=None)),
        Gateway(
            "sglang-router",
            _ROUTER_WORDS,
            _router("python", "-m", "sglang_router.launch_router"),
            ("sglang-router==0.3.2",),
            "sglang-router",
        ),
        Gateway(
            "litellm",
            "Python. Master key set, no database, one worker (`--num_workers 1`), `LITELLM_MODE=PRODUCTION "
            "LITELLM_LOG=ERROR`, bytecode compiled, opentelemetry-sdk installed. Its opt-in Rust core is off "
            "(`LITELLM_RUST=false`), and in this release has no path for OpenAI chat anyway. Of its `proxy` extra "
            "everything is installed but its own companion packages, which what is measured here works without.",
            _litellm,
            ("litellm==1.110.2", "opentelemetry-sdk==1.45.2"),
            "litellm",
            "proxy",
            ("litellm-proxy", "litellm-proxy-extras", "litellm-enterprise"),
        ),
        Gateway(
            "aiohttp",
            "Python. The least that works: uvicorn (uvloop, httptools) and aiohttp's pooled client, streaming. No "
            "keys, metrics, records, log lines or trace context.",
            _aiohttp,
            ("aiohttp==3.14.5", "uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0"),
            "aiohttp",
        ),
    )
}


def chosen(only: tuple[str, ...]) -> list[Gateway]:
    """The gateways of those names, or all.

    Raises:
        BenchError: there is none of that name.
    """
    unknown = [name for name in only if name not in GATEWAYS]
    if unknown:
        raise BenchError(f"no gateway is called {unknown[0]!r}; there are: {', '.join(GATEWAYS)}")
    return [row for name, row in GATEWAYS.items() if not only or name in only]
