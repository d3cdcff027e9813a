//! Reads flags from one source: their spellings, and whether their values fit.

use model_spec::nearest;
use serde_json::Value as Json;

use super::{
    Flag,
    error::{FlagError, Source},
    find,
    foreign::{FOREIGN, Foreign, Takes},
    settings::Settings,
    table::GROUPS,
    value::{Kind, Value},
};

/// Reads flags from one source.
pub(super) struct Reader {
    at: Source,
    settings: Settings,
    /// Members of JSON flags: flag, path, value.
    members: Vec<(&'static Flag, String, Json)>,
}

/// A flag by any of its spellings.
enum Known {
    Ours { flag: &'static Flag, negated: bool, member: Option<String> },
    Foreign { flag: &'static Foreign, negated: bool },
}

impl Reader {
    pub(super) fn new(at: Source) -> Self {
        Self { at, settings: Settings::default(), members: Vec::new() }
    }

    /// Takes the words of a command line.
    pub(super) fn command_line(&mut self, words: &[String]) -> Result<(), FlagError> {
        let mut words = words.iter().map(String::as_str).peekable();
        while let Some(word) = words.next() {
            if !is_flag(word) {
                self.model(word)?;
                continue;
            }
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let known = self.known(name)?;
            let takes_value = match &known {
                Known::Ours { flag, .. } => !flag.kind.is_bool(),
                Known::Foreign { flag, .. } => !matches!(flag.takes, Takes::Off | Takes::Either),
            };
            let mut value = value;
            if takes_value && value.is_none() {
                value = words.next_if(|word| !is_flag(word) || word.parse::<f64>().is_ok());
            }
            let list = matches!(&known, Known::Ours { flag, .. } if flag.kind.is_list());
            self.take(&known, name, value)?;
            while let Some(more) = words.next_if(|word| list && !is_flag(word)) {
                self.take(&known, name, Some(more))?;
            }
        }
        Ok(())
    }

    /// The positional argument.
    fn model(&mut self, word: &str) -> Result<(), FlagError> {
        if let Some(model) = self.settings.text("model") {
            return Err(FlagError::Extra { word: word.to_owned(), model: model.to_owned() });
        }
        self.settings.values.insert("model", Value::Text(word.to_owned()));
        Ok(())
    }

    /// Takes a flag from a file, where `value` is its text.
    pub(super) fn named(&mut self, name: &str, value: Option<&str>) -> Result<(), FlagError> {
        let known = self.known(&format!("--{name}"))?;
        self.take(&known, &format!("--{name}"), value)
    }

    fn take(&mut self, known: &Known, spelled: &str, value: Option<&str>) -> Result<(), FlagError> {
        match known {
            Known::Foreign { flag, negated } => self.check_foreign(flag, *negated, spelled, value),
            Known::Ours { flag, negated, member: None } => self.set(flag, *negated, value),
            Known::Ours { flag, member: Some(member), .. } => {
                let value = value.ok_or_else(|| self.missing(spelled))?;
                // What is no JSON is a text.
                let value = serde_json::from_str(value).unwrap_or_else(|_| Json::from(value));
                self.members.push((flag, member.clone(), value));
                Ok(())
            }
        }
    }

    fn set(&mut self, flag: &'static Flag, negated: bool, value: Option<&str>) -> Result<(), FlagError> {
        let value = match (flag.kind.is_bool(), value) {
            (true, None) => "true",
            (false, None) => return Err(self.missing(flag.name)),
            (_, Some(value)) => value,
        };
        let invalid =
            |problem| FlagError::Value { at: self.at.clone(), name: flag.name, value: value.to_owned(), problem };
        let checked = match flag.kind.check(value).map_err(invalid)? {
            Value::Bool(on) => Value::Bool(on != negated),
            checked => checked,
        };
        match (self.settings.values.get_mut(flag.name), checked) {
            (Some(Value::Many(texts)), Value::Many(more)) => texts.extend(more),
            (_, checked) => drop(self.settings.values.insert(flag.name, checked)),
        }
        Ok(())
    }

    fn check_foreign(
        &self,
        flag: &Foreign,
        negated: bool,
        spelled: &str,
        value: Option<&str>,
    ) -> Result<(), FlagError> {
        let off = || negated != value.is_some_and(|value| ["false", "False", "0"].contains(&value));
        let (fine, remedy) = match flag.takes {
            Takes::Either | Takes::Any => (true, String::new()),
            Takes::Off => (off(), String::new()),
            Takes::Only(fine) => {
                let value = value.ok_or_else(|| self.missing(spelled))?;
                let remedy = if fine.is_empty() { String::new() } else { format!(" (only {})", fine.join(" or ")) };
                (fine.contains(&value), remedy)
            }
        };
        if fine {
            return Ok(());
        }
        let given = [spelled, value.unwrap_or_default()].join(" ").trim_end().to_owned();
        Err(FlagError::Unsupported { at: self.at.clone(), given, remedy })
    }

    fn missing(&self, name: &str) -> FlagError {
        FlagError::Missing { at: self.at.clone(), name: name.trim_start_matches('-').to_owned() }
    }

    /// Finds the flag of a spelling: `--max_model_len`, `--no-enable-lora`, `-tp`, `--json-flag.member`.
    fn known(&self, spelled: &str) -> Result<Known, FlagError> {
        if !spelled.starts_with("--") {
            let all = GROUPS.iter().flat_map(|group| group.flags);
            if let Some(flag) = all.into_iter().find(|flag| flag.aliases.contains(&spelled)) {
                return Ok(Known::Ours { flag, negated: false, member: None });
            }
            if let Some(flag) = FOREIGN.iter().find(|flag| flag.aliases.contains(&spelled)) {
                return Ok(Known::Foreign { flag, negated: false });
            }
        }
        let name = spelled.trim_start_matches('-').replace('_', "-");
        if let Some(known) = by_name(&name, false) {
            return Ok(known);
        }
        if let Some(known) = name.strip_prefix("no-").and_then(|name| by_name(name, true)) {
            return Ok(known);
        }
        let raw = spelled.trim_start_matches('-');
        if let Some((name, member)) = raw.split_once('.') {
            let name = name.replace('_', "-");
            if let Some(flag) = find(&name).filter(|flag| flag.kind == Kind::Json) {
                return Ok(Known::Ours { flag, negated: false, member: Some(member.to_owned()) });
            }
            if FOREIGN.iter().any(|flag| flag.name == name) {
                let (at, given) = (self.at.clone(), spelled.to_owned());
                return Err(FlagError::Unsupported { at, given, remedy: String::new() });
            }
        }
        let names = GROUPS.iter().flat_map(|group| group.flags).map(|flag| flag.name);
        let nearest = nearest(&name, names.chain(FOREIGN.iter().map(|flag| flag.name)));
        Err(FlagError::Unknown { at: self.at.clone(), name, nearest })
    }

    /// Puts members of JSON flags into their objects.
    pub(super) fn finish(mut self) -> Result<Settings, FlagError> {
        for (flag, path, value) in std::mem::take(&mut self.members) {
            let text = self.settings.text(flag.name).unwrap_or("{}");
            let mut json: Json = serde_json::from_str(text).unwrap_or_default();
            if insert(&mut json, &path, value).is_none() {
                let (at, problem) = (self.at.clone(), format!("`{path}` does not lie in an object"));
                return Err(FlagError::Value { at, name: flag.name, value: json.to_string(), problem });
            }
            self.settings.values.insert(flag.name, Value::Text(json.to_string()));
        }
        Ok(self.settings)
    }
}

/// Whether a word of a command line is a flag rather than a value. Negative numbers are values.
fn is_flag(word: &str) -> bool {
    word.starts_with('-') && word.len() > 1 && word.parse::<f64>().is_err()
}

fn by_name(name: &str, negated: bool) -> Option<Known> {
    let ours = find(name).filter(|flag| !negated || flag.kind.is_bool());
    if let Some(flag) = ours {
        return Some(Known::Ours { flag, negated, member: None });
    }
    let switch = |flag: &&Foreign| matches!(flag.takes, Takes::Off | Takes::Either);
    let foreign = FOREIGN.iter().find(|flag| flag.name == name).filter(|flag| !negated || switch(flag));
    foreign.map(|flag| Known::Foreign { flag, negated })
}

/// Sets `a.b.c` inside an object; `None` when something on the way is no object.
fn insert(json: &mut Json, path: &str, value: Json) -> Option<()> {
    let (mut at, mut names) = (json, path.split('.').peekable());
    while let Some(name) = names.next() {
        let object = at.as_object_mut()?;
        if names.peek().is_none() {
            object.insert(name.to_owned(), value);
            return Some(());
        }
        at = object.entry(name).or_insert_with(|| Json::Object(serde_json::Map::new()));
    }
    None
}
