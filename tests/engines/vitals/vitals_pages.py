"""Pages as model servers expose them, cut to what stands around the figures that are read."""

VLLM_V1 = b"""\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 12043.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-32B"} 7.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-32B"} 5.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-32B"} 0.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-32B"} 3.0
# HELP vllm:num_requests_waiting_by_reason Number of requests waiting, by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-32B",reason="capacity"} 9.0
# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage. 1 means 100 percent usage.DEPRECATED: Use vllm:kv_cache_usage_perc instead.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-32B"} 0.99
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-32B"} 0.40625
vllm:kv_cache_usage_perc{engine="1",model_name="Qwen/Qwen3-32B"} 0.8125
# HELP vllm:prefix_cache_queries_total Prefix cache queries, in terms of number of queried tokens.
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="Qwen/Qwen3-32B"} 600.0
vllm:prefix_cache_queries_total{engine="1",model_name="Qwen/Qwen3-32B"} 400.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="Qwen/Qwen3-32B"} 200.0
vllm:prefix_cache_hits_total{engine="1",model_name="Qwen/Qwen3-32B"} 50.0
# HELP vllm:lora_requests_info Running stats on lora requests.
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.764460000e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="tax,\xe6\xb3\x95\xe5\xbe\x8b",waiting_lora_adapters="x"} 1.764461e+09
# HELP vllm:time_to_first_token_seconds Histogram of time to first token in seconds.
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="Qwen/Qwen3-32B"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="Qwen/Qwen3-32B"} 3.0
"""

VLLM_V0 = b"""\
# HELP vllm:cache_config_info information of cache_config
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",gpu_memory_utilization="0.9",num_gpu_blocks="27468"} 1.0
vllm:num_requests_running{model_name="meta-llama/Llama-2-7b-chat-hf"} 2.0
vllm:num_requests_swapped{model_name="meta-llama/Llama-2-7b-chat-hf"} 0.0
vllm:num_requests_waiting{model_name="meta-llama/Llama-2-7b-chat-hf"} 1.0
vllm:gpu_cache_usage_perc{model_name="meta-llama/Llama-2-7b-chat-hf"} 0.03125
vllm:cpu_cache_usage_perc{model_name="meta-llama/Llama-2-7b-chat-hf"} 0.9
"""

SGLANG = b"""\
# HELP sglang:num_running_reqs The number of running requests.
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 8.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="1"} 8.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="1",tp_rank="0"} 6.0
sglang:num_running_reqs{dp_rank="0",engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="5",tp_rank="0"} 2.0
sglang:num_running_reqs{dp_rank="1",engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",priority="",tp_rank="0"} 4.0
# HELP sglang:num_queue_reqs The number of requests in the waiting queue.
# TYPE sglang:num_queue_reqs gauge
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:num_grammar_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.0
sglang:cache_hit_rate{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.25
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.28
sglang:num_used_tokens{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 123859.0
"""

TGI = b"""\
# TYPE tgi_request_count counter
tgi_request_count 250
# TYPE tgi_queue_size gauge
tgi_queue_size 12
# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 3
# TYPE tgi_batch_current_max_tokens gauge
tgi_batch_current_max_tokens 4096
# TYPE tgi_batch_next_size histogram
tgi_batch_next_size_bucket{le="1"} 41
"""

LLAMACPP = b"""\
# HELP llamacpp:prompt_tokens_seconds Average prompt throughput in tokens/s
# TYPE llamacpp:prompt_tokens_seconds gauge
llamacpp:prompt_tokens_seconds 113.289
# HELP llamacpp:requests_processing Number of requests processing
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 4
# HELP llamacpp:requests_deferred Number of requests deferred
# TYPE llamacpp:requests_deferred gauge
llamacpp:requests_deferred 46
# HELP llamacpp:n_busy_slots_per_decode Average number of busy slots per llama_decode() call
# TYPE llamacpp:n_busy_slots_per_decode gauge
llamacpp:n_busy_slots_per_decode 3.87
"""

LLAMACPP_OLD = LLAMACPP + b"llamacpp:kv_cache_usage_ratio 0.5\nllamacpp:kv_cache_tokens 2048\n"

TRTLLM = b"""\
# HELP trtllm_num_requests_running Number of active requests
# TYPE trtllm_num_requests_running gauge
trtllm_num_requests_running{engine_type="trtllm",model_name="nemotron"} 3.0
trtllm_num_requests_waiting{engine_type="trtllm",model_name="nemotron"} 1.0
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="nemotron"} 0.62
trtllm_kv_cache_hit_rate{engine_type="trtllm",model_name="nemotron"} 0.75
trtllm_kv_cache_host_utilization{engine_type="trtllm",model_name="nemotron"} 0.1
trtllm_gpu_memory_usage_bytes{engine_type="trtllm",model_name="nemotron"} 64424509440.0
"""

TRITON = b"""\
# HELP nv_trt_llm_request_metrics TRT LLM request metrics
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 10
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="tensorrt_llm",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 1560
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free",model="tensorrt_llm",version="1"} 4680
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 6240
# TYPE nv_gpu_memory_total_bytes gauge
nv_gpu_memory_total_bytes{gpu_uuid="GPU-aaa"} 42949672960
nv_gpu_memory_total_bytes{gpu_uuid="GPU-bbb"} 42949672960
# TYPE nv_gpu_memory_used_bytes gauge
nv_gpu_memory_used_bytes{gpu_uuid="GPU-aaa"} 34359738368
nv_gpu_memory_used_bytes{gpu_uuid="GPU-bbb"} 8589934592
"""

OLLAMA = (
    b'{"models":[{"name":"qwen3:8b","model":"qwen3:8b","size":6654289920,"digest":"500a1f067a9f","details":{"format":"gguf",'
    b'"family":"qwen3","parameter_size":"8.2B","quantization_level":"Q4_K_M"},"expires_at":"2026-11-30T10:00:00.1+08:00",'
    b'"size_vram":6654289920,"context_length":4096},{"name":"bge-m3:latest","model":"bge-m3:latest","size":1200000000,'
    b'"size_vram":0}]}'
)
