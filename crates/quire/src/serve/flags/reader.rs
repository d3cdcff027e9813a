//! Reads flags from one source: their spellings, and whether their values fit.

use model_spec::nearest;
use serde_json::Value as Json;

use super::{
    FLAGS, Flag,
    error::{FlagError, Source},
    find,
    settings::Settings,
    unsupported::{Takes, UNSUPPORTED, Unsupported},
    value::{Shape, Value},
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
    Unsupported { flag: &'static Unsupported, negated: bool },
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
            let (name, value) =
                word.split_once('=').or_else(|| glued(word)).map_or((word, None), |(name, value)| (name, Some(value)));
            let known = self.known(name)?;
            let takes_value = match &known {
                Known::Ours { flag, .. } => !flag.shape.is_bool(),
                Known::Unsupported { flag, .. } => !flag.takes.is_switch(),
            };
            let mut value = value;
            if takes_value && value.is_none() {
                value = words.next_if(|word| !is_flag(word) || word.parse::<f64>().is_ok());
            }
            let list = matches!(&known, Known::Ours { flag, .. } if flag.shape == Shape::List);
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
        self.settings.set("model", Value::Text(word.to_owned()), &self.at);
        Ok(())
    }

    /// Takes a flag from a file, where `value` is its text.
    pub(super) fn named(&mut self, name: &str, value: Option<&str>) -> Result<(), FlagError> {
        let known = self.known(&format!("--{name}"))?;
        self.take(&known, &format!("--{name}"), value)
    }

    fn take(&mut self, known: &Known, spelled: &str, value: Option<&str>) -> Result<(), FlagError> {
        match known {
            Known::Unsupported { flag, negated } => self.check_unsupported(flag, *negated, spelled, value),
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
        let value = match (flag.shape.is_bool(), value) {
            (true, None) => "true",
            (false, None) => return Err(self.missing(flag.name)),
            (_, Some(value)) => value,
        };
        let invalid =
            |problem| FlagError::Value { at: self.at.clone(), name: flag.name, value: value.to_owned(), problem };
        let checked = match flag.check(value).map_err(invalid)? {
            Value::Bool(on) => Value::Bool(on != negated),
            checked => checked,
        };
        match (self.settings.values.get_mut(flag.name), checked) {
            (Some(Value::Many(texts)), Value::Many(more)) => texts.extend(more),
            (_, checked) => self.settings.set(flag.name, checked, &self.at),
        }
        Ok(())
    }

    fn check_unsupported(
        &mut self,
        flag: &Unsupported,
        negated: bool,
        spelled: &str,
        value: Option<&str>,
    ) -> Result<(), FlagError> {
        let fine = match flag.takes {
            Takes::AnySwitch => true,
            Takes::AnyValue => value.is_some(),
            Takes::Moot(values) => values.contains(&value.ok_or_else(|| self.missing(spelled))?),
            Takes::Off => negated != value.is_some_and(|value| ["false", "False", "0"].contains(&value)),
            Takes::Only(fine) => fine.contains(&value.ok_or_else(|| self.missing(spelled))?),
        };
        match (flag.takes, fine) {
            (Takes::AnyValue, false) => Err(self.missing(spelled)),
            (Takes::AnySwitch | Takes::AnyValue | Takes::Moot(_), true) => {
                let said = format!("{}: {spelled} makes no difference: {}", self.at, flag.note);
                self.settings.without_effect.push(said);
                Ok(())
            }
            (_, true) => Ok(()),
            (_, false) => {
                let given = [spelled, value.unwrap_or_default()].join(" ").trim_end().to_owned();
                Err(self.unsupported(flag, given))
            }
        }
    }

    fn unsupported(&self, flag: &Unsupported, given: String) -> FlagError {
        let fine = if let Takes::Only(fine) | Takes::Moot(fine) = flag.takes { fine } else { &[] };
        FlagError::Unsupported { at: self.at.clone(), given, fine, note: flag.note }
    }

    fn missing(&self, name: &str) -> FlagError {
        FlagError::Missing { at: self.at.clone(), name: name.trim_start_matches('-').to_owned() }
    }

    /// Finds the flag of a spelling: `--max_model_len`, `--no-enable-lora`, `-tp`, `--json-flag.member`.
    fn known(&self, spelled: &str) -> Result<Known, FlagError> {
        if !spelled.starts_with("--") {
            if let Some(flag) = FLAGS.iter().find(|flag| flag.aliases.contains(&spelled)) {
                return Ok(Known::Ours { flag, negated: false, member: None });
            }
            if let Some(flag) = UNSUPPORTED.iter().find(|flag| flag.aliases.contains(&spelled)) {
                return Ok(Known::Unsupported { flag, negated: false });
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
            if let Some(flag) = find(&name).filter(|flag| flag.shape == Shape::Json) {
                return Ok(Known::Ours { flag, negated: false, member: Some(member.to_owned()) });
            }
            let alias = format!("-{name}");
            let is_it = |flag: &&Unsupported| flag.name == name || flag.aliases.contains(&alias.as_str());
            if let Some(flag) = UNSUPPORTED.iter().find(is_it) {
                return Err(self.unsupported(flag, spelled.to_owned()));
            }
        }
        let names = FLAGS.iter().map(|flag| flag.name);
        let nearest = nearest(&name, names.chain(UNSUPPORTED.iter().map(|flag| flag.name)));
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
            self.settings.set(flag.name, Value::Text(json.to_string()), &self.at);
        }
        Ok(self.settings)
    }
}

/// A flag of one letter and the number that is written right behind it: `-O3`.
fn glued(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_at_checked(2)?;
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !name.starts_with("--")).then_some((name, value))
}

/// Whether a word of a command line is a flag rather than a value. Negative numbers are values.
fn is_flag(word: &str) -> bool {
    word.starts_with('-') && word.len() > 1 && word.parse::<f64>().is_err()
}

fn by_name(name: &str, negated: bool) -> Option<Known> {
    let ours = find(name).filter(|flag| !negated || flag.shape.is_bool());
    if let Some(flag) = ours {
        return Some(Known::Ours { flag, negated, member: None });
    }
    let unsupported = UNSUPPORTED.iter().find(|flag| flag.name == name);
    let fitting = unsupported.filter(|flag| !negated || flag.takes.is_switch());
    fitting.map(|flag| Known::Unsupported { flag, negated })
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
