//! The objects of answers and requests that the OpenAPI document describes by name, sorted by name.

use super::shape::{
    Bounds, Member,
    Shape::{self, Any, Bool, Either, Letters, List, Map, Named, Null, Number, Object, Text, Whole, Word},
    has, may,
};

const COUNT: Shape = Whole(0, i64::MAX);
const FILLED: Shape = Letters(1, usize::MAX);
const TOKENS: Shape = List(&COUNT);
const LOGPROB: Shape = Number(Bounds::NONE);
const STOP_REASON: Member = may("stop_reason", Either(&[Text, COUNT]), "The stop string or stop token that ended it");
const TOKEN_IDS: Member = may("token_ids", TOKENS, "With `return_token_ids`");
const PROMPT_IDS: Member = may("prompt_token_ids", TOKENS, "With `return_token_ids`");
const PROMPT_LOGPROBS: Member =
    may("prompt_logprobs", List(&Either(&[Null, Map(&Named("PromptLogprob"))])), "With `prompt_logprobs`");
const USAGE: Member = may("usage", Named("Usage"), "Tokens of prompt and answer");
const METRICS: Member =
    may("metrics", Object(METRICS_MEMBERS), "Of one choice, with `--enable-per-request-metrics`; in the last chunk");
const INDEX: Member = has("index", COUNT, "Number of the choice");
const MODEL: Member = has("model", Text, "The served model");
const CREATED: Member = has("created", COUNT, "Unix time in seconds");

/// All of them.
pub const OBJECTS: &[(&str, Shape)] = &[
    ("AnthropicError", Object(&[has("type", Word(&["error"]), ""), has("error", Object(ANTHROPIC_ERROR), "")])),
    (
        "AnthropicTool",
        Object(&[
            may("type", Word(&["custom"]), "The server runs no tools of its own"),
            has("name", FILLED, "Its name"),
            may("description", Text, "What it does"),
            has("input_schema", Object(&[]), "JSON schema of its arguments"),
        ]),
    ),
    ("ChatChoice", Object(CHAT_CHOICE)),
    ("ChatChunk", Object(CHAT_CHUNK)),
    ("ChatCompletion", Object(CHAT_COMPLETION)),
    ("ChatLogprobs", Object(&[has("content", List(&Named("TokenLogprob")), "One for each token")])),
    ("ChatMessage", Either(&[Object(ANSWERED), Object(CHAT_MESSAGE)])),
    ("ChunkChoice", Object(CHUNK_CHOICE)),
    ("Classes", Object(CLASSES)),
    ("CohereEmbeddings", Object(COHERE_EMBEDDINGS)),
    ("Completion", Object(COMPLETION)),
    ("CompletionChoice", Object(COMPLETION_CHOICE)),
    ("CompletionLogprobs", Object(COMPLETION_LOGPROBS)),
    ("Embeddings", Object(EMBEDDINGS)),
    ("Error", Object(&[has("error", Object(ERROR), "")])),
    ("InputItem", Either(INPUT_ITEMS)),
    ("Load", Object(&[has("server_load", COUNT, "Requests in flight")])),
    ("Message", Object(MESSAGE)),
    (
        "MessageParam",
        Object(&[
            has("role", Word(&["user", "assistant", "system"]), ""),
            has("content", Either(&[Text, List(&Either(BLOCKS))]), "A text, or blocks"),
        ]),
    ),
    ("Model", Object(MODEL_CARD)),
    ("ModelList", Object(&[has("object", Word(&["list"]), ""), has("data", List(&Named("Model")), "")])),
    ("OpenApi", Object(&[has("openapi", Text, "The version of OpenAPI"), has("paths", Object(&[]), "")])),
    ("Pooled", Object(POOLED)),
    ("PromptLogprob", Object(PROMPT_LOGPROB)),
    ("Ranking", Object(RANKING)),
    ("Response", Object(RESPONSE)),
    (
        "ResponseDeleted",
        Object(&[has("id", Text, ""), has("object", Word(&["response"]), ""), has("deleted", Bool, "")]),
    ),
    ("ResponseItem", Object(&[has("id", Text, ""), has("type", Text, "")])),
    (
        "ResponseItems",
        Object(&[
            has("object", Word(&["list"]), ""),
            has("data", List(&Named("ResponseItem")), "The last ones first, unless `order=asc`"),
            may("first_id", Text, ""),
            may("last_id", Text, ""),
            has("has_more", Bool, "Whether others follow"),
        ]),
    ),
    (
        "ResponseTool",
        Object(&[
            has("type", Word(&["function"]), ""),
            has("name", FILLED, "Its name"),
            may("description", Text, "What it does"),
            may("parameters", Object(&[]), "JSON schema of its arguments"),
            may("strict", Bool, "Calls follow the schema"),
        ]),
    ),
    ("Scores", Object(SCORES)),
    (
        "ServerInfo",
        Object(&[has("version", Text, ""), has("model", Text, ""), has("processes", List(&Object(&[])), "")]),
    ),
    ("TextBlock", Object(&[has("type", Word(&["text"]), ""), has("text", Text, "")])),
    ("TokenCount", Object(&[has("input_tokens", COUNT, "Tokens of the prompt")])),
    ("TokenLogprob", Object(TOKEN_LOGPROB)),
    ("TokenizerInfo", Object(&[])),
    ("Tokens", Object(TOKENIZED)),
    ("Tool", Object(&[may("type", Word(&["function"]), ""), has("function", Object(FUNCTION), "")])),
    ("ToolCall", Object(TOOL_CALL)),
    ("Unauthorized", Object(&[has("error", Word(&["Unauthorized"]), "")])),
    ("Untokenized", Object(&[has("prompt", Text, "The tokens' text")])),
    ("Usage", Object(USAGE_MEMBERS)),
    ("Version", Object(&[has("version", Text, "Of this server")])),
];

