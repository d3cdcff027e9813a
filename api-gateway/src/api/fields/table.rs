//! The fields that are honoured, body by body, each list sorted by name.

use super::{BOTH, Field, field};
use crate::api::{
    operation::Body::{
        self, AbortRequests, Chat, Completion, CountTokens, Detokenize, LoadLoraAdapter, Messages, Responses,
        StartProfile, Tokenize, UnloadLoraAdapter,
    },
    shape::{
        Bounds, Member, Served,
        Shape::{
            self, Bool, Closed, Either, Flag, Letters, List, Named, Number, Object, Pattern, Regex, Several, Table,
            Text, Whole, Word,
        },
        has, may,
    },
};
use crate::{
    profile::settings,
    responses::{request, store},
};

const CHATS: &[Body] = &[Chat, Tokenize];
const ANTHROPIC: &[Body] = &[Messages, CountTokens];
const PROMPTS: &[Body] = &[Completion, Tokenize];

const TOKEN: Shape = Shape::Served(Served::Token);
const FILLED: Shape = Letters(1, usize::MAX);
const FILLED_TEXTS: Shape = List(&FILLED);
const TOKENS: Shape = List(&TOKEN);
const STOPS: Shape = Either(&[FILLED, FILLED_TEXTS]);
const STEPS: Shape = Whole(0, u32::MAX as i64);
const OBJECT: Shape = Object(&[]);
const COUNT: Shape = Whole(1, i64::MAX);
const LOGPROBS: Shape = Shape::Served(Served::Logprobs);
const PROMPT_TOKENS: Shape = Several(&TOKEN, 1, usize::MAX);
const PROMPT: Shape =
    Either(&[FILLED, Several(&FILLED, 1, usize::MAX), PROMPT_TOKENS, Several(&PROMPT_TOKENS, 1, usize::MAX)]);
const STREAM_OPTIONS: Shape = Object(&[
    may("include_usage", Bool, "Send a last chunk with the usage and no choices"),
    may("continuous_usage_stats", Bool, "With include_usage: send the usage so far with each chunk"),
]);
const REPETITION: Shape = Either(&[
    Object(&[may("max_pattern_size", Whole(0, 0), "It is off")]),
    Object(&[
        has("max_pattern_size", Whole(1, 4096), "Longest pattern that is looked for, tokens"),
        may("min_pattern_size", Whole(0, 4096), "Shortest pattern that is looked for; 0 counts as 1"),
        has("min_count", Whole(2, u32::MAX as i64), "How often the pattern must come, one behind the other"),
    ]),
]);
const NAMED: &[Member] = &[has("name", FILLED, "Its name")];
const TOOL_CHOICE: Shape = Either(&[
    Word(&["none", "auto", "required"]),
    Object(&[may("type", Word(&["function"]), ""), has("function", Object(NAMED), "The function to call")]),
]);
const ALLOWED: Shape = Object(&[
    has("type", Word(&["allowed_tools"]), "Only these functions may be called"),
    has("mode", Word(&["auto", "required"]), "Whether one must be"),
    has("tools", Several(&Object(NAMED), 1, usize::MAX), "The functions"),
]);
const RESPONSE_TOOL_CHOICE: Shape = Either(&[
    Word(&["none", "auto", "required"]),
    Object(&[has("type", Word(&["function"]), ""), has("name", FILLED, "The function to call")]),
    ALLOWED,
]);
const MESSAGE_TOOL_CHOICE: Shape = Either(&[
    Object(&[has("type", Word(&["auto", "any", "none"]), "Whether tools may or must be called"), ONE_CALL]),
    Object(&[has("type", Word(&["tool"]), "That one must be"), has("name", FILLED, "Which"), ONE_CALL]),
]);
const ONE_CALL: Member = may("disable_parallel_tool_use", Bool, "One call at most");

