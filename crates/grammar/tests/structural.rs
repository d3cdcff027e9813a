//! Structural tags, and answers that begin with reasoning: special tokens mean themselves, and what is free is free.

use grammar::{Compiler, Matcher, Token, Vocabulary};
use proto::{Constraint, Reasoning, constraint::Kind, reasoning::Start};
use serde_json::json;

const END: u32 = 256;
const CALL: u32 = 257;
const CALLED: u32 = 258;
const THOUGHT: u32 = 259;

/// Every byte, an end, `<call>` and `</call>`, which are special, and `</think>`, which is only added.
fn compiler() -> Compiler {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let tokens = bytes.iter().map(|byte| Token::Text(byte)).chain([
        Token::Special("<end>"),
        Token::Special("<call>"),
        Token::Special("</call>"),
        Token::Added("</think>"),
    ]);
    Compiler::new(&Vocabulary::new(tokens, &[END]).expect("an end token")).expect("a compiler")
}

/// A text as tokens, its markers as the tokens that they are.
fn tokens(text: &str) -> Vec<u32> {
    let marks = [("<call>", CALL), ("</call>", CALLED), ("</think>", THOUGHT), ("<end>", END)];
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(byte) = rest.bytes().next() {
        match marks.iter().find(|(mark, _)| rest.starts_with(mark)) {
            Some((mark, id)) => {
                tokens.push(*id);
                rest = &rest[mark.len()..];
            }
            None => {
                tokens.push(byte.into());
                rest = &rest[1..];
            }
        }
    }
    tokens
}

/// Whether the masks allow a text, one token after the other.
fn takes(mut matcher: Matcher, text: &str) -> bool {
    tokens(text).into_iter().all(|token| {
        let allowed = matcher.mask().expect("within bounds").allows(token);
        allowed && matcher.accept(token).is_ok()
    })
}

fn check(constraint: &Constraint, reasoning: Option<&Reasoning>, rows: &[(&str, bool)]) {
    let compiler = compiler();
    for (text, expected) in rows {
        let matcher = compiler.matcher(constraint, reasoning).expect("it compiles");
        assert_eq!(takes(matcher, text), *expected, "{text}");
    }
}

fn structural(format: &serde_json::Value) -> Constraint {
    Constraint { kind: Some(Kind::StructuralTag(format.to_string())), ..Constraint::default() }
}

#[test]
fn tags_follow_triggers() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false});
    let rows = [
        ("Hi.<end>", true),
        ("<end>", true),
        ("Look: <f>{\"a\":1}</f> and <g>x</g>.<end>", true),
        ("<f>{\"b\"", false),
        ("<f>{\"a\":1}</g>", false),
        ("<f>{\"a\":1}<end>", false),
        ("<g>yy</g><end>", true),
        ("<g>0", false),
        ("<f", true),
    ];
    let format = json!({"type": "triggered_tags", "triggers": ["<f>", "<g>"], "tags": [
        {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"},
        {"type": "tag", "begin": "<g>", "content": {"type": "regex", "pattern": "[xy]+"}, "end": "</g>"},
    ]});
    check(&structural(&json!({"type": "structural_tag", "format": format})), None, &rows);
    let older = json!({"type": "structural_tag", "triggers": ["<f"], "structures": [
        {"begin": "<f>", "schema": schema, "end": "</f>"}, {"begin": "<fg>", "schema": true, "end": "</fg>"}]});
    check(&structural(&older), None, &[("a<f>{\"a\":1}</f>b<fg>[1]</fg><end>", true), ("<f>[", false), ("<fx", false)]);
}