const EMBEDDINGS: &[Member] = &[
    has("id", Text, "`embd-…`"),
    has("object", Word(&["list"]), ""),
    CREATED,
    MODEL,
    has("data", List(&Object(EMBEDDING)), "One for each input"),
    USAGE,
];

const CLASSES: &[Member] = &[
    has("id", Text, "`classify-…`"),
    has("object", Word(&["list"]), ""),
    CREATED,
    MODEL,
    has("data", List(&Object(CLASS)), "One for each input"),
    USAGE,
];

const CLASS: &[Member] = &[
    INDEX,
    may("label", Text, "The likeliest class's name"),
    has("probs", List(&LOGPROB), "Of the classes, by number"),
    has("num_classes", COUNT, ""),
];

const COHERE_EMBEDDINGS: &[Member] = &[
    has("id", Text, "`embd-…`"),
    has("embeddings", Object(&[]), "A list for each of `embedding_types`"),
    has("texts", List(&Text), "The inputs"),
    has("meta", Object(&[]), "Version and billed units"),
    has("response_type", Word(&["embeddings_by_type"]), ""),
];

const POOLED: &[Member] = &[
    has("id", Text, "`pool-…`"),
    has("object", Word(&["list"]), ""),
    CREATED,
    MODEL,
    has(
        "data",
        List(&Object(&[
            INDEX,
            has("object", Word(&["pooling"]), ""),
            has("data", Either(&[List(&Any), Text]), "Numbers, a list of numbers a token, or base64"),
        ])),
        "One for each input",
    ),
    USAGE,
];

const RANKING: &[Member] = &[
    has("id", Text, "`rerank-…`"),
    MODEL,
    has(
        "results",
        List(&Object(&[
            has("index", COUNT, "Number of the document"),
            has("relevance_score", LOGPROB, ""),
            may("document", Object(&[has("text", Text, "")]), "Unless `return_documents` is false"),
        ])),
        "The most relevant first",
    ),
    has("meta", Object(&[]), "Version and billed units"),
    USAGE,
];

