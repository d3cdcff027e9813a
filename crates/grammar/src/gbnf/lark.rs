//! Writes a grammar as Lark: what does not recur as regular expressions, the rest as rules.

use std::{collections::HashMap, fmt::Write};

use super::{Expr, Rules};
use crate::error::GrammarError;

/// Bytes that rules may grow to when they are written into each other.
const MAX_BYTES: usize = 512 << 10;
/// Rules within rules, and elements within elements.
const MAX_DEPTH: usize = 256;

pub(super) fn write(rules: &Rules) -> Result<String, GrammarError> {
    let mut writer =
        Writer { rules, recursive: recursive(rules), lexemes: Vec::new(), lexeme_of: HashMap::new(), bytes: 0 };
    let mut lark = String::new();
    if writer.is_regular(&rules.bodies[rules.root]) {
        let mut regex = String::new();
        writer.regex(&rules.bodies[rules.root], &mut regex, 0)?;
        return Ok(format!("start: /{regex}/\n"));
    }
    let _ = writeln!(lark, "start: r{}", rules.root);
    for (index, body) in rules.bodies.iter().enumerate() {
        if !writer.recursive[index] {
            continue;
        }
        let mut line = String::new();
        writer.expr(body, &mut line, 0)?;
        let _ = writeln!(lark, "r{index}: {line}");
    }
    for (index, regex) in writer.lexemes.iter().enumerate() {
        // No lexeme may be empty; where one is written that may be, it is optional.
        let _ = writeln!(lark, "T{index}: /{regex}/ & /(?s:.+)/");
    }
    Ok(lark)
}

/// Which rules refer to themselves, directly or through others, or to one that does.
fn recursive(rules: &Rules) -> Vec<bool> {
    let references: Vec<Vec<usize>> = rules.bodies.iter().map(references).collect();
    // A rule is regular once all that it refers to are: what is never reached so recurs.
    let mut waiting: Vec<usize> = references.iter().map(Vec::len).collect();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); references.len()];
    for (user, used) in references.iter().enumerate() {
        used.iter().for_each(|&used| users[used].push(user));
    }
    let mut regular: Vec<usize> = (0..references.len()).filter(|&rule| waiting[rule] == 0).collect();
    let mut recursive = vec![true; references.len()];
    while let Some(rule) = regular.pop() {
        recursive[rule] = false;
        for &user in &users[rule] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                regular.push(user);
            }
        }
    }
    recursive
}

/// Every mention of a rule.
fn references(body: &Expr) -> Vec<usize> {
    let (mut found, mut left) = (Vec::new(), vec![body]);
    while let Some(expr) = left.pop() {
        match expr {
            Expr::Rule(index) => found.push(*index),
            Expr::Either(parts) | Expr::Sequence(parts) => left.extend(parts),
            Expr::Repeat { body, .. } => left.push(body),
            Expr::Literal(_) | Expr::Class(_) | Expr::Any => {}
        }
    }
    found
}

struct Writer<'r> {
    rules: &'r Rules,
    recursive: Vec<bool>,
    lexemes: Vec<String>,
    lexeme_of: HashMap<String, usize>,
    bytes: usize,
}