const SCHEMA: Shape = Either(&[OBJECT, Text, Flag(true)]);
const FREE: Shape = Object(&[has("type", Word(&["text"]), "Any text")]);
const RESPONSE_FORMAT: Shape = Either(&[
    FREE,
    Object(&[has("type", Word(&["json_object"]), "Any JSON object")]),
    Object(&[
        has("type", Word(&["json_schema"]), "JSON that a schema describes"),
        has("json_schema", Object(&[may("schema", OBJECT, "The schema")]), "Its name and schema"),
    ]),
    Object(&[has("type", Word(&["structural_tag"]), "Free text with parts that follow schemas")]),
]);
/// `structured_outputs`: one demand, and switches.
macro_rules! structured {
    ($name:literal, $shape:expr, $help:literal) => {
        Closed(&[
            has($name, $shape, $help),
            may("disable_any_whitespace", Bool, "Compact JSON"),
            may("whitespace_pattern", Regex, "What stands between the tokens of JSON"),
            may("disable_additional_properties", Bool, "Objects that say nothing of further properties have none"),
            may("disable_fallback", Bool, "There is none"),
        ])
    };
}
const STRUCTURED: Shape = Either(&[
    structured!("json", SCHEMA, "A JSON schema"),
    structured!("json_object", Flag(true), "Any JSON object"),
    structured!("regex", Regex, "A regular expression that the whole text matches"),
    structured!("choice", CHOICES, "One of these texts"),
    structured!("grammar", FILLED, "A grammar in GBNF or Lark"),
    structured!("structural_tag", SCHEMA, "Free text with parts that follow schemas"),
]);
const CHOICES: Shape = Several(&FILLED, 1, usize::MAX);

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
    may("generate_summary", Word(&["auto", "detailed"]), "The older name of `summary`"),
    may("summary", Word(&["auto", "detailed"]), "Show the reasoning as its own summary"),
];
const RESPONSE_STREAM: &[Member] = &[
    may("include_obfuscation", Flag(false), "Events are not padded"),
    may("include_usage", Bool, "The last event has the usage always"),
];
const RESPONSE_TEXT: &[Member] = &[
    may("format", RESPONSE_TEXT_FORMAT, "What the text is, as `response_format` of a chat"),
    may("verbosity", Text, "Repeated in the response"),
];
const RESPONSE_TEXT_FORMAT: Shape = Either(&[
    Object(&[has("type", Word(&["text", "json_object"]), "Any text, or any JSON object")]),
    Object(&[has("type", Word(&["json_schema"]), "JSON"), may("schema", OBJECT, "The schema that it follows")]),
]);
const CONTEXT: &[Member] = &[may(
    "edits",
    List(&Object(&[has("type", Pattern("^clear_thinking"), ""), has("keep", Word(&["all"]), "")])),
    "None but those that keep all thinking",
)];
const CONVERSATION: Shape = Several(&Named("ChatMessage"), 1, usize::MAX);
const KEPT_TOKENS: Shape = Either(&[Whole(-1, -1), Whole(1, i32::MAX as i64)]);
const MODEL: Shape = Shape::Served(Served::Model);