const SCORES: &[Member] = &[
    has("id", Text, "`score-…`"),
    has("object", Word(&["list"]), ""),
    CREATED,
    MODEL,
    has(
        "data",
        List(&Object(&[INDEX, has("object", Word(&["score"]), ""), has("score", LOGPROB, "")])),
        "One for each pair",
    ),
    USAGE,
];

const EMBEDDING: &[Member] = &[
    INDEX,
    has("object", Word(&["embedding"]), ""),
    has("embedding", Either(&[List(&LOGPROB), Text]), "Numbers, or base64"),
];

const RESPONSE: &[Member] = &[
    has("id", Text, "`resp_…`"),
    has("object", Word(&["response"]), ""),
    has("created_at", COUNT, "Unix time in seconds"),
    has("status", Word(&["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]), "How far it is"),
    MODEL,
    has("output", List(&Named("ResponseItem")), "Messages, reasoning and calls of functions"),
    may("error", Object(&[has("code", Text, ""), has("message", Text, "")]), "Why it failed"),
    may("incomplete_details", Object(&[has("reason", Text, "")]), "Why it is incomplete"),
    may("usage", Object(RESPONSE_USAGE), "Tokens of prompt and answer, at its end"),
];

const RESPONSE_USAGE: &[Member] = &[
    has("input_tokens", COUNT, "Of the prompt"),
    has("output_tokens", COUNT, "Of the answer"),
    has("total_tokens", COUNT, "Both"),
];

const ERROR: &[Member] = &[
    has("message", Text, "What is wrong, and what to do"),
    has("type", Text, "vLLM's name of the kind of error"),
    may("param", Text, "The field at fault"),
    has("code", Whole(400, 599), "The HTTP status"),
];

const ANTHROPIC_ERROR: &[Member] = &[has("type", Text, "The kind of error"), has("message", Text, "What is wrong")];

const CHAT_COMPLETION: &[Member] = &[
    has("id", Text, "`chatcmpl-…`"),
    has("object", Word(&["chat.completion"]), ""),
    CREATED,
    MODEL,
    has("choices", List(&Named("ChatChoice")), "As many as `n`"),
    USAGE,
    METRICS,
    PROMPT_LOGPROBS,
    PROMPT_IDS,
    may("prompt_text", Text, "With `return_prompt_text`"),
];

const CHAT_CHOICE: &[Member] = &[
    INDEX,
    has(
        "message",
        Object(&[
            has("role", Text, "`assistant`, unless the server or the request says otherwise"),
            may("content", Text, ""),
            may("reasoning", Text, "What the model thought, where that is told apart"),
            may("reasoning_content", Text, "The same, by its old name"),
            may("tool_calls", List(&Named("ToolCall")), "The calls"),
        ]),
        "",
    ),
    may("logprobs", Named("ChatLogprobs"), "With `logprobs`"),
    has("finish_reason", Word(&["stop", "length", "tool_calls", "abort", "error"]), "Why it ended"),
    STOP_REASON,
    TOKEN_IDS,
];

const CHAT_CHUNK: &[Member] = &[
    has("id", Text, "`chatcmpl-…`"),
    has("object", Word(&["chat.completion.chunk"]), ""),
    CREATED,
    MODEL,
    has("choices", List(&Named("ChunkChoice")), "Empty in the last chunk, which has the usage"),
    USAGE,
    METRICS,
];

const CHUNK_CHOICE: &[Member] = &[
    INDEX,
    has("delta", Object(&[]), "What the message grew by"),
    may("logprobs", Named("ChatLogprobs"), "Of the tokens of this chunk"),
    may("finish_reason", Text, "In the choice's last chunk"),
    STOP_REASON,
    TOKEN_IDS,
];

const CONTENT: Shape = Either(&[Text, List(&Either(PARTS))]);
const PARTS: &[Shape] = &[
    Object(&[has("type", Word(&["text", "input_text", "output_text"]), ""), has("text", Text, "")]),
    Object(&[has("type", Word(&["refusal"]), ""), has("refusal", Text, "")]),
    Object(&[has("type", Word(&["thinking"]), ""), has("thinking", Text, "")]),
];
const CHAT_MESSAGE: &[Member] = &[
    has("role", FILLED, "`system`, `user`, `assistant`, `tool`, or another that the template knows"),
    has("content", CONTENT, "A text, or parts of it"),
    may("tool_call_id", Text, "The call that a `tool` message answers"),
];
/// A message of the assistant, which may be calls alone.
const ANSWERED: &[Member] = &[
    has("role", Word(&["assistant"]), "Who says it"),
    may("content", CONTENT, "A text, or parts of it"),
    may("reasoning", Text, "What the model thought"),
    may("tool_calls", List(&Object(SAID_CALL)), "Calls of an earlier answer"),
];
const SAID_CALL: &[Member] = &[
    may("id", Text, "Its id"),
    may("type", Word(&["function"]), ""),
    has(
        "function",
        Object(&[has("name", FILLED, ""), has("arguments", Object(&[]), "The same as JSON text, too")]),
        "",
    ),
];

const BLOCKS: &[Shape] = &[
    Named("TextBlock"),
    Object(&[has("type", Word(&["thinking"]), ""), has("thinking", Text, ""), may("signature", Text, "")]),
    Object(&[has("type", Word(&["redacted_thinking"]), ""), may("data", Text, "")]),
    Object(&[
        has("type", Word(&["tool_use"]), "A call of an earlier answer"),
        has("id", Text, ""),
        has("name", FILLED, ""),
        has("input", Object(&[]), "Its arguments"),
    ]),
    Object(&[
        has("type", Word(&["tool_result"]), "What a call gave"),
        has("tool_use_id", Text, "Of which call"),
        has("content", Either(&[Text, List(&Named("TextBlock"))]), ""),
    ]),
];

const ITEM_PARTS: &[Shape] = &[
    Object(&[
        has("type", Word(&["input_text", "output_text", "text", "summary_text", "reasoning_text"]), ""),
        has("text", Text, ""),
    ]),
    Object(&[has("type", Word(&["refusal"]), ""), has("refusal", Text, "")]),
];
const ITEM_TEXT: Shape = Either(&[Text, List(&Either(ITEM_PARTS))]);
const INPUT_ITEMS: &[Shape] = &[
    Object(&[
        may("type", Word(&["message"]), ""),
        has("role", Word(&["user", "assistant", "system", "developer"]), "Who says it"),
        has("content", ITEM_TEXT, "What"),
    ]),
    Object(&[
        has("type", Word(&["function_call"]), "A call of an earlier answer"),
        has("call_id", Text, ""),
        has("name", Text, ""),
        has("arguments", Text, "JSON"),
    ]),
    Object(&[
        has("type", Word(&["function_call_output"]), "What a call gave"),
        has("call_id", Text, "Of which call"),
        has("output", ITEM_TEXT, ""),
    ]),
    Object(&[
        has("type", Word(&["reasoning"]), "What the model thought"),
        may("content", List(&Either(ITEM_PARTS)), ""),
        has("summary", List(&Either(ITEM_PARTS)), ""),
    ]),
    Object(&[has("type", Word(&["item_reference"]), "An item that is kept"), has("id", Text, "Its id")]),
];

const COMPLETION: &[Member] = &[
    has("id", Text, "`cmpl-…`"),
    has("object", Word(&["text_completion"]), ""),
    CREATED,
    MODEL,
    has("choices", List(&Named("CompletionChoice")), "Prompt by prompt, `n` each"),
    USAGE,
    METRICS,
];

const COMPLETION_CHOICE: &[Member] = &[
    INDEX,
    has("text", Text, "What was generated, or what it grew by"),
    may("logprobs", Named("CompletionLogprobs"), "With `logprobs`"),
    may("finish_reason", Word(&["stop", "length", "abort", "error"]), "Why it ended"),
    STOP_REASON,
    TOKEN_IDS,
    PROMPT_LOGPROBS,
    PROMPT_IDS,
];

const COMPLETION_LOGPROBS: &[Member] = &[
    has("text_offset", TOKENS, "Where each token begins, in characters"),
    has("token_logprobs", List(&Either(&[Null, LOGPROB])), ""),
    has("tokens", List(&Text), ""),
    has("top_logprobs", List(&Either(&[Null, Map(&LOGPROB)])), "Likely tokens at each position"),
];

const TOKEN_LOGPROB: &[Member] = &[
    has("token", Text, ""),
    has("logprob", LOGPROB, ""),
    has("bytes", List(&Whole(0, 255)), "The token's text as UTF-8"),
    may("top_logprobs", List(&Object(&[])), "Likely tokens at this position"),
];

const PROMPT_LOGPROB: &[Member] =
    &[has("logprob", LOGPROB, ""), has("rank", COUNT, "1: the likeliest"), has("decoded_token", Text, "")];

const MESSAGE: &[Member] = &[
    has("id", Text, "`msg_…`"),
    has("type", Word(&["message"]), ""),
    has("role", Word(&["assistant"]), ""),
    MODEL,
    has("content", List(&Object(&[has("type", Word(&["text", "thinking", "tool_use"]), "")])), "Blocks"),
    has("stop_reason", Word(&["end_turn", "max_tokens", "stop_sequence", "tool_use"]), "Why it ended"),
    may("stop_sequence", Text, "The text that ended it"),
    has("usage", Object(&[has("input_tokens", COUNT, ""), has("output_tokens", COUNT, "")]), ""),
];

const MODEL_CARD: &[Member] = &[
    has("id", Text, "A served name"),
    has("object", Word(&["model"]), ""),
    CREATED,
    has("owned_by", Text, ""),
    has("root", Text, "The model as the server was told"),
    may("parent", Text, ""),
    may("max_model_len", COUNT, "Longest sequence in tokens"),
    has("permission", List(&Object(&[])), ""),
    may("prefix_cache_off", Text, "Why prompts are not cached"),
];

const TOKENIZED: &[Member] = &[
    has("count", COUNT, "How many tokens"),
    may("max_model_len", COUNT, "Longest sequence in tokens"),
    has("tokens", TOKENS, "Their ids"),
    may("token_strs", List(&Text), "With `return_token_strs`"),
];

const FUNCTION: &[Member] = &[
    has("name", FILLED, "Its name"),
    may("description", Text, "What it does"),
    may("parameters", Object(&[]), "JSON schema of its arguments"),
    may("strict", Bool, "Calls follow the schema"),
];

const TOOL_CALL: &[Member] = &[
    has("id", Text, ""),
    has("type", Word(&["function"]), ""),
    has("function", Object(&[has("name", Text, ""), has("arguments", Any, "JSON, as a string")]), ""),
];

const METRICS_MEMBERS: &[Member] = &[
    has("queue_time_ms", Number(Bounds::NONE), "From arrival until the scheduler took it up"),
    has("time_to_first_token_ms", Number(Bounds::NONE), "From there to the first token"),
    has("generation_time_ms", Number(Bounds::NONE), "From the first token to the last"),
    may("mean_itl_ms", Number(Bounds::NONE), "Between tokens, of two or more"),
    may("tokens_per_second", Number(Bounds::NONE), "Since the scheduler took it up"),
];

const USAGE_MEMBERS: &[Member] = &[
    has("prompt_tokens", COUNT, ""),
    has("completion_tokens", COUNT, ""),
    has("total_tokens", COUNT, ""),
    may("prompt_tokens_details", Object(&[has("cached_tokens", COUNT, "")]), "With `--enable-prompt-tokens-details`"),
    may("completion_tokens_details", Object(&[has("reasoning_tokens", COUNT, "")]), "Where reasoning is told apart"),
];
