//! Ratchets: how often the code still breaks a rule that is younger than it. A limit only ever goes down.

/// How many violations of one rule are left, and how many may be.
pub(super) struct Ratchet {
    /// What is counted.
    pub what: &'static str,
    /// Where each one is.
    pub found: Vec<String>,
    /// The most that pass.
    pub limit: usize,
    /// Where the limit is written.
    pub recorded_in: &'static str,
}

impl Ratchet {
    /// One violation if there are more than the limit, with the last few places; a note if the limit can be lowered.
    pub(super) fn check(self) -> Vec<String> {
        let Self { what, found, limit, recorded_in } = self;
        if found.len() < limit {
            println!("tidy: {what}: {} left; lower the limit of {limit} in {recorded_in}", found.len());
        }
        if found.len() <= limit {
            return Vec::new();
        }
        let shown = found.iter().take(MOST_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        vec![format!("{what}: {}, and {limit} is the most that passes ({recorded_in}): {shown}", found.len())]
    }
}

/// Places in one message.
const MOST_SHOWN: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn violations(found: usize, limit: usize) -> usize {
        let found = (0..found).map(|n| n.to_string()).collect();
        Ratchet { what: "things", found, limit, recorded_in: "here" }.check().len()
    }

    #[test]
    fn only_more_than_the_limit_fails() {
        assert_eq!(violations(0, 0), 0);
        assert_eq!(violations(2, 3), 0);
        assert_eq!(violations(3, 3), 0);
        assert_eq!(violations(4, 3), 1);
    }
}
