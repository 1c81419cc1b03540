"""How LiteLLM names model servers, and what each is here."""

from __future__ import annotations

from typing import Any

import msgspec


class Provider(msgspec.Struct, frozen=True):
    """One row: a prefix of `litellm_params.model`."""

    engine: str
    base: str = ""
    """Where it is when the entry does not say; empty when the entry must say."""
    key: str = ""
    """Environment variable that LiteLLM reads when the entry gives no key."""


PROVIDERS: dict[str, Provider] = {
    "openai": Provider("openai", "https://api.openai.com", "OPENAI_API_KEY"),
    "text-completion-openai": Provider("openai", "https://api.openai.com", "OPENAI_API_KEY"),
    "custom_openai": Provider("openai"),
    "openai_like": Provider("openai"),
    "litellm_proxy": Provider("openai"),
    "lm_studio": Provider("openai"),
    "llamafile": Provider("llamacpp", "http://127.0.0.1:8080"),
    "hosted_vllm": Provider("vllm"),
    "anthropic": Provider("anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY"),
    "ollama": Provider("ollama", "http://localhost:11434"),
    "ollama_chat": Provider("ollama", "http://localhost:11434"),
    "huggingface": Provider("tgi"),
    "deepseek": Provider("openai", "https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "groq": Provider("openai", "https://api.groq.com/openai", "GROQ_API_KEY"),
    "mistral": Provider("openai", "https://api.mistral.ai", "MISTRAL_API_KEY"),
    "openrouter": Provider("openai", "https://openrouter.ai/api", "OPENROUTER_API_KEY"),
    "xai": Provider("openai", "https://api.x.ai", "XAI_API_KEY"),
    "nvidia_nim": Provider("openai", "https://integrate.api.nvidia.com", "NVIDIA_NIM_API_KEY"),
    "cerebras": Provider("openai", "https://api.cerebras.ai", "CEREBRAS_API_KEY"),
}

_REFUSALS = {
    "azure": "Azure has paths of its own; where its /openai/v1 API is on, declare it as engine openai",
    "azure_ai": "Azure AI has an authentication and paths of its own",
    "bedrock": "Bedrock signs requests with AWS credentials",
    "sagemaker": "SageMaker signs requests with AWS credentials",
    "vertex_ai": "Vertex AI signs in with Google credentials",
    "gemini": "SITS has no engine for Gemini's API",
    "vllm": "LiteLLM runs vLLM in its own process here; start a vLLM server and declare it as engine vllm",
}

_OTHERS = frozenset({
    "cohere", "cohere_chat", "replicate", "together_ai", "fireworks_ai", "perplexity", "watsonx", "databricks", "cloudflare",
    "ai21", "baseten", "deepinfra", "sambanova", "github", "volcengine", "codestral", "voyage", "jina_ai", "triton", "predibase",
    "snowflake", "oci", "dashscope", "moonshot", "minimax", "github_copilot",
})  # fmt: skip


def provider_of(params: dict[str, Any]) -> tuple[str, str]:
    """The provider's word and the model's id as the server knows it."""
    model: str = params["model"]
    word, slash, rest = model.partition("/")
    if named := params.get("custom_llm_provider"):
        return str(named), rest if slash and word == named else model
    if slash and (word in PROVIDERS or word in _REFUSALS or word in _OTHERS):
        return word, rest
    if slash:
        # With an address it is the id of an OpenAI-compatible server; without one it is a provider that we do not know.
        return ("custom_openai", model) if params.get("api_base") or params.get("base_url") else (word, rest)
    # LiteLLM knows bare names by its price list.
    return ("anthropic" if model.startswith("claude") else "openai"), model


def refusal(word: str) -> str:
    """Why a provider is not carried over."""
    return _REFUSALS.get(word, f"SITS has no engine for {word}")


_OPERATIONS = ("/chat/completions", "/completions", "/embeddings", "/messages", "/api/chat", "/api/generate", "/generate")


def base_url(written: str) -> tuple[str, bool]:
    """`api_base` as an endpoint, and whether it had a `/v1`."""
    url = written.strip().rstrip("/")
    for operation in _OPERATIONS:
        url = url.removesuffix(operation)
    bare = url.removesuffix("/v1")
    return bare.rstrip("/"), bare != url