#[test]
fn special_tokens_are_named_by_their_text() {
    let tag = |content| json!({"type": "tag", "begin": "<call>", "content": content, "end": "</call>"});
    let numbers = tag(json!({"type": "regex", "pattern": "[0-9]+"}));
    let format = json!({"type": "triggered_tags", "triggers": ["<call>"], "tags": [numbers], "at_least_one": true});
    let rows =
        [("Now <call>12</call> yes<end>", true), ("<end>", false), ("<call>a", false), ("<call>1</call><end>", true)];
    check(&structural(&format), None, &rows);
    let free = tag(json!({"type": "any_text"}));
    let listed = json!({"type": "tags_with_separator", "tags": [free], "separator": ",", "at_least_one": true});
    check(&structural(&listed), None, &[("<call>any,thing</call>,<call></call><end>", true), ("<call>x<end>", false)]);
    let sequence = json!({"type": "sequence", "elements": [{"type": "const_string", "value": "a"},
        {"type": "optional", "content": {"type": "const_string", "value": "b"}},
        {"type": "or", "elements": [{"type": "json_schema", "json_schema": {"const": 1}}, {"type": "any_text"}]}]});
    check(&structural(&sequence), None, &[("ab1<end>", true), ("a1<end>", true), ("aq<end>", true), ("b", false)]);
}

#[test]
fn formats_that_cannot_be_read_are_refused_in_words() {
    let compiler = compiler();
    let deep = (0..100).fold(json!({"type": "any_text"}), |inner, _| json!({"type": "plus", "content": inner}));
    for (format, word) in [
        (json!({"type": "qwen_xml_parameter", "json_schema": {}}), "qwen_xml_parameter"),
        (json!({"type": "triggered_tags", "triggers": [], "tags": [{}]}), "triggers"),
        (json!({"type": "triggered_tags", "triggers": ["<a>"], "tags": [{"begin": "<b>"}]}), "triggers"),
        (json!({"type": "tag", "begin": "a", "content": {"type": "any_text"}}), "end"),
        (
            json!({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "regex", "pattern": "a"}]}),
            "any_text",
        ),
        (json!([]), "object"),
        (json!({}), "type"),
        (deep, "deep"),
    ] {
        let refused = compiler.matcher(&structural(&format), None).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|text| text.contains(word)), "{format}: {refused:?}");
    }
}

#[test]
fn a_constraint_begins_behind_the_reasoning() {
    let yes = Constraint { kind: Some(Kind::Regex("yes".to_owned())), ..Constraint::default() };
    let text = |text: &str| vec![text.to_owned()];
    let open = Reasoning { start: Start::Open.into(), close: text("</think>"), ..Reasoning::default() };
    let rows = [
        ("hm <call> no</think>yes<end>", true),
        ("</think>\n\nyes<end>", true),
        ("yes<end>", false),
        ("</think>no", false),
    ];
    check(&yes, Some(&open), &rows);
    let written = Reasoning { close: text("So: "), ..open.clone() };
    check(&yes, Some(&written), &[("hm. So: yes<end>", true), ("So: no", false), ("So.<end>", false)]);
    let may = Reasoning { start: Start::MayOpen.into(), open: text("<think>"), ..open.clone() };
    check(&yes, Some(&may), &[("yes<end>", true), ("<think>a</think>yes<end>", true), ("<think>yes<end>", false)]);
    // As Harmony's channels: the same special token begins what is thought and the answer.
    let channels = Reasoning { close: text("<call>final</call>"), ..open.clone() };
    let rows = [
        ("<call>analysis</call>hm.<call>final</call>yes<end>", true),
        ("<call>a</call>b<call>commentary to=x</call>{}<call>final</call>yes<end>", true),
        ("<call>final</call>yes<end>", true),
        ("<call>analysis</call>hm.<end>", false),
        ("<call>analysis<call>final</call>yes<end>", true),
        ("<call>final</call>no", false),
        ("<call>found", false),
    ];
    check(&yes, Some(&channels), &rows);
    let none = Reasoning { start: Start::None.into(), ..open.clone() };
    check(&yes, Some(&none), &[("yes<end>", true), ("h", false)]);
    let unknown = Reasoning { close: Vec::new(), format: "x".to_owned(), ..open };
    assert!(compiler().matcher(&yes, Some(&unknown)).is_err());
}
