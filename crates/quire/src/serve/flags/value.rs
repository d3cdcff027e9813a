//! The form of a flag's values, and how a text becomes a value: by the parsers of the processes that get it.

use std::error::Error;

use clap::{
    Arg, ArgAction, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use service_kit::values::number_of;

use super::Flag;

/// The form of a flag's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One text.
    Text,
    /// No value; `--no-…` is its opposite. Passed on as `--name` or not at all.
    Switch,
    /// The same, passed on as `--name=true` or `--name=false`.
    Toggle,
    /// A JSON value; members can be given one by one as `--name.member value`.
    Json,
    /// One or more texts.
    List,
}

/// A checked value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Of a switch.
    Bool(bool),
    /// Of a list.
    Many(Vec<String>),
    /// Of everything else, in the form that processes parse.
    Text(String),
}

impl Shape {
    /// The form that a flag's description comes to. A value named JSON or SIZE is that.
    pub(super) fn of(arg: &Arg) -> Self {
        let values = arg.get_possible_values();
        let is_bool = ["true", "false"].iter().all(|word| values.iter().any(|value| value.get_name() == *word));
        match arg.get_action() {
            ArgAction::SetTrue => Self::Switch,
            ArgAction::Append => Self::List,
            _ if is_bool => Self::Toggle,
            _ if is_named(arg, "JSON") => Self::Json,
            _ => Self::Text,
        }
    }

    pub(super) fn is_bool(self) -> bool {
        matches!(self, Self::Switch | Self::Toggle)
    }
}

fn is_named(arg: &Arg, name: &str) -> bool {
    arg.get_value_names().is_some_and(|names| names.iter().any(|own| own == name))
}

impl Flag {
    /// Checks one text with the parsers of all processes that get it.
    pub(super) fn check(&self, text: &str) -> Result<Value, String> {
        if self.shape.is_bool() {
            return boolean(text).map(Value::Bool);
        }
        for command in &self.checks {
            self.check_with(command, text)?;
        }
        Ok(match self.shape {
            Shape::List => Value::Many(vec![text.to_owned()]),
            // Without its unit, so that it can be compared.
            _ if is_named(&self.arg, "SIZE") => Value::Text(number_of(text).map_or(text.to_owned(), |n| n.to_string())),
            _ => Value::Text(text.to_owned()),
        })
    }

    fn check_with(&self, command: &Command, text: &str) -> Result<(), String> {
        let line = ["process".to_owned(), format!("--{}={text}", self.name)];
        let Err(error) = command.clone().try_get_matches_from(line) else { return Ok(()) };
        let of_this_flag = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::String(arg)) => arg.starts_with(&format!("--{}", self.name)),
            _ => false,
        };
        match error.kind() {
            ErrorKind::InvalidValue if of_this_flag => Err(self.refusal()),
            ErrorKind::ValueValidation if of_this_flag => {
                Err(error.source().map_or_else(|| error.to_string(), ToString::to_string))
            }
            // Of other flags, which this line does not give.
            _ => Ok(()),
        }
    }

    fn refusal(&self) -> String {
        match self.choices() {
            words if words.is_empty() => "must not be empty".to_owned(),
            words => format!("must be one of: {}", words.join(", ")),
        }
    }

    /// The words that it takes, if it takes but certain ones.
    pub(super) fn choices(&self) -> Vec<String> {
        if self.shape.is_bool() {
            return Vec::new();
        }
        let values = self.arg.get_possible_values();
        values.iter().flat_map(|value| value.get_name_and_aliases()).map(str::to_owned).collect()
    }
}

fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}
