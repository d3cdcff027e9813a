//! Random texts under a constraint: at each step one of the tokens that the mask allows.

use std::sync::Arc;

use grammar::{Compiler, Encode, GrammarError, Matcher, Token, Vocabulary};
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
#[allow(dead_code, reason = "the suite has words of its own")]
pub fn compiler() -> Compiler {
    Words::of_tests().compiler()
}

/// The bytes of each token; those of tokens that are no text are empty.
pub struct Words {
    pub words: Vec<Vec<u8>>,
    pub ends: Vec<u32>,
    /// The tokenizer's own spelling of a text, where it is known.
    pub spell: Option<Arc<Encode>>,
}

impl Words {
    /// Two end tokens, one that stands for nothing, and [`vocabulary`].
    pub fn of_tests() -> Self {
        let words = std::iter::repeat_n(Vec::new(), 3).chain(vocabulary()).collect();
        Self { words, ends: vec![END, OTHER_END], spell: None }
    }

    /// What compiles over these.
    pub fn compiler(&self) -> Compiler {
        Compiler::new(&self.vocabulary()).expect("a compiler")
    }

    /// The tokens.
    pub fn vocabulary(&self) -> Vocabulary {
        let tokens = self.words.iter().zip(0..).map(|(word, id)| match word.is_empty() {
            true if self.ends.contains(&id) => Token::Special("<end>"),
            true => Token::Absent,
            false => Token::Text(word),
        });
        let ends: Vec<u32> = self.ends.iter().copied().chain([9_000_000]).collect();
        let vocabulary = Vocabulary::new(tokens, &ends).expect("it has end tokens");
        match &self.spell {
            Some(spell) => vocabulary.with_encoder(spell.clone()),
            None => vocabulary,
        }
    }
}

/// How a walk ended.
pub enum Walk {
    /// At the text's end.
    Whole(Vec<u8>),
    /// Before it, after as many tokens as there may be.
    Cut,
    /// At a bound of the grammar: the request would fail.
    #[allow(dead_code, reason = "tests do not read the reason")]
    TooComplex(String),
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
#[allow(dead_code, reason = "each test file uses some of these")]
pub fn text(matcher: &mut Matcher, seed: u64, most: usize) -> Option<Vec<u8>> {
    match walk(&Words::of_tests(), matcher, seed, most) {
        Walk::Whole(text) => Some(text),
        Walk::Cut => None,
        Walk::TooComplex(reason) => panic!("not within bounds: {reason}"),
    }
}

/// The same over any vocabulary.
pub fn walk(words: &Words, matcher: &mut Matcher, seed: u64, most: usize) -> Walk {
    let (mut random, mut text) = (StdRng::seed_from_u64(seed), Vec::new());
    for step in 0..4 * most {
        let mask = match matcher.mask() {
            Ok(mask) => mask,
            Err(error) => return Walk::TooComplex(error.to_string()),
        };
        let allowed: Vec<u32> = (0..words.words.len() as u32).filter(|&token| mask.allows(token)).collect();
        assert!(!allowed.is_empty(), "no token may follow {:?}", String::from_utf8_lossy(&text));
        assert_eq!(mask.first(), allowed.first().copied());
        let (ends, inside): (Vec<u32>, Vec<u32>) = allowed.into_iter().partition(|token| words.ends.contains(token));
        assert!(ends.is_empty() || ends == words.ends, "all end tokens are alike");
        if !ends.is_empty() && (step >= most || inside.is_empty() || random.random_ratio(1, 8)) {
            matcher.accept(ends[0]).expect("allowed");
            assert!(matcher.is_complete());
            return Walk::Whole(text);
        }
        // Long texts close what they opened.
        let wanted = |token: &u32| words.words[*token as usize].iter().any(|byte| b"]}\"0".contains(byte));
        let closing: Vec<u32> = inside.iter().copied().filter(|token| step < most || wanted(token)).collect();
        let from = if closing.is_empty() { &inside } else { &closing };
        let token = from[random.random_range(0..from.len())];
        if let Err(error) = matcher.accept(token) {
            return Walk::TooComplex(error.to_string());
        }
        text.extend_from_slice(&words.words[token as usize]);
    }
    Walk::Cut
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

/// Whether a constraint allows exactly this text, written byte by byte.
#[allow(dead_code, reason = "each test file uses some of these")]
pub fn takes(mut matcher: Matcher, text: &str) -> bool {
    let words = Words::of_tests().words;
    let fits = text.bytes().all(|byte| {
        let token = words.iter().position(|word| *word == [byte]).expect("every byte is a token") as u32;
        matcher.mask().is_ok_and(|mask| mask.allows(token)) && matcher.accept(token).is_ok()
    });
    fits && matcher.mask().is_ok_and(|mask| mask.allows(END))
}
