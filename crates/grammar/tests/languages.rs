//! Regular expressions, choices and grammars; hostile ones; what a matcher does token by token.

mod walk;

use std::sync::{Arc, LazyLock};

use grammar::{Compiler, GrammarError, MatchError};
use proptest::prelude::*;
use proto::{Constraint, constraint::Kind};
use walk::{END, OTHER_END, Words, choice, compiler, of, texts};

fn of_regex(pattern: &str) -> Constraint {
    of(Kind::Regex(pattern.to_owned()))
}

fn of_grammar(text: &str) -> Constraint {
    of(Kind::Grammar(text.to_owned()))
}

#[test]
fn regular_expressions_and_choices() {
    let compiler = compiler();
    for text in texts(&compiler, &of_regex(r"[a-z]{2,4}-[0-9]+(\.[0-9])?"), 30).unwrap() {
        let (word, number) = text.split_once('-').expect("a dash");
        assert!((2..=4).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_lowercase()), "{text}");
        assert!(number.parse::<f64>().is_ok(), "{text}");
    }
    let words = ["yes", "no", "ye", "a \"quoted\" \\ one", "日本"];
    let mut seen = texts(&compiler, &choice(&words), 80).unwrap();
    seen.sort();
    seen.dedup();
    assert!(seen.iter().all(|text| words.contains(&text.as_str())) && seen.len() == words.len(), "{seen:?}");
}

/// A tokenizer that takes the longest token that fits.
fn longest_first(text: &str) -> Vec<u32> {
    let words = Words::of_tests().words;
    let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let fits = words.iter().enumerate().filter(|(_, word)| !word.is_empty() && rest.starts_with(word));
        let (id, word) = fits.max_by_key(|(_, word)| word.len()).expect("bytes are words");
        ids.push(id as u32);
        rest = &rest[word.len()..];
    }
    ids
}

