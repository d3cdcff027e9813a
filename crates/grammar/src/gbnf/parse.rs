//! Reads GBNF.

use std::collections::HashMap;

use super::{Expr, Rules};
use crate::error::GrammarError;

/// Parentheses within parentheses.
const MAX_DEPTH: usize = 64;
/// Most repetitions that a count may name.
const MAX_COUNT: u32 = 10_000;

pub(super) fn parse(text: &str) -> Result<Rules, GrammarError> {
    let mut parser = Parser { text, at: 0, names: Vec::new(), by_name: HashMap::new(), bodies: Vec::new() };
    parser.rules()?;
    let undefined = parser.bodies.iter().position(Option::is_none);
    if let Some(name) = undefined.map(|index| parser.names[index]) {
        return Err(parser.error(format!("the rule `{name}` is used and not defined")));
    }
    let root = parser.by_name.get("root").copied();
    let root = root.ok_or_else(|| parser.error("there is no rule `root`".to_owned()))?;
    Ok(Rules { bodies: parser.bodies.into_iter().flatten().collect(), root })
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    names: Vec<&'t str>,
    by_name: HashMap<&'t str, usize>,
    bodies: Vec<Option<Expr>>,
}

impl<'t> Parser<'t> {
    fn rules(&mut self) -> Result<(), GrammarError> {
        self.skip_space(Lines::Skip);
        while self.peek().is_some() {
            let name = self.name().ok_or_else(|| self.error("expected a rule's name".to_owned()))?;
            self.skip_space(Lines::Skip);
            self.expect("::=")?;
            let body = self.either(0)?;
            let index = self.index(name);
            if self.bodies[index].replace(body).is_some() {
                return Err(self.error(format!("the rule `{name}` is defined twice")));
            }
            self.skip_space(Lines::Skip);
        }
        Ok(())
    }

    fn either(&mut self, depth: usize) -> Result<Expr, GrammarError> {
        if depth > MAX_DEPTH {
            return Err(self.error(format!("more than {MAX_DEPTH} parentheses within each other")));
        }
        let mut branches = vec![self.sequence(depth)?];
        while self.eat("|") {
            branches.push(self.sequence(depth)?);
        }
        Ok(if branches.len() == 1 { branches.remove(0) } else { Expr::Either(branches) })
    }

    fn sequence(&mut self, depth: usize) -> Result<Expr, GrammarError> {
        // A line may end behind `::=`, `|` and within parentheses.
        self.skip_space(Lines::Skip);
        let mut parts = Vec::new();
        while let Some(part) = self.element(depth)? {
            parts.push(self.repeated(part)?);
            self.skip_space(if depth == 0 { Lines::Keep } else { Lines::Skip });
        }
        if depth == 0 {
            self.continue_behind_lines();
        }
        Ok(Expr::Sequence(parts))
    }

    /// An alternative may begin on a line of its own.
    fn continue_behind_lines(&mut self) {
        let before = self.at;
        self.skip_space(Lines::Skip);
        if self.peek() != Some('|') {
            self.at = before;
        }
    }

