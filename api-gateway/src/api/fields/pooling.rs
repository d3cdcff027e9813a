//! The fields of bodies of routes that pool, each list sorted by name.

use super::{Fate, Field, field};
use crate::api::{
    operation::Body::{self, Classify, CohereEmbed, Embeddings, Pooling, Rerank, Score},
    shape::{
        Served,
        Shape::{self, Any, Bool, Either, Letters, List, Named, Object, Several, Text, Whole, Word},
        has,
    },
};

const POOLED: &[Body] = &[Embeddings, Classify, Score, Rerank, Pooling, CohereEmbed];
/// Those whose numbers may be bytes.
const ENCODED_BODIES: &[Body] = &[Embeddings, Pooling];
/// Those with inputs in all forms.
const INPUTS: &[Body] = &[Embeddings, Classify, Pooling];
const SCORED: &[Body] = &[Classify, Score, Rerank];
const EMBEDDED: &[Body] = &[Embeddings];
const PAIRS: &[Body] = &[Score];
const BOUNDED: &[Body] = &[Score, Rerank];

const IDS: Shape = Several(&Shape::Served(Served::Token), 1, usize::MAX);
const ONE_TEXT: Shape = Either(&[Text, Object(&[has("text", Text, "The text")])]);
const TEXTS: Shape = Either(&[ONE_TEXT, Several(&ONE_TEXT, 1, usize::MAX)]);
const INPUT: Shape = Either(&[Text, Several(&Text, 1, usize::MAX), IDS, Several(&IDS, 1, usize::MAX)]);

const SCORES_TEST: &str = "api-gateway/tests/gateway/pooling.rs: pairs_are_scored";
const TEMPLATE_TEST: &str = "tests/e2e/pooling.rs: pairs_are_rendered_by_the_users_template";
const RANKING_TEST: &str = "api-gateway/tests/gateway/pooling.rs: documents_are_ranked";
const POOLED_TEST: &str = "api-gateway/tests/gateway/pooling.rs: outputs_of_tokens_are_lists";
const CLASSES_TEST: &str = "api-gateway/tests/gateway/pooling.rs: texts_are_classified";
const COHERE_TEST: &str = "api-gateway/tests/gateway/pooling.rs: coheres_shapes_are_embeddings";

const SHARED: &str = "api-gateway/tests/gateway/pooling.rs: shared_fields_reach_the_engine";
const SHARED_REFUSALS: &str = "api-gateway/tests/gateway/pooling.rs: what_is_no_text_is_refused";
const EMBEDDED_TEST: &str = "api-gateway/tests/gateway/pooling.rs: embeddings_are_answered";
const ENCODED: &str = "api-gateway/src/pooling/encoding.rs: numbers_are_written_as_asked";

