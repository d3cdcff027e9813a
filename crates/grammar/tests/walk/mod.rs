//! Random texts under a constraint: at each step one of the tokens that the mask allows.

use grammar::{Compiler, GrammarError, Matcher, Token, Vocabulary};
use proto::{Choices, Constraint, constraint::Kind};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// The token that ends a text.
pub const END: u32 = 0;
/// A second one.
pub const OTHER_END: u32 = 1;

/// Every byte, and pieces as tokenizers have them, some of which cross the borders of what grammars name.
pub fn vocabulary() -> Vec<Vec<u8>> {
    let pieces = [
        "{\"", "\":", "\": ", "\",", "\", \"", "},", "}]", "[{", "null", "true", "false", " true", "name", "age",
        "the ", " a", "e", "12", "3.", "0", "ab", "abc", "é", "日本", "  ", "\n  ", "\\n", "\\\"", "-", "[]", "{}",
        "\"}", "yes", "no", "ye", "s",
    ];
    (0..=255u8).map(|byte| vec![byte]).chain(pieces.map(|piece| piece.as_bytes().to_vec())).collect()
}

/// What compiles over that vocabulary.
pub fn compiler() -> Compiler {
    let words = vocabulary();
    let specials = [Token::Special("<end>"), Token::Special("<other>"), Token::Absent];
    let tokens = specials.into_iter().chain(words.iter().map(|word| Token::Text(word)));
    let vocabulary = Vocabulary::new(tokens, &[END, OTHER_END, 70_000]).expect("it has end tokens");
    Compiler::new(&vocabulary).expect("a compiler")
}

/// A constraint of one kind, without switches.
pub fn of(kind: Kind) -> Constraint {
    Constraint { kind: Some(kind), ..Constraint::default() }
}

#[allow(dead_code, reason = "each test file uses some of these")]
pub fn choice(choices: &[&str]) -> Constraint {
    of(Kind::Choice(Choices { choices: choices.iter().map(|text| (*text).to_owned()).collect() }))
}

/// The bytes of a random text; ends at the first chance after `most` tokens, if there is one within four times as many.
pub fn text(matcher: &mut Matcher, seed: u64, most: usize) -> Option<Vec<u8>> {
    let words = vocabulary();
    let (mut random, mut text) = (StdRng::seed_from_u64(seed), Vec::new());
    for step in 0..4 * most {
        let mask = matcher.mask().expect("within bounds");
        let allowed: Vec<u32> = (0..words.len() as u32 + 3).filter(|&token| mask.allows(token)).collect();
        assert!(!allowed.is_empty(), "no token may follow {:?}", String::from_utf8_lossy(&text));
        assert_eq!(mask.first(), allowed.first().copied());
        let ends = allowed.contains(&END);
        assert_eq!(ends, allowed.contains(&OTHER_END), "all end tokens are alike");
        if ends && (step >= most || allowed.len() == 2 || random.random_ratio(1, 8)) {
            matcher.accept(END).expect("allowed");
            assert!(matcher.is_complete());
            return Some(text);
        }
        // Long texts close what they opened.
        let wanted = |token: &u32| step < most || words[*token as usize - 3].iter().any(|byte| b"]}\"0".contains(byte));
        let inside: Vec<u32> = allowed.into_iter().filter(|&token| token > 2).collect();
        let closing: Vec<u32> = inside.iter().copied().filter(wanted).collect();
        let from = if closing.is_empty() { &inside } else { &closing };
        let token = from[random.random_range(0..from.len())];
        matcher.accept(token).expect("the mask allows it");
        text.extend_from_slice(&words[token as usize - 3]);
    }
    None
}

/// Compiles a constraint and gives some random texts under it.
#[allow(dead_code, reason = "each test file uses some of these")]
pub fn texts(compiler: &Compiler, constraint: &Constraint, count: u64) -> Result<Vec<String>, GrammarError> {
    let mut texts = Vec::new();
    for seed in 0..count {
        let mut matcher = compiler.matcher(constraint, None)?;
        if let Some(text) = text(&mut matcher, seed, 60) {
            texts.push(String::from_utf8(text).expect("whole characters"));
        }
    }
    assert!(texts.len() as u64 > count / 4, "only {} of {count} texts ended: {constraint:?}", texts.len());
    Ok(texts)
}
