//! A metadata value.

/// A metadata value; numbers of all widths in the widest type of their kind.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned.
    Uint(u64),
    /// Signed.
    Int(i64),
    /// Floating point.
    Float(f64),
    /// Truth value.
    Bool(bool),
    /// Text; bytes that are no UTF-8 are replaced by U+FFFD.
    Text(String),
    /// Values of one type.
    List(Vec<Value>),
}

impl Value {
    /// The text.
    pub fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// The whole number of at least 0.
    pub fn as_whole(&self) -> Option<u64> {
        match self {
            Self::Uint(n) => Some(*n),
            Self::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// The number.
    pub fn as_number(&self) -> Option<f64> {
        match self {
            Self::Uint(n) => Some(*n as f64),
            Self::Int(n) => Some(*n as f64),
            Self::Float(x) => Some(*x),
            _ => None,
        }
    }

    /// The truth value.
    pub fn as_flag(&self) -> Option<bool> {
        if let Self::Bool(flag) = self { Some(*flag) } else { None }
    }

    /// The values of a list.
    pub fn as_list(&self) -> Option<&[Value]> {
        if let Self::List(values) = self { Some(values) } else { None }
    }

    pub(super) fn describe(&self) -> &'static str {
        match self {
            Self::Uint(_) | Self::Int(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Bool(_) => "true or false",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
        }
    }
}