#[test]
fn what_must_follow_is_spelled_as_the_tokenizer_does() {
    let plain = Words::of_tests().vocabulary();
    let known = Compiler::new(&plain.clone().with_encoder(Arc::new(longest_first))).unwrap();
    let constraint = of_regex(r#"[0-9]\{"name": null, "age": (12|3)\}"#);
    let digit = longest_first("7")[0];
    let mut matcher = known.matcher(&constraint, None).unwrap();
    assert_eq!(matcher.forced(), [0; 0], "there is a choice");
    matcher.accept(digit).unwrap();
    let forced = matcher.forced();
    let whole = longest_first(r#"{"name": null, "age": "#);
    assert!(forced.len() > 4 && whole.starts_with(&forced), "{forced:?} of {whole:?}");
    let mask = matcher.mask().unwrap();
    assert!((0..plain.len() as u32).all(|token| mask.allows(token) == (token == forced[0])));
    forced.iter().for_each(|token| matcher.accept(*token).unwrap());
    assert_eq!(matcher.forced(), [0; 0], "there is a choice again");
    // A tokenizer that changes its text spells nothing.
    let strange = Compiler::new(&plain.with_encoder(Arc::new(|text| longest_first(&text.to_uppercase())))).unwrap();
    let mut matcher = strange.matcher(&constraint, None).unwrap();
    matcher.accept(digit).unwrap();
    matcher.forced().into_iter().for_each(|token| matcher.accept(token).unwrap());
    let mut matcher = compiler().matcher(&constraint, None).unwrap();
    matcher.accept(digit).unwrap();
    assert_eq!(matcher.forced(), [0; 0], "no tokenizer is known");
}

/// llama.cpp's grammar of JSON arrays, with a rule of space that recurs.
const ARRAYS: &str = r#"
root   ::= "[" ws ( value ("," ws value)* )? "]" ws   # a comment
value  ::= root | string | number | ("true" | "false" | "null") ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,4}
"#;

#[test]
fn gbnf_gives_its_language() {
    let compiler = compiler();
    for text in texts(&compiler, &of_grammar(ARRAYS), 40).unwrap() {
        assert!(serde_json::from_str::<Vec<serde_json::Value>>(&text).is_ok(), "{text}");
    }
    let polite = "root ::= greeting \" \" name punctuation\r\ngreeting ::= \"Hello\"\n  | \"Hi\"\nname ::= [A-C]+\n\
                  punctuation ::= [.!]";
    for text in texts(&compiler, &of_grammar(polite), 20).unwrap() {
        let (greeting, rest) = text.split_once(' ').unwrap();
        assert!(["Hello", "Hi"].contains(&greeting) && rest.ends_with(['.', '!']), "{text}");
    }
}

#[test]
fn lark_gives_its_language() {
    let sums = "start: sum\nsum: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]{1,3}/";
    for text in texts(&compiler(), &of_grammar(sums), 20).unwrap() {
        assert!(text.split('+').all(|number| number.parse::<u32>().is_ok_and(|number| number < 1000)), "{text}");
    }
}

#[test]
fn bad_grammars_are_refused_in_words() {
    let compiler = compiler();
    for (grammar, word) in [
        ("root ::= missing", "missing"),
        ("other ::= \"a\"", "no rule `root`"),
        ("root ::= \"a", "not closed"),
        ("root ::= [z-a]", "counts down"),
        ("root ::= []", "empty"),
        ("root ::= \"a\"{3,2}", "counts down"),
        ("root ::= \"a\"{1000000}", "more than 10000"),
        ("root ::= (\"a\"", "expected `)`"),
        ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
        ("\nroot ::= \"\\uD800\"", "line 2"),
        ("root ::= root", "compiled"),
        ("start: nothing", "compiled"),
        ("", "compiled"),
    ] {
        let refused = compiler.matcher(&of_grammar(grammar), None).err().map(|error| error.to_string());
        assert!(refused.as_ref().is_some_and(|text| text.contains(word)), "{grammar:?}: {refused:?}");
    }
    assert!(compiler.matcher(&of_regex("(a"), None).is_err());
    assert!(compiler.matcher(&of_regex("(?=a)b"), None).is_err());
    assert_eq!(compiler.matcher(&choice(&[]), None).err(), Some(GrammarError::NoChoice));
    assert_eq!(compiler.matcher(&choice(&["a", ""]), None).err(), Some(GrammarError::NoChoice));
    assert!(compiler.matcher(&Constraint::default(), None).is_err());
}

#[test]
fn hostile_constraints_end_at_a_bound() {
    let compiler = compiler();
    let doubling = (0..40).map(|rule| format!("r{rule} ::= r{} r{}\n", rule + 1, rule + 1)).collect::<String>();
    let chain = (0..5000).map(|rule| format!("r{rule} ::= \"a\" r{}\n", rule + 1)).collect::<String>();
    for hostile in [
        of_grammar(&format!("root ::= r0\n{doubling}r40 ::= \"a\"")),
        of_grammar(&format!("root ::= r0\n{chain}r5000 ::= \"a\"")),
        of_grammar(&format!("root ::= {}\"a\"{}", "(".repeat(100_000), ")".repeat(100_000))),
        of_grammar(&" ".repeat(10 << 20)),
        of_regex(&"a".repeat(10 << 20)),
        of(Kind::JsonSchema(format!("{}{{}}{}", r#"{"items":"#.repeat(10_000), "}".repeat(10_000)))),
    ] {
        let shown = format!("{:?}", hostile.kind).chars().take(80).collect::<String>();
        assert!(compiler.matcher(&hostile, None).is_err(), "{shown}");
    }
    // Counters cost nothing until they count: it compiles, and each mask ends.
    let mut counting = compiler.matcher(&of_regex("((a{1,1000}){1,1000}){1,1000}"), None).unwrap();
    for _ in 0..50 {
        let mask = match counting.mask() {
            Ok(mask) => mask,
            // Counters are compiled as they are met: that may be too much, too.
            Err(error) => {
                assert!(matches!(error, MatchError::TooComplex { .. }), "{error}");
                break;
            }
        };
        counting.accept(u32::from(b'a') + 3).expect("allowed");
        assert!(!mask.allows(u32::from(b'b') + 3));
    }
    // And the compiler goes on.
    assert!(compiler.matcher(&choice(&["a"]), None).is_ok());
}

#[test]
fn a_matcher_follows_its_text() {
    let compiler = compiler();
    let token = |byte: u8| u32::from(byte) + 3;
    let mut matcher = compiler.matcher(&of_regex("ab?"), None).unwrap();
    assert!(!matcher.mask().unwrap().allows(END), "the empty text is none");
    assert_eq!(matcher.accept(token(b'x')), Err(MatchError::Forbidden { token: token(b'x') }));
    matcher.accept(token(b'a')).unwrap();
    let mask = matcher.mask().unwrap();
    assert!(mask.allows(END) && mask.allows(OTHER_END) && mask.allows(token(b'b')) && !mask.allows(token(b'a')));
    assert!(!mask.allows(2) && !mask.allows(u32::MAX), "ids without a token");
    let left: Vec<u32> = (0..400).filter(|&id| mask.allows(id)).collect();
    assert_eq!(left, [END, OTHER_END, token(b'b')]);
    matcher.accept(token(b'b')).unwrap();
    assert!(matcher.mask().unwrap().allows(END) && matcher.is_complete());
    matcher.accept(OTHER_END).unwrap();
    assert_eq!(matcher.accept(END), Ok(()), "behind the end nothing changes");
    // Another sequence under the same constraint begins at its beginning.
    assert!(!compiler.matcher(&of_regex("ab?"), None).unwrap().mask().unwrap().allows(END));
}

static SHARED: LazyLock<grammar::Compiler> = LazyLock::new(compiler);

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics_the_compiler(text in "[rot:= \"\\[\\]a-c|()*+?{},0-9\n\\\\.^#-]{0,60}") {
        let compiler = &*SHARED;
        let _ = compiler.matcher(&of_grammar(&format!("root ::= {text}")), None);
        let _ = compiler.matcher(&of_grammar(&text), None);
    }

    #[test]
    fn literals_come_back_as_they_are(text in "\\PC{1,12}") {
        let escaped = |c: char| if c == '"' || c == '\\' { format!("\\{c}") } else { c.to_string() };
        let quoted: String = text.chars().map(escaped).collect();
        let found = texts(&SHARED, &of_grammar(&format!("root ::= \"{quoted}\"")), 1).unwrap();
        prop_assert_eq!(&found[0], &text);
    }
}
