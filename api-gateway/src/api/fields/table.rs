//! The fields that are honoured, body by body, each list sorted by name.

use super::{BOTH, Field, field};
use crate::api::{
    operation::Body::{
        self, AbortRequests, Chat, Completion, CountTokens, Detokenize, LoadLoraAdapter, Messages, Responses,
        StartProfile, Tokenize, UnloadLoraAdapter,
    },
    shape::{
        Bounds, Member,
        Shape::{self, Bool, Either, List, Map, Named, Number, Object, Text, Whole, Word},
        has, may,
    },
};

const CHATS: &[Body] = &[Chat, Tokenize];
const ANTHROPIC: &[Body] = &[Messages, CountTokens];
const PROMPTS: &[Body] = &[Completion, Tokenize];

const TOKEN: Shape = Whole(0, u32::MAX as i64);
const TOKENS: Shape = List(&TOKEN);
const TEXTS: Shape = Either(&[Text, List(&Text)]);
const STEPS: Shape = Whole(0, u32::MAX as i64);
const OBJECT: Shape = Object(&[]);
const COUNT: Shape = Whole(1, i64::MAX);
const LOGPROBS: Shape = Whole(-1, i32::MAX as i64);
const PROMPT: Shape = Either(&[Text, List(&Text), TOKENS, List(&TOKENS)]);
const STREAM_OPTIONS: Shape = Object(&[
    may("include_usage", Bool, "Send a last chunk with the usage and no choices"),
    may("continuous_usage_stats", Bool, "With include_usage: send the usage so far with each chunk"),
]);
const REPETITION: Shape = Object(&[
    may("max_pattern_size", Whole(0, 4096), "Longest pattern that is looked for, tokens; 0: off"),
    may("min_pattern_size", Whole(0, 4096), "Shortest pattern that is looked for; 0 counts as 1"),
    may("min_count", Whole(2, u32::MAX as i64), "How often the pattern must come, one behind the other"),
]);
const TOOL_CHOICE: Shape = Either(&[Word(&["none", "auto", "required"]), OBJECT]);

const SCHEMA: Shape = Either(&[OBJECT, Text]);
const FORMATS: &[&str] = &["text", "json_object", "json_schema", "structural_tag"];
const RESPONSE_FORMAT: Shape = Object(&[
    has("type", Word(FORMATS), "What the text is"),
    may("json_schema", OBJECT, "With json_schema: its `schema`"),
    may("format", OBJECT, "With structural_tag: XGrammar's format"),
]);
const STRUCTURED: &[Member] = &[
    may("json", SCHEMA, "A JSON schema"),
    may("json_object", Bool, "Any JSON object"),
    may("regex", Text, "A regular expression that the whole text matches"),
    may("choice", List(&Text), "One of these texts"),
    may("grammar", Text, "A grammar in GBNF or Lark"),
    may("structural_tag", SCHEMA, "Free text with parts that follow schemas"),
    may("disable_any_whitespace", Bool, "Compact JSON"),
    may("whitespace_pattern", Text, "What stands between the tokens of JSON"),
    may("disable_additional_properties", Bool, "Objects that say nothing of further properties have none"),
    may("disable_fallback", Bool, "There is none"),
];

const DEMANDS: &str = "tests/e2e/structured.rs: texts_are_what_was_demanded";
const SHAPES: &str = "api-gateway/tests/gateway/shapes.rs: a_chat_is_answered";
const BEAMS: &str = "tests/e2e/beams.rs: texts_are_those_of_hugging_face";
const TOOLS: &str = "api-gateway/tests/gateway/tools.rs: calls_are_told_from_content";
const STRICT_MESSAGES: &str = "api-gateway/src/anthropic/strict.rs: fields_are_honoured_or_refused_by_name";
const LORA_TEST: &str = "api-gateway/src/routes/lora_adapters.rs: bodies_name_adapters";
const MESSAGES_TEST: &str = "api-gateway/tests/gateway/tools.rs: anthropics_messages_are_chats";
const PROFILED: &str = "api-gateway/src/profile/settings.rs: requests_say_which_steps_and_name_the_trace";
const TOKENIZED: &str = "api-gateway/tests/gateway/control.rs: prompts_are_tokenized_and_back";

