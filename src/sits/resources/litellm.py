"""A LiteLLM `config.yaml` as SITS resources, and a list of what could not be carried over.

What is carried: `model_list` (providers in `PROVIDERS`), weights, `order`, aliases of groups, fallbacks, timeouts, prices and
context windows. Everything else is named in a note with its line; nothing is dropped in silence. A key that stands in the file
is never copied: the resource names an environment variable instead.

Several entries of one `model_name` become one Route over several Models; a single one is a Model of that name, with a Route of
the same name in front where it has aliases or fallbacks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sits.resources.checks import SECRET_HEADERS
from sits.resources.document import Document, NotReadable
from sits.resources.kinds import Model, Resource, Route, Settings
from sits.resources.litellm_providers import PROVIDERS, Provider, base_url, provider_of, refusal
from sits.resources.problem import ConfigError, Path, Problem, did_you_mean, quoted, shown
from sits.resources.reading import decode, read_value
from sits.resources.snapshot import compile
from sits.resources.vocabulary import LEAST_WEIGHT, MOST_WEIGHT
from sits.resources.writing import to_yaml
from sits.resources.yaml_text import read_yaml


class Imported(msgspec.Struct, frozen=True):
    """What came of a configuration. The resources compile."""

    source: str
    resources: tuple[Resource, ...]
    notes: tuple[Problem, ...]
    """What was not carried over, or needs a look; in the order of lines."""


def import_config(path: str | os.PathLike[str], environ: Mapping[str, str] | None = None) -> Imported:
    """The resources for the LiteLLM configuration at `path`.

    Addresses written as `os.environ/NAME` are looked up in `environ` (the process's when not given).

    Raises:
        ConfigError: the file cannot be read, or is no LiteLLM configuration.
    """
    file = os.fspath(path)
    try:
        with open(file, "rb") as stream:
            text = decode(stream.read())
        documents = read_yaml(text)
        if blots := [blot for document in documents for blot in document.blots]:
            raise ConfigError([Problem(file, *blot.mark, shown(blot.path), blot.message, blot.hint) for blot in blots])
    except NotReadable as error:
        raise ConfigError([Problem(file, *error.mark, "", error.message, error.hint)]) from error
    except OSError as error:
        raise ConfigError([Problem(file, 0, 0, "", (error.strerror or str(error)).lower(), "check the path")]) from error
    if (
        len(documents) != 1
        or not isinstance(documents[0].value, dict)
        or not isinstance(documents[0].value.get("model_list"), list)
    ):
        raise ConfigError([Problem(file, 1, 1, "model_list", "missing", "a LiteLLM configuration has a list of models")])
    return _Import(file, documents[0], os.environ if environ is None else environ).run()


def files(imported: Imported) -> dict[str, str]:
    """File name -> YAML text; a file for each kind."""
    head = f"# Made from {os.path.basename(imported.source)} (LiteLLM) by `sits import litellm`.\n"
    texts = {}
    for kind, name in ((Model, "models.yaml"), (Route, "routes.yaml"), (Settings, "settings.yaml")):
        chosen = [resource for resource in imported.resources if isinstance(resource, kind)]
        if chosen:
            texts[name] = head + to_yaml(chosen)
    return texts


class _Deployment(msgspec.Struct):
    """One carried entry of `model_list`."""

    params: dict[str, Any]
    spec: dict[str, Any]
    path: Path
    name: str = ""
    weight: float = 1.0
    order: float = 0.0


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,199}")
"""What a name, and so an alias, may be."""
_ENV = "os.environ/"
_NO_KEY = frozenset({"", "none", "empty", "null", "na", "n/a"})
_PARAMS = frozenset({
    "model", "api_base", "base_url", "api_key", "custom_llm_provider", "weight", "order", "rpm", "tpm", "timeout",
    "stream_timeout", "headers", "extra_headers", "input_cost_per_token", "output_cost_per_token", "ssl_verify",
})  # fmt: skip
_INFO = frozenset({
    "id", "mode", "base_model", "max_tokens", "max_input_tokens", "max_output_tokens", "input_cost_per_token",
    "output_cost_per_token", "litellm_provider", "supports_function_calling", "supports_vision", "supports_response_schema",
    "supports_reasoning",
})  # fmt: skip
_MODES = {"chat": ["chat"], "completion": ["completions"], "embedding": ["embeddings"], "responses": ["chat", "responses"]}
_SUPPORTS = {
    "supports_function_calling": ["tools"],
    "supports_vision": ["vision"],
    "supports_response_schema": ["json_object", "json_schema"],
    "supports_reasoning": ["reasoning"],
}
_HINTS = {
    "master_key": "make keys with `sits keys new --name NAME`, with --admin for one that may manage",
    "database_url": "SITS keeps keys and registered models in its own data folder",
    "num_retries": "SITS tries every target of a route once and never the same one twice",
    "max_retries": "SITS tries every target of a route once and never the same one twice",
    "context_window_fallbacks": "put the larger model among the fallbacks of the route",
    "content_policy_fallbacks": "a refusal is an answer, not a failure",
    "drop_params": "SITS drops nothing in silence: it refuses what a model cannot do",
    "environment_variables": "set them in the environment of the service",
    "include": "import each file by itself",
}
_REQUEST_DEFAULTS = frozenset(
    {"temperature", "top_p", "max_tokens", "seed", "stop", "presence_penalty", "frequency_penalty", "n"}
)


class _Import:
    """One run over one configuration."""

    def __init__(self, file: str, document: Document, environ: Mapping[str, str]) -> None:
        self._file = file
        self._document = document
        self._config: dict[str, Any] = document.value
        self._environ = environ
        self._notes: list[Problem] = []
        self._groups: dict[str, list[_Deployment]] = {}
        self._public: dict[str, str] = {}

    def run(self) -> Imported:
        for index, entry in enumerate(self._config["model_list"]):
            self._entry(entry, ("model_list", index))
        models = self._models()
        aliases = self._aliases()
        fallbacks = self._fallbacks(aliases)
        routes = [route for group in self._groups if (route := self._route(group, aliases, fallbacks)) is not None]
        resources: list[Resource] = [*models, *routes, *self._settings()]
        self._rest()
        compile(resources, 1)
        notes = sorted(self._notes, key=lambda note: (note.line, note.column))
        return Imported(self._file, tuple(resources), tuple(notes))

    def _note(self, path: Path, message: str, hint: str = "") -> None:
        line, column = self._document.where(path, at_key=True)
        self._notes.append(Problem(self._file, line, column, shown(path), message, hint))

    def _section(self, name: str) -> dict[str, Any]:
        section = self._config.get(name)
        return section if isinstance(section, dict) else {}

    # -- models

    def _entry(self, entry: Any, path: Path) -> None:
        params = entry.get("litellm_params") if isinstance(entry, dict) else None
        group = entry.get("model_name") if isinstance(entry, dict) else None
        if not isinstance(params, dict) or not isinstance(group, str) or not isinstance(params.get("model"), str):
            self._note(path, "not carried over: no `model_name` or no `litellm_params.model`")
            return
        if "*" in group or "*" in params["model"]:
            self._note((*path, "model_name"), "not carried over: wildcards", "declare each model that you serve")
            return
        word, upstream = provider_of(params)
        provider = PROVIDERS.get(word)
        if provider is None:
            self._note((*path, "litellm_params", "model"), f"not carried over: {refusal(word)}")
            return
        spec = self._spec(params, entry.get("model_info") or {}, provider, upstream, path)
        if spec is None:
            return
        for key in entry:
            if key not in ("model_name", "litellm_params", "model_info"):
                self._note((*path, key), "not carried over")
        self._groups.setdefault(self._public_name(group, path), []).append(_Deployment(params, spec, path))

    def _spec(self, params: dict[str, Any], info: Any, provider: Provider, upstream: str, path: Path) -> dict[str, Any] | None:
        place = (*path, "litellm_params")
        endpoint = self._endpoint(params, provider, place)
        if endpoint is None:
            return None
        info = info if isinstance(info, dict) else {}
        mode = str(info.get("mode") or "chat")
        if mode not in _MODES:
            self._note((*path, "model_info", "mode"), f"not carried over: SITS does not serve mode {quoted(mode)}")
            return None
        spec: dict[str, Any] = {"engine": provider.engine, "endpoint": endpoint, "upstreamModel": upstream}
        if (key := self._key(params, provider, endpoint, place)) is not None:
            spec["apiKey"] = key
        spec |= self._figures(params, info, path)
        if headers := self._headers(params, place):
            spec["headers"] = headers
        if params.get("ssl_verify") is False and endpoint.startswith("https://"):
            spec["tls"] = {"verify": False}
        if capabilities := _capabilities(mode, info):
            spec["capabilities"] = capabilities
        for key in params:
            if key in ("rpm", "tpm"):
                self._note((*place, key), "a limit is not carried over; as a share of the requests it is")
            elif key not in _PARAMS:
                hint = "send it with the request" if key in _REQUEST_DEFAULTS else _HINTS.get(key, "")
                self._note((*place, key), "not carried over", hint)
        for key in info:
            if key not in _INFO:
                self._note((*path, "model_info", key), "not carried over")
        return spec

    def _endpoint(self, params: dict[str, Any], provider: Provider, place: Path) -> str | None:
        key = "api_base" if "api_base" in params else "base_url"
        written = params.get(key)
        if isinstance(written, str) and written.startswith(_ENV):
            name = written.removeprefix(_ENV)
            written = self._environ.get(name)
            if written is None:
                self._note((*place, key), f"not carried over: {name} is not set", f"set {name} and import again")
                return None
            self._note((*place, key), f"the address in {name} is written out", "import again when it changes")
        if not isinstance(written, str) or not written:
            if not provider.base:
                self._note(place, "not carried over: no `api_base`", "say where the server is")
                return None
            return provider.base
        url, versioned = base_url(written)
        if provider.engine == "openai" and not versioned:
            self._note(
                (*place, key), "does not end in /v1; SITS asks for /v1/... below it", "check that the server answers there"
            )
        return url

    def _key(self, params: dict[str, Any], provider: Provider, endpoint: str, place: Path) -> str | None:
        written = params.get("api_key")
        if written is None:
            own = endpoint == provider.base
            return f"env:{provider.key}" if own and provider.key else None
        if isinstance(written, str) and written.startswith(_ENV):
            return f"env:{written.removeprefix(_ENV)}"
        if str(written).strip().lower() in _NO_KEY:
            return None
        name = f"{_variable(str(params['model']))}_API_KEY"
        self._note(
            (*place, "api_key"), f"the key itself is not copied; the model reads env:{name}", f"set {name} for the service"
        )
        return f"env:{name}"

    def _headers(self, params: dict[str, Any], place: Path) -> dict[str, str]:
        headers: dict[str, str] = {}
        for key in ("headers", "extra_headers"):
            written = params.get(key)
            for name, value in written.items() if isinstance(written, dict) else ():
                text = str(value)
                if text.startswith(_ENV):
                    headers[name] = f"env:{text.removeprefix(_ENV)}"
                elif name.lower() in SECRET_HEADERS:
                    variable = f"{_variable(str(params['model']))}_{_variable(name)}"
                    headers[name] = f"env:{variable}"
                    self._note(
                        (*place, key, name),
                        f"the secret itself is not copied; env:{variable} is read",
                        f"set {variable} to the whole value",
                    )
                else:
                    headers[name] = text
        return headers

    def _figures(self, params: dict[str, Any], info: dict[str, Any], path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        window = info.get("max_input_tokens") or info.get("max_tokens")
        if isinstance(window, int) and not isinstance(window, bool) and window > 0:
            found["contextWindow"] = window
        cost = {}
        for key, ours in (("input_cost_per_token", "inputPerMillion"), ("output_cost_per_token", "outputPerMillion")):
            price = self._number(info, key, (*path, "model_info")) or self._number(params, key, (*path, "litellm_params"))
            if price:
                cost[ours] = round(price * 1_000_000, 6)
        if cost:
            found["cost"] = cost
        deadlines = {}
        place = (*path, "litellm_params")
        if total := self._number(params, "timeout", place):
            deadlines["total"] = total
        if idle := self._number(params, "stream_timeout", place):
            deadlines["idle"] = min(idle, total or idle)
        if deadlines:
            found["deadlines"] = deadlines
        return found

    def _number(self, section: dict[str, Any], key: str, place: Path) -> float | None:
        value = section.get(key)
        if value is None:
            return None
        try:
            number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else -1.0
        except ValueError:
            number = -1.0
        if number < 0 or number == float("inf"):
            self._note((*place, key), f"not carried over: {quoted(value)} is not a figure")
            return None
        return number or None

    def _public_name(self, group: str, path: Path) -> str:
        if group in self._public:
            return self._public[group]
        name = re.sub(r"[^A-Za-z0-9._:/@-]+", "-", group).lstrip("._:/@-")[:190] or f"model-{path[-1]}"
        if name != group:
            name = _free(name, {*self._public.values(), *self._originals()})
            old = f"{quoted(group)} stays an alias of it"
            if _NAME.fullmatch(group) is None:
                old = f"{quoted(group)} can be no alias either, and is not answered: have clients ask for {quoted(name)}"
            self._note((*path, "model_name"), f"a name may hold letters, digits and . _ : / @ -; it is {quoted(name)} now", old)
        self._public[group] = name
        return name

    def _originals(self) -> set[str]:
        return {
            str(entry["model_name"]) for entry in self._config["model_list"] if isinstance(entry, dict) and "model_name" in entry
        }

    def _group(self, name: object) -> str:
        """The group that LiteLLM's name is here."""
        return self._public.get(str(name), str(name))

    def _models(self) -> Iterator[Resource]:
        taken = set(self._groups)
        made: list[Resource] = []
        for group, deployments in list(self._groups.items()):
            kept = []
            for number, deployment in enumerate(deployments, 1):
                deployment.name = group if len(deployments) == 1 else _free(f"{group}-{number}", taken)
                value = {"kind": "Model", "metadata": {"name": deployment.name}, "spec": deployment.spec}
                try:
                    made.append(read_value(value).resource)
                    kept.append(deployment)
                except ConfigError as error:
                    for problem in error.problems:
                        message = f"not carried over: {problem.path}: {problem.message}"
                        self._note((*deployment.path, "litellm_params"), message, problem.hint)
            _weigh(kept)
            self._groups[group] = kept
            if not kept:
                del self._groups[group]
        return iter(made)

    # -- routes

    def _aliases(self) -> dict[str, str]:
        aliases = {
            old: name for old, name in self._public.items() if old != name and _NAME.fullmatch(old) and name in self._groups
        }
        written = self._section("router_settings").get("model_group_alias")
        for alias, target in written.items() if isinstance(written, dict) else ():
            path = ("router_settings", "model_group_alias", alias)
            group = self._group(target.get("model") if isinstance(target, dict) else target)
            if isinstance(target, dict) and target.get("hidden"):
                self._note(path, "`hidden` is not carried over: the alias is listed with the models")
            if alias in self._groups or alias in aliases:
                self._note(path, "not carried over: a model has this name")
            elif group not in self._groups:
                self._note(path, f"not carried over: {quoted(group)} is not here", did_you_mean(group, self._groups))
            elif not _NAME.fullmatch(alias):
                self._note(path, "not carried over: a name may hold letters, digits and . _ : / @ -")
            else:
                aliases[alias] = group
        return aliases

    def _fallbacks(self, aliases: Mapping[str, str]) -> dict[str, list[str]]:
        """Group -> the groups tried after it."""
        chains: dict[str, list[str]] = {}
        for section in ("litellm_settings", "router_settings"):
            written = self._section(section).get("fallbacks")
            for index, entry in enumerate(written if isinstance(written, list) else ()):
                for group, targets in entry.items() if isinstance(entry, dict) else ():
                    path = (section, "fallbacks", index, group)
                    own = aliases.get(group, self._group(group))
                    if own not in self._groups and own != "*":
                        self._note(path, f"not carried over: {quoted(group)} is not here", did_you_mean(group, self._groups))
                    else:
                        chains.setdefault(own, []).extend(self._chain(targets, path, aliases))
        written = self._section("litellm_settings").get("default_fallbacks")
        everywhere = chains.pop("*", []) + self._chain(written, ("litellm_settings", "default_fallbacks"), aliases)
        return {group: chains.get(group, everywhere) for group in self._groups}

    def _chain(self, targets: Any, path: Path, aliases: Mapping[str, str]) -> list[str]:
        chain = []
        for target in [targets] if isinstance(targets, str) else targets or []:
            word = target.get("model") if isinstance(target, dict) else target
            group = aliases.get(str(word), self._group(word))
            if isinstance(target, dict) and len(target) > 1:
                self._note(path, "the changes to the request that this fallback makes are not carried over")
            if group in self._groups:
                chain.append(group)
            else:
                self._note(
                    path, f"fallback {quoted(word)} is not carried over: it is not here", did_you_mean(group, self._groups)
                )
        return chain

    def _route(self, group: str, aliases: Mapping[str, str], fallbacks: Mapping[str, list[str]]) -> Resource | None:
        deployments = self._groups[group]
        first = min(deployment.order for deployment in deployments)
        backends = [deployment for deployment in deployments if deployment.order == first]
        later = sorted((d for d in deployments if d.order != first), key=lambda d: (d.order, -d.weight))
        after = [d.name for d in later]
        for other in fallbacks[group]:
            after += [d.name for d in sorted(self._groups[other], key=lambda d: (d.order, -d.weight))]
        names = {d.name for d in backends}
        after = [name for name in dict.fromkeys(after) if name not in names]
        own = [alias for alias, target in aliases.items() if target == group]
        if len(deployments) == 1 and not after and not own:
            return None
        spec: dict[str, Any] = {
            "backends": [{"model": d.name} | ({"weight": d.weight} if d.weight != 1.0 else {}) for d in backends]
        }
        if after:
            spec["fallbacks"] = after
        if own:
            spec["aliases"] = own
        return read_value({"kind": "Route", "metadata": {"name": group}, "spec": spec}).resource

    # -- the rest

    def _settings(self) -> Iterator[Resource]:
        total = self._number(self._section("router_settings"), "timeout", ("router_settings",))
        total = total or self._number(self._section("litellm_settings"), "request_timeout", ("litellm_settings",))
        if total:
            yield read_value({"kind": "Settings", "spec": {"deadlines": {"total": total}}}).resource

    def _rest(self) -> None:
        carried = {
            "router_settings": {"model_group_alias", "fallbacks", "timeout"},
            "litellm_settings": {"fallbacks", "default_fallbacks", "request_timeout"},
        }
        strategy = self._section("router_settings").get("routing_strategy")
        if strategy == "simple-shuffle":
            carried["router_settings"].add("routing_strategy")
        for section, value in self._config.items():
            if section == "model_list":
                continue
            if not isinstance(value, dict) or section == "environment_variables":
                self._note((section,), "not carried over", _HINTS.get(section, ""))
                continue
            for key in value:
                if key not in carried.get(section, ()):
                    self._note((section, key), "not carried over", _HINTS.get(key, ""))


def _capabilities(mode: str, info: dict[str, Any]) -> list[str]:
    """What the entry says of itself; nothing for a plain chat model, whose engine's usual set holds."""
    supported = [word for key, words in _SUPPORTS.items() if info.get(key) is True for word in words]
    return [*_MODES[mode], *supported] if mode != "chat" or supported else []


def _variable(text: str) -> str:
    """`openai/gpt-4o` -> `OPENAI_GPT_4O`."""
    word = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_").upper()[:80] or "MODEL"
    return f"M_{word}" if word[0].isdigit() else word


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "x"
    taken.add(name)
    return name


def _weigh(deployments: list[_Deployment]) -> None:
    """Weights as LiteLLM's simple-shuffle takes them: `weight`, else `rpm`, else `tpm`, the first that any entry has."""
    for deployment in deployments:
        order = deployment.params.get("order")
        deployment.order = float(order) if isinstance(order, int | float) else float("inf")
    for metric in ("weight", "rpm", "tpm"):
        found = [deployment.params.get(metric) for deployment in deployments]
        weights = [float(min(value, 1e300)) if isinstance(value, int | float) and value > 0 else 0.0 for value in found]
        largest = max(weights, default=0.0)
        if largest > 0:
            # Shares are what counts: tokens a minute of a large deployment are more than a weight may be.
            scale = min(1.0, MOST_WEIGHT / largest)
            for deployment, weight in zip(deployments, weights, strict=True):
                deployment.weight = max(weight * scale, LEAST_WEIGHT) if weight else 0.0
            break
    # A route must be able to draw: entries of the first order that all weigh nothing are drawn alike, as LiteLLM does.
    first = min((deployment.order for deployment in deployments), default=0.0)
    drawn = [deployment for deployment in deployments if deployment.order == first]
    if not any(deployment.weight for deployment in drawn):
        for deployment in drawn:
            deployment.weight = 1.0
