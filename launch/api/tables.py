"""The fields of every endpoint: OpenAI's, vLLM's and llama.cpp's, and what becomes of each.

docs/http.md shows these tables. What is refused has a reason, and may have values that change nothing.
"""

from __future__ import annotations

from launch.api.rules import FieldTable, harmless, honoured, refused

TRACED = harmless(
    "for records and bills",
    "user metadata store service_tier safety_identifier session_id prompt_cache_key prompt_cache_retention "
    "prompt_cache_options",
)
RUNNING = harmless(
    "how it is computed, not what",
    "cache_prompt id_slot n_cache_reuse n_keep n_discard backend_sampling prediction stream_interval sse_ping_interval "
    "speculative.n_min speculative.n_max speculative.p_min speculative.type speculative.ngram_size_n "
    "speculative.ngram_size_m speculative.ngram_m_hits",
)
IDLE = harmless(
    "says something of a field that is refused",
    "repeat_last_n dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold mirostat_tau "
    "mirostat_eta dynatemp_exponent adaptive_decay length_penalty truncation_side spaces_between_special_tokens "
    "media_io_kwargs mm_processor_kwargs return_token_offsets return_mm_kwargs routed_experts_prompt_start",
)
DRAWING = {
    **refused("tokens are drawn without penalties", "frequency_penalty presence_penalty dry_multiplier", 0),
    **refused("tokens are drawn without penalties", "repetition_penalty repeat_penalty", 1),
    **refused("tokens are drawn without biases", "logit_bias", {}, []),
    **refused("top_p and top_k limit what is drawn", "min_p xtc_probability mirostat dynatemp_range min_keep", 0),
    **refused("top_p and top_k limit what is drawn", "typical_p", 1),
    **refused("top_p and top_k limit what is drawn", "top_n_sigma adaptive_target", -1),
    **refused("tokens are chosen in one order: temperature, top_k, top_p", "samplers"),
    **refused("no token is left out", "bad_words allowed_token_ids", []),
    **refused("tokens are drawn one by one", "use_beam_search watermarking", False),
    **refused("tokens are drawn one by one", "logits_processors", []),
    **refused("an answer is one choice", "n best_of n_cmpl", 1),
}
ENDING = {
    **refused("texts and the model's own tokens end an answer", "stop_token_ids", []),
    **refused("an answer ends where the model ends it", "min_tokens n_indent", 0),
    **refused("an answer ends where the model ends it", "t_max_predict_ms", 0, -1),
    **refused("an answer ends where the model ends it", "repetition_detection"),
    **refused("what ends an answer is not part of it", "include_stop_str_in_output", False),
    **refused("special tokens have no text", "skip_special_tokens", True),
    **refused("thoughts are not told from answers", "thinking_token_budget reasoning_budget_tokens", -1),
    **refused("thoughts are not told from answers", "reasoning_format", "none"),
    **refused("thoughts are not told from answers", "include_reasoning", True),
}
SHAPE = {
    **refused("ask with response_format", "structured_outputs guided_json guided_regex guided_choice guided_grammar"),
    **refused("ask with response_format", "guided_decoding_backend guided_whitespace_pattern structural_tag"),
    **refused("answers are free text, or JSON by response_format", "grammar", ""),
    **refused("answers are free text, or JSON by response_format", "grammar_lazy", False),
    **refused("answers are free text, or JSON by response_format", "grammar_triggers preserved_tokens", []),
    **refused("answers have the fields that they have", "return_tokens return_progress timings_per_token", False),
    **refused("answers have the fields that they have", "return_token_ids return_tokens_as_token_ids", False),
    **refused("answers have the fields that they have", "return_prompt_text verbose", False),
    **refused("answers have the fields that they have", "response_fields", []),
    **refused("probabilities are asked for with logprobs", "n_probs", 0),
    **refused("probabilities are asked for with logprobs", "post_sampling_probs", False),
    **refused("probabilities are asked for with logprobs", "prompt_logprobs logprob_token_ids"),
    **refused("answers get ids of their own", "request_id"),
}
SERVER = {
    **refused("requests are answered as they come", "priority", 0),
    **refused("what was computed for one is known to all", "cache_salt"),
    **refused("there are no adapters", "lora", []),
    **refused("nothing is handed on to other servers", "kv_transfer_params ec_transfer_params vllm_xargs", {}),
    **refused("what is too long is not cut", "truncate_prompt_tokens"),
}
GENERATING: FieldTable = {
    **honoured("model max_tokens n_predict temperature top_p top_k seed stop ignore_eos stream logprobs json_schema"),
    **honoured("stream_options", honoured("include_usage") | harmless("against guesses by size", "include_obfuscation")
               | refused("usage is told once, at the end", "continuous_usage_stats", False)),
    **honoured("response_format", honoured("type schema")
               | honoured("json_schema", honoured("schema") | harmless("for people", "name description strict"))),
    **TRACED, **RUNNING, **IDLE, **DRAWING, **ENDING, **SHAPE, **SERVER,
}  # fmt: skip
MESSAGE: FieldTable = {
    **honoured("role content name reasoning_content reasoning thinking"),
    **refused("functions are not called", "tool_calls", []),
    **refused("functions are not called", "function_call tool_call_id"),
    **refused("answers are text", "audio refusal"),
    **harmless("no model reads it", "annotations"),
}
PART: FieldTable = {**honoured("type text"), **harmless("how it is computed, not what", "cache_control")}
CHAT: FieldTable = {
    **GENERATING,
    **honoured("max_completion_tokens top_logprobs add_generation_prompt continue_final_message"),
    **honoured("tools tool_choice parallel_tool_calls reasoning_effort chat_template_kwargs"),
    **honoured("messages", MESSAGE),
    **refused("functions are not called", "functions", []),
    **refused("functions are not called", "function_call", "none", "auto"),
    **refused("functions are not called", "parse_tool_calls", False),
    **refused("answers are text", "modalities", ["text"]),
    **refused("answers are text", "audio"),
    **refused("the model has a template of its own", "chat_template"),
    **refused("write them into the messages", "documents", []),
    **refused("the conversation is what its template makes of it", "echo add_special_tokens", False),
    **refused("nothing is looked up", "web_search_options"),
    **refused("nobody judges what is asked", "moderation"),
    **refused("the model knows no such thing", "verbosity", "medium"),
}
COMPLETION: FieldTable = {
    **GENERATING,
    **honoured("prompt echo"),
    **refused("nothing is filled in before a text", "suffix", ""),
    **refused("prompts are texts or token ids", "prompt_embeds"),
    **refused("a prompt begins as the model's texts do; token ids begin as they are", "add_special_tokens", True),
}
# Of models that answer with numbers.
POOLED: FieldTable = {
    **honoured("model"),
    **TRACED,
    **harmless("says something of a field that is refused", "truncation_side media_io_kwargs mm_processor_kwargs"),
    **refused("special tokens stand around every text", "add_special_tokens", True),
    **refused("nothing is padded", "padding", "do_not_pad"),
    **{name: SERVER[name] for name in ("priority", "cache_salt", "truncate_prompt_tokens")},
    **refused("answers get ids of their own", "request_id"),
}
EMBEDDING: FieldTable = {
    **POOLED,
    **honoured("input encoding_format dimensions"),
    **refused("numbers are of 32 bits", "embed_dtype", "float32"),
    **refused("the lower byte is the first", "endianness", "native", "little"),
    **refused("embeddings are as the model makes them", "normalize use_activation embd_normalize"),
    **refused("texts are read as they are", "input_type task prompt prompt_name messages chat_template late_chunking"),
}
CLASSIFICATION: FieldTable = {
    **POOLED,
    **honoured("input image"),
    **refused("scores and logits are both told", "use_activation activation", True),
}
RERANKING: FieldTable = {
    **POOLED,
    **honoured("use_activation activation"),
    **refused("texts are read as they are", "instruction messages chat_template"),
}
RERANK: FieldTable = {
    **RERANKING,
    **honoured("query documents top_n return_documents"),
    **refused("what is too long is cut, never read in parts", "max_chunks_per_doc max_tokens_per_doc"),
    **refused("a document is its text", "rank_fields", ["text"]),
}
SCORE: FieldTable = {
    **RERANKING,
    **honoured("text_1 text_2 queries documents items data_1 data_2"),
}
ENDPOINTS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETION,
    "/v1/embeddings": EMBEDDING,
    "/v1/classifications": CLASSIFICATION,
    "/v1/rerank": RERANK,
    "/v1/score": SCORE,
}