const RESPONSES: &[Body] = &[Responses];
const RESPONSE: &str = "api-gateway/tests/gateway/responses.rs: a_text_is_answered_with_a_message";
const EVENTS: &str = "api-gateway/tests/gateway/responses.rs: whole_and_streamed_answers_are_alike";
const TURNS: &str = "api-gateway/tests/gateway/responses.rs: a_conversation_goes_on_from_what_is_kept";
const BACKGROUND: &str = "api-gateway/tests/gateway/responses.rs: a_response_runs_in_the_background";
const REFUSING: &str = "api-gateway/tests/gateway/responses.rs: fields_are_honoured_or_refused_by_name";
const REPEATED: &str = "Repeated in the response; steers nothing";
const REASONING: &[Member] = &[
    may("effort", Text, "A variable of the chat template"),
    may("summary", Word(&["auto", "detailed"]), "Show the reasoning as its own summary"),
];

/// All of them.
pub(super) const FIELDS: &[Field] = &[
    // Of chats and completions.
    field("allowed_token_ids", BOTH, TOKENS, "Choose among these tokens only"),
    field("bad_words", BOTH, List(&Text), "Texts that must not be generated"),
    field("best_of", BOTH, Whole(1, 16_384), "Width of the beam search; else it must equal `n`").or("n").seen(BEAMS),
    field("cache_salt", BOTH, Text, "Share cached prefixes only with requests of the same salt"),
    field("early_stopping", BOTH, Either(&[Bool, Word(&["never"])]), "When a beam search with `n` texts is over")
        .or("false")
        .seen(BEAMS),
    field("ignore_eos", BOTH, Bool, "Go on after the model's end token").or("false"),
    field("include_stop_str_in_output", BOTH, Bool, "Leave the stop string in the text").or("false"),
    field("length_penalty", BOTH, Number(Bounds::NONE), "Scores of a beam search are divided by length to this power")
        .or("1")
        .seen(BEAMS),
    field("logit_bias", BOTH, Map(&Number(Bounds::NONE)), "Added to the logits of tokens, by id; -100 to 100"),
    field(
        "logprob_token_ids",
        BOTH,
        TOKENS,
        "Log-probabilities of these tokens instead of the best ones'; at most 128",
    ),
    field("min_tokens", BOTH, Whole(0, u32::MAX as i64), "Tokens before an end or a stop counts").or("0"),
    field("model", &[Chat, Completion, Messages, CountTokens, Tokenize, Detokenize], Text, "A served name")
        .or("the served model")
        .seen("api-gateway/tests/gateway/garbage.rs: wrong_fields_are_named"),
    field("n", BOTH, Whole(1, 16_384), "Choices per prompt").or("1"),
    field(
        "priority",
        &[Chat, Completion, Messages],
        Whole(i32::MIN as i64, i32::MAX as i64),
        "Lower runs first, with `--scheduling-policy priority`",
    )
    .or("0"),
    field("prompt_logprobs", BOTH, LOGPROBS, "Log-probabilities of prompt tokens; -1: of the whole vocabulary"),
    field("repetition_detection", BOTH, REPETITION, "End a text that repeats itself, with the reason `repetition`")
        .seen("api-gateway/src/openai/repetition.rs: rules_have_bounds"),
    field("request_id", BOTH, Text, "The end of the answer's id; X-Request-Id takes precedence"),
    field("return_token_ids", BOTH, Bool, "Show token ids of prompt and answer").or("false"),
    field("return_tokens_as_token_ids", BOTH, Bool, "Show tokens as `token_id:N` in log-probabilities")
        .or("as --return-tokens-as-token-ids"),
    field("seed", BOTH, Whole(i64::MIN, i64::MAX), "Makes sampling repeatable")
        .seen("tests/e2e/streaming.rs: seeds_repeat_whatever_else_runs"),
    field("skip_special_tokens", BOTH, Bool, "Leave special tokens out of the text").or("true"),
    field("spaces_between_special_tokens", BOTH, Bool, "Separate special tokens by spaces").or("true"),
    field("stop", BOTH, TEXTS, "Texts that end a choice").seen("tests/e2e/streaming.rs: stop_strings_cut_the_text"),
    field("stop_token_ids", BOTH, TOKENS, "Tokens that end a choice").or("[]"),
    field("stream", &[Chat, Completion, Messages], Bool, "Answer with server-sent events")
        .or("false")
        .seen("tests/e2e/streaming.rs: a_stream_is_the_answer_in_pieces"),
    field("stream_interval", BOTH, Whole(1, u32::MAX as i64), "Tokens per event").or("as --stream-interval"),
    field("stream_options", BOTH, STREAM_OPTIONS, "Only with `stream`")
        .seen("api-gateway/tests/gateway/streaming.rs: usage_comes_with_each_chunk_when_asked"),
    field(
        "truncate_prompt_tokens",
        BOTH,
        Whole(-1, i32::MAX as i64),
        "Maximum number of prompt tokens to keep; -1: what fits; not 0",
    ),
    field("truncation_side", BOTH, Word(&["left", "right"]), "Where prompt tokens are cut off").or("\"left\""),
    field("use_beam_search", BOTH, Bool, "The choices are the best texts of a beam search of width `n`").or("false"),
    // What the text must be; one of them.
    field("ebnf", BOTH, Text, "A grammar in GBNF or Lark; SGLang's name").seen(DEMANDS),
    field("grammar", BOTH, Text, "A grammar in GBNF or Lark; llama.cpp's name").seen(DEMANDS),
    field("guided_choice", BOTH, List(&Text), "As `structured_outputs.choice`").seen(DEMANDS),
    field("guided_decoding_backend", BOTH, Word(&["auto", "guidance"]), "There is one").seen(DEMANDS),
    field("guided_grammar", BOTH, Text, "As `structured_outputs.grammar`").seen(DEMANDS),
    field("guided_json", BOTH, SCHEMA, "As `structured_outputs.json`").seen(DEMANDS),
    field("guided_json_object", BOTH, Bool, "As `structured_outputs.json_object`").seen(DEMANDS),
    field("guided_regex", BOTH, Text, "As `structured_outputs.regex`").seen(DEMANDS),
    field("guided_whitespace_pattern", BOTH, Text, "As `structured_outputs.whitespace_pattern`").seen(DEMANDS),
    field("json_schema", BOTH, SCHEMA, "A JSON schema; SGLang's and llama.cpp's name").seen(DEMANDS),
    field("regex", BOTH, Text, "A regular expression; SGLang's name").seen(DEMANDS),
    field("response_format", BOTH, RESPONSE_FORMAT, "Any JSON, or what a schema says").or("text").seen(DEMANDS),
    field("structural_tag", BOTH, SCHEMA, "Free text with parts that follow schemas").seen(DEMANDS),
    field("structured_outputs", BOTH, Object(STRUCTURED), "One demand, and switches").seen(DEMANDS),
    // Of completions.
    field("add_special_tokens", PROMPTS, Bool, "Begin the prompt with the tokenizer's special tokens").or("true"),
    field("echo", &[Completion], Bool, "Begin the text with the prompt")
        .or("false")
        .seen("api-gateway/tests/gateway/shapes.rs: completions_echo_the_prompt_with_its_logprobs"),
    field("logprobs", &[Completion], LOGPROBS, "Number of likely tokens to give log-probabilities of; -1: all")
        .seen("api-gateway/tests/gateway/shapes.rs: completions_echo_the_prompt_with_its_logprobs"),
    field("max_tokens", &[Completion], Whole(0, i64::MAX), "Tokens to generate at most; 0 with `echo` only").or("16"),
    field("prompt", &[Completion], PROMPT, "One prompt or many, as text or token ids")
        .needed()
        .seen("api-gateway/tests/gateway/shapes.rs: prompts_times_choices_keep_their_order"),
    field("suffix", &[Completion], Text, "What follows the text, for models that fill in the middle; else a 400")
        .seen("crates/tokenizer/tests/formats.rs: prompts_for_the_middle"),
    // Of chats.
    field("add_generation_prompt", CHATS, Bool, "End the prompt where an answer begins").or("true"),
    field("add_special_tokens", &[Chat], Bool, "Begin the prompt with the tokenizer's special tokens").or("false"),
    field("chat_template", CHATS, Text, "Instead of the model's; needs `--trust-request-chat-template`"),
    field("chat_template_kwargs", CHATS, OBJECT, "Variables of the chat template"),
    field("continue_final_message", CHATS, Bool, "Go on with the last message")
        .or("false")
        .seen("api-gateway/tests/gateway/streaming.rs: a_chat_can_go_on_with_its_last_message"),
    field("documents", CHATS, List(&OBJECT), "Documents for the chat template"),
    field("echo", &[Chat], Bool, "Begin the answer with the last message of its role")
        .or("false")
        .seen("api-gateway/tests/gateway/streaming.rs: a_chat_can_go_on_with_its_last_message"),
    field("include_reasoning", &[Chat], Bool, "Show the reasoning")
        .or("true")
        .seen("api-gateway/tests/gateway/tools.rs: reasoning_has_a_field_of_its_own"),
    field("logprobs", &[Chat], Bool, "Log-probabilities of the answer's tokens")
        .or("false")
        .seen("api-gateway/tests/gateway/shapes.rs: chat_logprobs_have_openais_shape"),
    field("max_completion_tokens", &[Chat], COUNT, "Tokens to generate at most").or("what the context leaves"),
    field("max_tokens", &[Chat], COUNT, "The same, by its old name").or("what the context leaves"),
    field("messages", &[Chat], List(&Named("ChatMessage")), "The conversation").needed().seen(SHAPES),
    field("parallel_tool_calls", CHATS, Bool, "More than one call in an answer")
        .or("true")
        .seen("api-gateway/tests/gateway/tools.rs: one_call_at_a_time_may_be_asked_for"),
    field("reasoning_effort", CHATS, Text, "A variable of the chat template"),
    field("return_prompt_text", &[Chat], Bool, "Show the rendered prompt").or("false"),
    field("thinking_token_budget", &[Chat], TOKEN, "Tokens of reasoning at most; its end is forced then")
        .seen("tests/e2e/structured.rs: reasoning_ends_when_its_budget_is_spent"),
    field("tool_choice", CHATS, TOOL_CHOICE, "Whether tools may or must be called")
        .or("\"auto\" with tools")
        .seen(TOOLS),
    field("tools", CHATS, List(&Named("Tool")), "Functions that the model may call").seen(TOOLS),
    field("top_logprobs", &[Chat], LOGPROBS, "Likely tokens to show at each position; needs `logprobs`")
        .or("0")
        .seen("api-gateway/tests/gateway/shapes.rs: chat_logprobs_have_openais_shape"),
    // Of responses.
    field("background", RESPONSES, Bool, "Answer at once, and go on alone").or("false").seen(BACKGROUND),
    field(
        "include",
        RESPONSES,
        List(&Text),
        "More to show: `message.output_text.logprobs`, `reasoning.encrypted_content`",
    )
    .or("[]")
    .seen(RESPONSE),
    field("input", RESPONSES, Either(&[Text, List(&Named("InputItem"))]), "What the user says, or items")
        .needed()
        .seen(RESPONSE),
    field("instructions", RESPONSES, Text, "What the model is told first").seen(RESPONSE),
    field("max_output_tokens", RESPONSES, COUNT, "Tokens to generate at most")
        .or("what the context leaves")
        .seen(RESPONSE),
    field("max_tool_calls", RESPONSES, COUNT, "Calls of the server's own tools at most, of which there are none")
        .seen(REFUSING),
    field("metadata", RESPONSES, Map(&Text), "Repeated in the response").seen(RESPONSE),
    field("parallel_tool_calls", RESPONSES, Bool, "More than one call in an answer").or("true").seen(TURNS),
    field("previous_response_id", RESPONSES, Text, "Go on from a response that is kept").seen(TURNS),
    field("prompt_cache_key", RESPONSES, Text, REPEATED).seen(RESPONSE),
    field("prompt_cache_options", RESPONSES, OBJECT, REPEATED).seen(RESPONSE),
    field("prompt_cache_retention", RESPONSES, Text, REPEATED).seen(RESPONSE),
    field("reasoning", RESPONSES, Object(REASONING), "How the model reasons, and how that is shown").seen(EVENTS),
    field("safety_identifier", RESPONSES, Text, REPEATED).seen(RESPONSE),
    field(
        "service_tier",
        RESPONSES,
        Word(&["auto", "default", "fast", "flex", "priority", "scale"]),
        "There is one tier",
    )
    .or("\"auto\"")
    .seen(RESPONSE),
    field("store", RESPONSES, Bool, "Keep the response, within --max-stored-responses").or("true").seen(TURNS),
    field("stream", RESPONSES, Bool, "Answer with server-sent events").or("false").seen(EVENTS),
    field("stream_options", RESPONSES, OBJECT, "Only with `stream`; `include_obfuscation` must be false")
        .seen(REFUSING),
    field("text", RESPONSES, OBJECT, "`format` of the answer, as `response_format` of a chat; `verbosity`")
        .seen(RESPONSE),
    field("tool_choice", RESPONSES, TOOL_CHOICE, "Whether tools may or must be called").or("\"auto\"").seen(TURNS),
    field("tools", RESPONSES, List(&Named("ResponseTool")), "Functions that the model may call").seen(TURNS),
    field("top_logprobs", RESPONSES, Whole(0, i32::MAX as i64), "Likely tokens to show at each position")
        .or("0")
        .seen(REFUSING),
    field(
        "truncation",
        RESPONSES,
        Word(&["auto", "disabled"]),
        "`auto`: keep the last tokens of a prompt that is too long",
    )
    .or("\"disabled\"")
    .seen(REFUSING),
    field("user", RESPONSES, Text, REPEATED).seen(RESPONSE),
    field("vllm_xargs", BOTH, OBJECT, "Sampling parameters, as if they stood in the request itself; no others")
        .seen("api-gateway/src/openai/fields.rs: members_are_fields"),
    // Of /tokenize and /detokenize.
    field("messages", &[Tokenize], List(&Named("ChatMessage")), "A conversation, instead of `prompt`").seen(TOKENIZED),
    field("prompt", &[Tokenize], Either(&[Text, TOKENS]), "One prompt").seen(TOKENIZED),
    field("return_token_strs", &[Tokenize], Bool, "Show each token's text").or("false").seen(TOKENIZED),
    field("tokens", &[Detokenize], TOKENS, "Token ids").needed().seen(TOKENIZED),
    // Of /abort_requests.
    field("request_ids", &[AbortRequests], List(&Text), "Ids as clients saw them")
        .needed()
        .seen("api-gateway/tests/gateway/development.rs: requests_are_ended_by_their_ids"),
    // Of /start_profile.
    field("delay_iterations", &[StartProfile], STEPS, "Steps to leave out at first [default: the flag's]")
        .seen(PROFILED),
    field("max_iterations", &[StartProfile], STEPS, "Steps to record; 0: all [default: the flag's]").seen(PROFILED),
    field("profile_prefix", &[StartProfile], Text, "Beginning of the trace's name").seen(PROFILED),
    field("profiler_kwargs", &[StartProfile], OBJECT, "Must be empty").seen(PROFILED),
    // Of /v1/load_lora_adapter and /v1/unload_lora_adapter.
    field("base_model_name", &[LoadLoraAdapter], Text, "The model that it was made for, for /v1/models")
        .seen(LORA_TEST),
    field("load_inplace", &[LoadLoraAdapter], Bool, "It may take the place of one of that name")
        .or("false")
        .seen(LORA_TEST),
    field("lora_int_id", &[UnloadLoraAdapter], Whole(0, i64::MAX), "Names go by `lora_name` alone").seen(LORA_TEST),
    field("lora_name", &[LoadLoraAdapter, UnloadLoraAdapter], Text, "What requests call it").needed().seen(LORA_TEST),
    field("lora_path", &[LoadLoraAdapter], Text, "Its folder").needed().seen(LORA_TEST),
    // Of Anthropic's routes.
    field("context_management", &[Messages], OBJECT, "Its `edits` may keep all thinking; others are refused")
        .seen(STRICT_MESSAGES),
    field("output_config", &[Messages], Object(OUTPUT_CONFIG), "What the answer must be").seen(STRICT_MESSAGES),
    field("output_format", &[Messages], ANSWER_FORMAT, "What the text must be").seen(STRICT_MESSAGES),
    field("cache_salt", &[Messages], Text, "Share cached prefixes only with requests of the same salt")
        .seen(MESSAGES_TEST),
    field("chat_template_kwargs", ANTHROPIC, OBJECT, "Variables of the chat template").seen(MESSAGES_TEST),
    field("max_tokens", &[Messages], COUNT, "Tokens to generate at most").needed().seen(MESSAGES_TEST),
    field("messages", ANTHROPIC, List(&Named("MessageParam")), "The turns").needed().seen(MESSAGES_TEST),
    field("stop_sequences", &[Messages], List(&Text), "Texts that end the answer").seen(MESSAGES_TEST),
    field("system", ANTHROPIC, Either(&[Text, List(&Named("TextBlock"))]), "What the model is told first")
        .seen(MESSAGES_TEST),
    field("temperature", &[Messages], Number(Bounds::between(0.0, 2.0)), "0: always the likeliest token")
        .or("1")
        .seen(MESSAGES_TEST),
    field("thinking", ANTHROPIC, Object(THINKING), "Whether the model reasons first").seen(MESSAGES_TEST),
    field("tool_choice", ANTHROPIC, OBJECT, "Whether tools may or must be called").seen(MESSAGES_TEST),
    field("tools", ANTHROPIC, List(&Named("AnthropicTool")), "Tools that the model may call").seen(MESSAGES_TEST),
    field("top_k", &[Messages], Whole(-1, u32::MAX as i64), "Number of likeliest tokens to choose among")
        .seen(MESSAGES_TEST),
    field("top_p", &[Messages], Number(Bounds::above(0.0, 1.0)), "Choose among the likeliest tokens of this sum")
        .seen(MESSAGES_TEST),
];

const ANSWER_FORMAT: Shape = Object(&[
    has("type", Word(&["json_schema"]), "The text is JSON"),
    has("schema", OBJECT, "The JSON schema that it follows"),
]);
const OUTPUT_CONFIG: &[Member] = &[
    may("effort", Word(&["low", "medium", "high", "xhigh", "max"]), "How much the model reasons"),
    may("format", ANSWER_FORMAT, "What the text must be"),
];
const THINKING: &[Member] = &[
    has("type", Word(&["enabled", "adaptive", "disabled"]), "A variable of the chat template"),
    may("budget_tokens", TOKEN, "Tokens of reasoning at most; its end is forced then"),
];