/// All of them.
pub(super) const FIELDS: &[Field] = &[
    // Of chats and completions.
    field("allowed_token_ids", BOTH, Several(&TOKEN, 1, usize::MAX), "Choose among these tokens only"),
    field("bad_words", BOTH, FILLED_TEXTS, "Texts that must not be generated"),
    field("best_of", BOTH, Whole(1, 16_384), "Width of the beam search; else it must equal `n`").or("n").seen(BEAMS),
    field("cache_salt", BOTH, FILLED, "Share cached prefixes only with requests of the same salt"),
    field("early_stopping", BOTH, Either(&[Bool, Word(&["never"])]), "When a beam search with `n` texts is over")
        .or("false")
        .seen(BEAMS),
    field("ignore_eos", BOTH, Bool, "Go on after the model's end token").or("false"),
    field("include_stop_str_in_output", BOTH, Bool, "Leave the stop string in the text").or("false"),
    field("length_penalty", BOTH, Number(Bounds::NONE), "Scores of a beam search are divided by length to this power")
        .or("1")
        .seen(BEAMS),
    field(
        "logit_bias",
        BOTH,
        Table(&Shape::Served(Served::TokenName), &Number(Bounds::NONE), usize::MAX),
        "Added to the logits of tokens, by id; -100 to 100",
    ),
    field(
        "logprob_token_ids",
        BOTH,
        Several(&TOKEN, 0, 128),
        "Log-probabilities of these tokens instead of the best ones'; at most 128",
    ),
    field("min_tokens", BOTH, Whole(0, u32::MAX as i64), "Tokens before an end or a stop counts").or("0"),
    field("model", &[Chat, Completion, Messages, CountTokens, Tokenize, Detokenize], MODEL, "A served name")
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
    field("stop", BOTH, STOPS, "Texts that end a choice").seen("tests/e2e/streaming.rs: stop_strings_cut_the_text"),
    field("stop_token_ids", BOTH, TOKENS, "Tokens that end a choice").or("[]"),
    field("stream", &[Chat, Completion, Messages], Bool, "Answer with server-sent events")
        .or("false")
        .seen("tests/e2e/streaming.rs: a_stream_is_the_answer_in_pieces"),
    field("stream_interval", BOTH, Whole(1, u32::MAX as i64), "Tokens per event").or("as --stream-interval"),
    field("stream_options", BOTH, STREAM_OPTIONS, "Only with `stream`")
        .seen("api-gateway/tests/gateway/streaming.rs: usage_comes_with_each_chunk_when_asked"),
    field("truncate_prompt_tokens", BOTH, KEPT_TOKENS, "Maximum number of prompt tokens to keep; -1: what fits"),
    field("truncation_side", BOTH, Word(&["left", "right"]), "Where prompt tokens are cut off").or("\"left\""),
    field("use_beam_search", BOTH, Bool, "The choices are the best texts of a beam search of width `n`").or("false"),
    // What the text must be; one of them.
    field("ebnf", BOTH, Text, "A grammar in GBNF or Lark; SGLang's name").seen(DEMANDS),
    field("grammar", BOTH, Text, "A grammar in GBNF or Lark; llama.cpp's name").seen(DEMANDS),
    field("guided_choice", BOTH, CHOICES, "As `structured_outputs.choice`").seen(DEMANDS),
    field("guided_decoding_backend", BOTH, Word(&["auto", "guidance"]), "There is one").seen(DEMANDS),
    field("guided_grammar", BOTH, Text, "As `structured_outputs.grammar`").seen(DEMANDS),
    field("guided_json", BOTH, SCHEMA, "As `structured_outputs.json`").seen(DEMANDS),
    field("guided_json_object", BOTH, Bool, "As `structured_outputs.json_object`").seen(DEMANDS),
    field("guided_regex", BOTH, Regex, "As `structured_outputs.regex`").seen(DEMANDS),
    field("guided_whitespace_pattern", BOTH, Regex, "As `structured_outputs.whitespace_pattern`").seen(DEMANDS),
    field("json_schema", BOTH, SCHEMA, "A JSON schema; SGLang's and llama.cpp's name").seen(DEMANDS),
    field("regex", BOTH, Regex, "A regular expression; SGLang's name").seen(DEMANDS),
    field("response_format", BOTH, RESPONSE_FORMAT, "Any JSON, or what a schema says").or("text").seen(DEMANDS),
    field("structural_tag", BOTH, SCHEMA, "Free text with parts that follow schemas").seen(DEMANDS),
    field("structured_outputs", BOTH, STRUCTURED, "One demand, and switches").seen(DEMANDS),
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
    field(
        "chat_template",
        CHATS,
        Shape::Served(Served::Template),
        "Instead of the model's; needs `--trust-request-chat-template`",
    ),
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
    field("messages", &[Chat], CONVERSATION, "The conversation").needed().seen(SHAPES),
    field("parallel_tool_calls", CHATS, Bool, "More than one call in an answer")
        .or("true")
        .seen("api-gateway/tests/gateway/tools.rs: one_call_at_a_time_may_be_asked_for"),
    field("reasoning_effort", CHATS, Text, "A variable of the chat template"),
    field("return_prompt_text", &[Chat], Bool, "Show the rendered prompt").or("false"),
    field(
        "thinking_token_budget",
        &[Chat],
        Shape::Served(Served::Budget),
        "Tokens of reasoning at most; its end is forced then",
    )
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
        List(&Word(&request::INCLUDABLE)),
        "More to show: `message.output_text.logprobs`, `reasoning.encrypted_content`",
    )
    .or("[]")
    .seen(RESPONSE),
    field(
        "input",
        RESPONSES,
        Either(&[Text, Several(&Named("InputItem"), 1, usize::MAX)]),
        "What the user says, or items",
    )
    .needed()
    .seen(RESPONSE),
    field("instructions", RESPONSES, Text, "What the model is told first").seen(RESPONSE),
    field("max_output_tokens", RESPONSES, COUNT, "Tokens to generate at most")
        .or("what the context leaves")
        .seen(RESPONSE),
    field("max_tool_calls", RESPONSES, COUNT, "Calls of the server's own tools at most, of which there are none")
        .seen(REFUSING),
    field("metadata", RESPONSES, Table(&Letters(0, 64), &Letters(0, 512), 16), "Repeated in the response")
        .seen(RESPONSE),
    field("parallel_tool_calls", RESPONSES, Bool, "More than one call in an answer").or("true").seen(TURNS),
    field("previous_response_id", RESPONSES, Pattern(store::IDS), "Go on from a response that is kept").seen(TURNS),
    field("prompt_cache_key", RESPONSES, Text, REPEATED).seen(RESPONSE),
    field("prompt_cache_options", RESPONSES, OBJECT, REPEATED).seen(RESPONSE),
    field("prompt_cache_retention", RESPONSES, Text, REPEATED).seen(RESPONSE),
    field("reasoning", RESPONSES, Closed(REASONING), "How the model reasons, and how that is shown").seen(EVENTS),
    field("safety_identifier", RESPONSES, Text, REPEATED).seen(RESPONSE),
    field("service_tier", RESPONSES, Word(&request::TIERS), "There is one tier").or("\"auto\"").seen(RESPONSE),
    field("store", RESPONSES, Bool, "Keep the response, within --max-stored-responses").or("true").seen(TURNS),
    field("stream", RESPONSES, Bool, "Answer with server-sent events").or("false").seen(EVENTS),
    field("stream_options", RESPONSES, Closed(RESPONSE_STREAM), "Only with `stream`").seen(REFUSING),
    field(
        "text",
        RESPONSES,
        Closed(RESPONSE_TEXT),
        "`format` of the answer, as `response_format` of a chat; `verbosity`",
    )
    .seen(RESPONSE),
    field("tool_choice", RESPONSES, RESPONSE_TOOL_CHOICE, "Whether tools may or must be called")
        .or("\"auto\"")
        .seen(TURNS),
    field("tools", RESPONSES, List(&Named("ResponseTool")), "Functions that the model may call").seen(TURNS),
    field("top_logprobs", RESPONSES, LOGPROBS, "Likely tokens to show at each position").or("0").seen(REFUSING),
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
    field("messages", &[Tokenize], CONVERSATION, "A conversation, instead of `prompt`").seen(TOKENIZED),
    field("prompt", &[Tokenize], Either(&[FILLED, PROMPT_TOKENS]), "One prompt").seen(TOKENIZED),
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
    field("profile_prefix", &[StartProfile], Pattern(settings::PREFIXES), "Beginning of the trace's name")
        .seen(PROFILED),
    field("profiler_kwargs", &[StartProfile], Closed(&[]), "Must be empty").seen(PROFILED),
    // Of /v1/load_lora_adapter and /v1/unload_lora_adapter.
    field("base_model_name", &[LoadLoraAdapter], Text, "The model that it was made for, for /v1/models")
        .seen(LORA_TEST),
    field("is_3d_lora_weight", &[LoadLoraAdapter], Bool, "The adapter's files tell; steers nothing")
        .or("false")
        .seen(LORA_TEST),
    field("load_inplace", &[LoadLoraAdapter], Bool, "It may take the place of one of that name")
        .or("false")
        .seen(LORA_TEST),
    field("lora_int_id", &[UnloadLoraAdapter], Whole(i64::MIN, i64::MAX), "Names go by `lora_name` alone")
        .seen(LORA_TEST),
    field("lora_name", &[LoadLoraAdapter, UnloadLoraAdapter], FILLED, "What requests call it").needed().seen(LORA_TEST),
    field("lora_path", &[LoadLoraAdapter], FILLED, "Its folder").needed().seen(LORA_TEST),
    // Of Anthropic's routes.
    field("context_management", &[Messages], Closed(CONTEXT), "Its `edits` may keep all thinking; others are refused")
        .seen(STRICT_MESSAGES),
    field("output_config", &[Messages], Closed(OUTPUT_CONFIG), "What the answer must be").seen(STRICT_MESSAGES),
    field("output_format", &[Messages], ANSWER_FORMAT, "What the text must be").seen(STRICT_MESSAGES),
    field("cache_salt", &[Messages], FILLED, "Share cached prefixes only with requests of the same salt")
        .seen(MESSAGES_TEST),
    field("chat_template_kwargs", ANTHROPIC, OBJECT, "Variables of the chat template").seen(MESSAGES_TEST),
    field("max_tokens", &[Messages], COUNT, "Tokens to generate at most").needed().seen(MESSAGES_TEST),
    field("messages", ANTHROPIC, Several(&Named("MessageParam"), 1, usize::MAX), "The turns")
        .needed()
        .seen(MESSAGES_TEST),
    field("stop_sequences", &[Messages], FILLED_TEXTS, "Texts that end the answer").seen(MESSAGES_TEST),
    field("system", ANTHROPIC, Either(&[Text, List(&Named("TextBlock"))]), "What the model is told first")
        .seen(MESSAGES_TEST),
    field("temperature", &[Messages], Number(Bounds::between(0.0, 2.0)), "0: always the likeliest token")
        .or("1")
        .seen(MESSAGES_TEST),
    field("thinking", ANTHROPIC, Object(THINKING), "Whether the model reasons first").seen(MESSAGES_TEST),
    field("tool_choice", ANTHROPIC, MESSAGE_TOOL_CHOICE, "Whether tools may or must be called").seen(MESSAGES_TEST),
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
    may("budget_tokens", Shape::Served(Served::Budget), "Tokens of reasoning at most; its end is forced then"),
];