impl Writer<'_> {
    fn is_regular(&self, expr: &Expr) -> bool {
        references(expr).iter().all(|&rule| !self.recursive[rule])
    }

    /// An expression that mentions recursive rules.
    fn expr(&mut self, expr: &Expr, out: &mut String, depth: usize) -> Result<(), GrammarError> {
        check_depth(depth)?;
        match expr {
            Expr::Rule(index) if self.recursive[*index] => {
                let _ = write!(out, "r{index}");
            }
            Expr::Either(branches) => {
                for (at, branch) in branches.iter().enumerate() {
                    out.push_str(if at == 0 { "(" } else { " | " });
                    self.expr(branch, out, depth + 1)?;
                }
                out.push(')');
            }
            Expr::Sequence(parts) if !self.is_regular(expr) => self.sequence(parts, out, depth)?,
            Expr::Repeat { body, least, most } if !self.is_regular(body) => {
                out.push('(');
                self.expr(body, out, depth + 1)?;
                out.push(')');
                push_repeat(out, *least, *most);
            }
            regular => self.lexeme(std::slice::from_ref(regular), out)?,
        }
        Ok(())
    }

    /// Runs of regular parts become lexemes.
    fn sequence(&mut self, parts: &[Expr], out: &mut String, depth: usize) -> Result<(), GrammarError> {
        let mut left = parts;
        while !left.is_empty() {
            let run = left.iter().take_while(|part| self.is_regular(part)).count();
            if run > 0 {
                self.lexeme(&left[..run], out)?;
            } else {
                self.expr(&left[0], out, depth + 1)?;
            }
            out.push(' ');
            left = &left[run.max(1)..];
        }
        Ok(())
    }

    fn lexeme(&mut self, parts: &[Expr], out: &mut String) -> Result<(), GrammarError> {
        let mut regex = String::new();
        for part in parts {
            self.regex(part, &mut regex, 0)?;
        }
        if regex.is_empty() {
            out.push_str("\"\"");
            return Ok(());
        }
        let next = self.lexemes.len();
        let index = *self.lexeme_of.entry(regex.clone()).or_insert(next);
        if index == next {
            self.lexemes.push(regex);
        }
        let _ = match parts.iter().all(|part| self.may_be_empty(part, 0)) {
            true => write!(out, "(T{index})?"),
            false => write!(out, "T{index}"),
        };
        Ok(())
    }

    /// An expression without recursive rules, as a regular expression; the rules that it mentions are written into it.
    fn regex(&mut self, expr: &Expr, out: &mut String, depth: usize) -> Result<(), GrammarError> {
        check_depth(depth)?;
        let before = out.len();
        match expr {
            Expr::Literal(text) => text.chars().for_each(|character| push_literal(out, character)),
            Expr::Class(class) => out.push_str(class),
            Expr::Any => out.push_str("(?s:.)"),
            Expr::Rule(index) => {
                let rules = self.rules;
                out.push_str("(?:");
                self.regex(&rules.bodies[*index], out, depth + 1)?;
                out.push(')');
            }
            Expr::Sequence(parts) => {
                for part in parts {
                    self.regex(part, out, depth + 1)?;
                }
            }
            Expr::Either(branches) => {
                for (at, branch) in branches.iter().enumerate() {
                    out.push_str(if at == 0 { "(?:" } else { "|" });
                    self.regex(branch, out, depth + 1)?;
                }
                out.push(')');
            }
            Expr::Repeat { body, least, most } => {
                out.push_str("(?:");
                self.regex(body, out, depth + 1)?;
                out.push(')');
                push_repeat(out, *least, *most);
            }
        }
        self.bytes += if depth == 0 { out.len() - before } else { 0 };
        match self.bytes.max(out.len()) > MAX_BYTES {
            true => Err(GrammarError::TooLong { bytes: self.bytes.max(out.len()), limit: MAX_BYTES }),
            false => Ok(()),
        }
    }

    /// Whether a regular expression's text may be empty.
    fn may_be_empty(&self, expr: &Expr, depth: usize) -> bool {
        match expr {
            Expr::Literal(text) => text.is_empty(),
            Expr::Class(_) | Expr::Any => false,
            // `regex` has refused what is deeper.
            Expr::Rule(index) => depth <= MAX_DEPTH && self.may_be_empty(&self.rules.bodies[*index], depth + 1),
            Expr::Sequence(parts) => parts.iter().all(|part| self.may_be_empty(part, depth + 1)),
            Expr::Either(branches) => branches.iter().any(|branch| self.may_be_empty(branch, depth + 1)),
            Expr::Repeat { body, least, .. } => *least == 0 || self.may_be_empty(body, depth + 1),
        }
    }
}

fn check_depth(depth: usize) -> Result<(), GrammarError> {
    match depth > MAX_DEPTH {
        true => Err(GrammarError::Refused { reason: format!("rules are nested more than {MAX_DEPTH} deep") }),
        false => Ok(()),
    }
}

fn push_repeat(out: &mut String, least: u32, most: Option<u32>) {
    let _ = match (least, most) {
        (0, None) => write!(out, "*"),
        (1, None) => write!(out, "+"),
        (0, Some(1)) => write!(out, "?"),
        (least, None) => write!(out, "{{{least},}}"),
        (least, Some(most)) => write!(out, "{{{least},{most}}}"),
    };
}

pub(super) fn push_literal(out: &mut String, character: char) {
    if character.is_control() {
        let _ = write!(out, "\\x{{{:x}}}", u32::from(character));
    } else {
        // A backslash gives some other characters a meaning (`\<` is the start of a word).
        if "\\.+*?()|[]{}^$#&-~/".contains(character) {
            out.push('\\');
        }
        out.push(character);
    }
}
