//! Function signatures: a parameter that is a tuple wants to be a struct with names.

use super::sources::Source;

pub(super) fn tuple_parameters(files: &[Source]) -> Vec<String> {
    let production = files.iter().filter(|file| !is_test(&file.path.to_string_lossy()));
    let found = production.flat_map(|file| {
        let code = file.text.split("#[cfg(test)]").next().unwrap_or_default();
        let with_tuple = functions(code).filter(|function| parameters(function.list).any(is_tuple));
        let violation = |function: Function<'_>| {
            format!("{}:{}: a tuple among the parameters; make it a struct", file.path.display(), function.line)
        };
        with_tuple.map(violation).collect::<Vec<_>>()
    });
    found.collect()
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || ["/tests/", "/benches/", "/examples/"].iter().any(|folder| path.contains(folder))
}

/// A function's parameters as written.
struct Function<'a> {
    /// The line of its `fn`, from 1.
    line: usize,
    /// What is between its parentheses.
    list: &'a str,
}

/// All functions of a file.
fn functions(code: &str) -> impl Iterator<Item = Function<'_>> {
    let starts = code.match_indices("fn ").filter(|(at, _)| starts_a_word(code, *at));
    starts.filter_map(|(at, _)| {
        let line_start = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        let is_comment = code[line_start..at].contains("//");
        let open = at + parenthesis(&code[at..])?;
        let list = enclosed(&code[open..])?;
        (!is_comment).then(|| Function { line: code[..at].lines().count().max(1), list })
    })
}

fn starts_a_word(code: &str, at: usize) -> bool {
    !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Where the list of parameters begins: the first parenthesis outside `<…>`.
fn parenthesis(function: &str) -> Option<usize> {
    let mut depth = 0;
    let mut last = ' ';
    for (at, c) in function.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if last != '-' => depth -= 1,
            '(' if depth == 0 => return Some(at),
            '{' | ';' => return None,
            _ => {}
        }
        last = c;
    }
    None
}

/// What is between this text's first parenthesis and the one that closes it.
fn enclosed(text: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => return Some(&text[1..at]),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// A list cut at its outermost commas.
fn parameters(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let mut last = ' ';
    list.split(move |c: char| {
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '>' if last != '-' => depth -= 1,
            _ => {}
        }
        last = c;
        c == ',' && depth == 0
    })
}

/// Whether a parameter is a tuple of two or more, or borrows one. A function's or a slice's tuples are its own matter.
fn is_tuple(parameter: &str) -> bool {
    let Some(kind) = kind(parameter) else { return false };
    let kind = kind.trim().trim_start_matches('&').trim_start_matches("mut ").trim();
    kind.starts_with('(') && kind != "()" && !kind.starts_with("(dyn ")
}

/// The type of a parameter: what follows the first colon outside its pattern's brackets.
fn kind(parameter: &str) -> Option<&str> {
    let mut depth = 0;
    for (at, c) in parameter.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            ':' if depth == 0 => return Some(&parameter[at + 1..]),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(code: &str) -> usize {
        functions(code).filter(|function| parameters(function.list).any(is_tuple)).count()
    }

    #[test]
    fn tuples_are_found_wherever_they_stand() {
        for code in [
            "fn f(pair: (u32, u32)) {}",
            "pub fn f<F: Fn(u32) -> u32>(&self, f: F, (a, b): (u32, Vec<u8>)) -> u32 {}",
            "fn f(\n    pair: &mut (u32, u32),\n) {}",
            "fn f(x: u32, (a, b): &(A, B)) {}",
        ] {
            assert_eq!(count(code), 1, "{code}");
        }
    }

    #[test]
    fn tuples_inside_other_types_are_fine() {
        for code in [
            "fn f(pairs: &[(u32, u32)]) -> (u32, u32) {}",
            "fn f(done: (), f: impl Fn((u32, u32)) -> u32) {}",
            "// fn f(pair: (u32, u32))",
            "let often = 1;",
            "fn f(x: u32, y: Map<K, (A, B)>) {}",
        ] {
            assert_eq!(count(code), 0, "{code}");
        }
    }
}
