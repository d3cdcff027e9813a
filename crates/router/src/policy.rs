//! The policies, by their names.

use std::str::FromStr;

/// How an engine is chosen for a request that names neither a rank nor a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Where the fewest tokens are to be computed before the request's first one: those that wait there, and those of
    /// the prompt that the engine's prefix cache does not hold.
    #[default]
    Prefix,
    /// The same without a look at prefix caches.
    LeastLoaded,
    /// One engine after the other.
    RoundRobin,
}

impl Policy {
    /// All of them, by the names that flags have.
    pub const ALL: [(&'static str, Self); 3] =
        [("prefix", Self::Prefix), ("least-loaded", Self::LeastLoaded), ("round-robin", Self::RoundRobin)];
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, policy)| *policy).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!("expected one of {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_have_names() {
        assert_eq!("prefix".parse(), Ok(Policy::Prefix));
        assert_eq!("round-robin".parse(), Ok(Policy::RoundRobin));
        assert!("random".parse::<Policy>().unwrap_err().contains("least-loaded"));
    }
}