/// All of them.
pub(super) const FIELDS: &[Field] = &[
    // Of all of them.
    field("cache_salt", POOLED, Letters(1, usize::MAX), "Share cached prefixes only with requests of the same salt")
        .seen(SHARED),
    Field {
        fate: Fate::Refused("inputs are text or token ids"),
        ..field("media_io_kwargs", POOLED, Any, "").seen(SHARED_REFUSALS)
    },
    Field {
        fate: Fate::Refused("inputs are text or token ids"),
        ..field("mm_processor_kwargs", POOLED, Any, "").seen(SHARED_REFUSALS)
    },
    field("model", POOLED, Shape::Served(Served::Model), "A served name").or("the served model").seen(SHARED),
    field(
        "priority",
        POOLED,
        Whole(i32::MIN as i64, i32::MAX as i64),
        "Lower runs first, with `--scheduling-policy priority`",
    )
    .or("0")
    .seen(SHARED),
    field("request_id", POOLED, Text, "The end of the answer's id; X-Request-Id takes precedence").seen(SHARED),
    field(
        "truncate_prompt_tokens",
        POOLED,
        Either(&[Whole(-1, -1), Whole(1, i32::MAX as i64)]),
        "Keep this many tokens of an input; -1: as many as fit",
    )
    .seen(SHARED),
    field("truncation_side", POOLED, Word(&["left", "right"]), "Where tokens are cut off").or("\"left\"").seen(SHARED),
    field("user", POOLED, Text, "Steers nothing").seen(SHARED),
    // Of some of them.
    field("activation", SCORED, Bool, "The older name of `use_activation`").or("true").seen(CLASSES_TEST),
    field("add_special_tokens", INPUTS, Bool, "Add the tokenizer's special tokens to texts").or("true").seen(SHARED),
    field(
        "dimensions",
        ENCODED_BODIES,
        Whole(1, i64::MAX),
        "Numbers of an embedding, of a model whose embeddings may be cut",
    )
    .or("all")
    .seen(EMBEDDED_TEST),
    field(
        "embed_dtype",
        ENCODED_BODIES,
        Word(&["float32", "float16", "bfloat16"]),
        "Type of numbers that are not JSON",
    )
    .or("\"float32\"")
    .seen(ENCODED),
    field(
        "encoding_format",
        ENCODED_BODIES,
        Word(&["float", "base64", "bytes", "bytes_only"]),
        "As what numbers are written",
    )
    .or("\"float\"")
    .seen(ENCODED),
    field("endianness", ENCODED_BODIES, Word(&["native", "little", "big"]), "Order of a number's bytes")
        .or("\"native\"")
        .seen(ENCODED),
    field("input", INPUTS, INPUT, "One input or many, as text or token ids").seen(EMBEDDED_TEST),
    field(
        "messages",
        INPUTS,
        Several(&Named("ChatMessage"), 1, usize::MAX),
        "A conversation instead; template fields as of chats",
    )
    .seen("api-gateway/tests/gateway/pooling.rs: a_conversation_is_embedded"),
    field("normalize", EMBEDDED, Bool, "Scale embeddings to length one").or("as the model does").seen(EMBEDDED_TEST),
    field("prompt_name", EMBEDDED, Text, "The model's prompt that goes before texts")
        .or("the model's default")
        .seen("api-gateway/src/pooling/inputs.rs: prompts_go_before_texts"),
    field("use_activation", SCORED, Bool, "Give probabilities instead of the model's scores")
        .or("true")
        .seen(CLASSES_TEST),
    field("use_activation", ENCODED_BODIES, Bool, "Scale embeddings to length one; give probabilities")
        .or("as the model does")
        .seen(EMBEDDED_TEST),
    // Of pairs.
    field("data_1", PAIRS, TEXTS, "Another name of `text_1`").seen(SCORES_TEST),
    field("data_2", PAIRS, TEXTS, "Another name of `text_2`").seen(SCORES_TEST),
    field("documents", PAIRS, TEXTS, "Another name of `text_2`, with `queries`").seen(SCORES_TEST),
    field("items", PAIRS, TEXTS, "Another name of `text_2`, with `queries`").seen(SCORES_TEST),
    field("queries", PAIRS, TEXTS, "Another name of `text_1`").seen(SCORES_TEST),
    field("text_1", PAIRS, TEXTS, "One text, or as many as of the second side").seen(SCORES_TEST),
    field("text_2", PAIRS, TEXTS, "The texts to compare with").seen(SCORES_TEST),
    field("chat_template_kwargs", BOUNDED, Shape::Object(&[]), "Variables of `--chat-template`, which renders pairs")
        .seen(TEMPLATE_TEST),
    field("instruction", BOUNDED, Text, "The same as `{\"instruction\": …}` among them").seen(TEMPLATE_TEST),
    // Of rankings.
    field("documents", &[Rerank], TEXTS, "The documents").needed().seen(RANKING_TEST),
    Field {
        fate: Fate::Refused("`truncate_prompt_tokens` bounds both texts together"),
        ..field("max_tokens_per_doc", BOUNDED, Any, "").seen(RANKING_TEST)
    },
    Field {
        fate: Fate::Refused("`truncate_prompt_tokens` bounds both texts together"),
        ..field("max_tokens_per_query", BOUNDED, Any, "").seen(RANKING_TEST)
    },
    field("query", &[Rerank], Text, "What they are to answer").needed().seen(RANKING_TEST),
    field("return_documents", &[Rerank], Bool, "Repeat the documents").or("true").seen(RANKING_TEST),
    field("top_n", &[Rerank], Whole(0, i64::MAX), "Documents to give at most; 0: all").or("0").seen(RANKING_TEST),
    // Of /pooling.
    Field {
        fate: Fate::Refused("there are no plugins; prompts are `input`"),
        ..field("data", &[Pooling], Any, "").seen(SHARED_REFUSALS)
    },
    field(
        "task",
        &[Pooling],
        Word(&["embed", "classify", "token_embed", "token_classify"]),
        "Outputs of prompts or of their tokens",
    )
    .or("as the model does")
    .seen(POOLED_TEST),
    // Of /v2/embed.
    field("embedding_types", &[CohereEmbed], List(&Word(&["float", "base64", "binary", "ubinary"])), "Types to give")
        .or("[\"float\"]")
        .seen(COHERE_TEST),
    Field { fate: Fate::Refused("inputs are `texts`"), ..field("images", &[CohereEmbed], Any, "").seen(COHERE_TEST) },
    field(
        "input_type",
        &[CohereEmbed],
        Word(&["search_query", "search_document", "classification", "clustering"]),
        "Which of the model's prompts goes before texts, where it has some",
    )
    .seen(COHERE_TEST),
    Field { fate: Fate::Refused("inputs are `texts`"), ..field("inputs", &[CohereEmbed], Any, "").seen(COHERE_TEST) },
    field("output_dimension", &[CohereEmbed], Whole(1, i64::MAX), "As `dimensions` of embeddings")
        .or("all")
        .seen(COHERE_TEST),
    field("texts", &[CohereEmbed], Several(&Text, 1, usize::MAX), "The inputs").needed().seen(COHERE_TEST),
    field("truncate", &[CohereEmbed], Word(&["NONE", "START", "END"]), "Which end of long inputs is left out")
        .or("\"END\"")
        .seen(COHERE_TEST),
];