    fn element(&mut self, depth: usize) -> Result<Option<Expr>, GrammarError> {
        Ok(Some(match self.peek() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('.') => {
                self.at += 1;
                Expr::Any
            }
            Some('(') => {
                self.at += 1;
                let inner = self.either(depth + 1)?;
                self.skip_space(Lines::Skip);
                self.expect(")")?;
                inner
            }
            _ => match self.name() {
                Some(name) => Expr::Rule(self.index(name)),
                None => return Ok(None),
            },
        }))
    }

    fn repeated(&mut self, mut body: Expr) -> Result<Expr, GrammarError> {
        loop {
            self.skip_space(Lines::Keep);
            let (least, most) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    self.at += 1;
                    let bounds = self.bounds()?;
                    body = Expr::Repeat { body: Box::new(body), least: bounds.0, most: bounds.1 };
                    continue;
                }
                _ => return Ok(body),
            };
            self.at += 1;
            body = Expr::Repeat { body: Box::new(body), least, most };
        }
    }

    /// `m}`, `m,}`, `m,n}` or `,n}`.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let least = self.number()?;
        let most = match self.eat(",") {
            true => self.number()?,
            false => Some(least.ok_or_else(|| self.error("expected a number of repetitions".to_owned()))?),
        };
        self.expect("}")?;
        match (least.unwrap_or(0), most) {
            (least, Some(most)) if least > most => Err(self.error(format!("{{{least},{most}}} counts down"))),
            bounds => Ok(bounds),
        }
    }

    fn number(&mut self) -> Result<Option<u32>, GrammarError> {
        self.skip_space(Lines::Keep);
        let digits = self.take_while(|c| c.is_ascii_digit());
        self.skip_space(Lines::Keep);
        match (digits, digits.parse::<u32>()) {
            ("", _) => Ok(None),
            (_, Ok(number)) if number <= MAX_COUNT => Ok(Some(number)),
            _ => Err(self.error(format!("{digits} repetitions are more than {MAX_COUNT}"))),
        }
    }

    fn literal(&mut self) -> Result<Expr, GrammarError> {
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                Some('"') => break,
                Some('\n') | None => return Err(self.error("a literal is not closed".to_owned())),
                Some(_) => text.push(self.character()?),
            }
        }
        self.at += 1;
        Ok(Expr::Literal(text))
    }

    fn class(&mut self) -> Result<Expr, GrammarError> {
        self.at += 1;
        let mut class = String::from(if self.eat("^") { "[^" } else { "[" });
        let empty = class.len();
        while self.peek() != Some(']') {
            if self.peek().is_none() {
                return Err(self.error("a set of characters is not closed".to_owned()));
            }
            let first = self.character()?;
            push_class_char(&mut class, first);
            let rest = &self.text.as_bytes()[self.at..];
            if rest.first() == Some(&b'-') && rest.get(1) != Some(&b']') {
                self.at += 1;
                let last = self.character()?;
                if last < first {
                    return Err(self.error(format!("{first:?} to {last:?} counts down")));
                }
                class.push('-');
                push_class_char(&mut class, last);
            }
        }
        self.at += 1;
        match class.len() == empty {
            true => Err(self.error("a set of characters is empty".to_owned())),
            false => Ok(Expr::Class(class + "]")),
        }
    }

    /// The next character of a literal or a set, escaped or not.
    fn character(&mut self) -> Result<char, GrammarError> {
        let plain = self.next()?;
        if plain != '\\' {
            return Ok(plain);
        }
        let digits = match self.next()? {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            other => return Ok(other),
        };
        let code = self.text.get(self.at..self.at + digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let character = code.and_then(char::from_u32);
        let character = character.ok_or_else(|| self.error("an escape names no character".to_owned()))?;
        self.at += digits;
        Ok(character)
    }

    fn next(&mut self) -> Result<char, GrammarError> {
        let next = self.peek().ok_or_else(|| self.error("the grammar ends within a literal".to_owned()))?;
        self.at += next.len_utf8();
        Ok(next)
    }

    fn name(&mut self) -> Option<&'t str> {
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        Some(name).filter(|name| !name.is_empty())
    }

    /// A rule's number; given at its first mention.
    fn index(&mut self, name: &'t str) -> usize {
        let next = self.names.len();
        let index = *self.by_name.entry(name).or_insert(next);
        if index == next {
            self.names.push(name);
            self.bodies.push(None);
        }
        index
    }

    fn take_while(&mut self, belongs: impl Fn(char) -> bool) -> &'t str {
        let rest = &self.text[self.at..];
        let taken = &rest[..rest.find(|c| !belongs(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    fn skip_space(&mut self, lines: Lines) {
        loop {
            self.take_while(|c| c == ' ' || c == '\t' || (lines == Lines::Skip && (c == '\n' || c == '\r')));
            if self.peek() != Some('#') {
                return;
            }
            self.take_while(|c| c != '\n');
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn eat(&mut self, word: &str) -> bool {
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), GrammarError> {
        match self.eat(word) {
            true => Ok(()),
            false => Err(self.error(format!("expected `{word}`"))),
        }
    }

    fn error(&self, reason: String) -> GrammarError {
        GrammarError::Syntax { line: self.text[..self.at].matches('\n').count() + 1, reason }
    }
}

/// What space is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lines {
    /// Line ends too.
    Skip,
    /// A line's end ends a rule.
    Keep,
}

fn push_class_char(class: &mut String, character: char) {
    if matches!(character, '[' | ']' | '^' | '-' | '\\' | '/' | '&' | '~') {
        class.push('\\');
        class.push(character);
    } else if character.is_control() {
        class.push_str(&format!("\\x{{{:x}}}", u32::from(character)));
    } else {
        class.push(character);
    }
}
