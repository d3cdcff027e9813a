//! Which adapters are downloaded now, and which wait: one download an id, however many ask, and a few at a time.

use std::collections::VecDeque;

/// Downloads, running and to come.
#[derive(Debug)]
pub(crate) struct Downloads {
    most: usize,
    running: Vec<Download>,
    waiting: VecDeque<Download>,
}

#[derive(Debug)]
struct Download {
    id: String,
    /// Who asked for it.
    identities: Vec<String>,
}

impl Downloads {
    /// None; later at most `most` at a time.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, running: Vec::new(), waiting: VecDeque::new() }
    }

    /// An identity needs what lies under an id.
    pub(crate) fn ask(&mut self, identity: &str, id: &str) {
        let identity = identity.to_owned();
        match self.running.iter_mut().chain(&mut self.waiting).find(|download| download.id == id) {
            Some(download) => download.identities.push(identity),
            None => self.waiting.push_back(Download { id: id.to_owned(), identities: vec![identity] }),
        }
    }

    /// The id of the next download to begin, in the order of asking, as long as there is room.
    pub(crate) fn next(&mut self) -> Option<String> {
        if self.running.len() >= self.most {
            return None;
        }
        let next = self.waiting.pop_front()?;
        let id = next.id.clone();
        self.running.push(next);
        Some(id)
    }

    /// A download is over; who asked for it.
    pub(crate) fn done(&mut self, id: &str) -> Vec<String> {
        let at = self.running.iter().position(|download| download.id == id);
        at.map_or_else(Vec::new, |at| self.running.swap_remove(at).identities)
    }

    /// Leaves out what waits and is no longer wanted; who had asked for it.
    pub(crate) fn drop_unwanted(&mut self, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let mut dropped = Vec::new();
        for download in &mut self.waiting {
            dropped.extend(download.identities.extract_if(.., |identity| !is_wanted(identity)));
        }
        self.waiting.retain(|download| !download.identities.is_empty());
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(downloads: &mut Downloads) -> Vec<String> {
        std::iter::from_fn(|| downloads.next()).collect()
    }

    #[test]
    fn an_id_is_downloaded_once_for_all_who_ask() {
        let mut downloads = Downloads::new(2);
        downloads.ask("a@1", "owner/a");
        downloads.ask("b@2", "owner/a");
        assert_eq!(begun(&mut downloads), ["owner/a"]);
        downloads.ask("c@3", "owner/a");
        assert!(begun(&mut downloads).is_empty(), "it runs");
        assert_eq!(downloads.done("owner/a"), ["a@1", "b@2", "c@3"]);
        assert!(downloads.done("owner/a").is_empty());
        downloads.ask("d@4", "owner/a");
        assert_eq!(begun(&mut downloads), ["owner/a"], "it is asked for again later");
    }

    #[test]
    fn a_few_run_at_a_time_in_the_order_of_asking() {
        let mut downloads = Downloads::new(2);
        for id in ["a", "b", "c", "d"] {
            downloads.ask(id, id);
        }
        assert_eq!(begun(&mut downloads), ["a", "b"]);
        assert_eq!(downloads.done("b"), ["b"]);
        assert_eq!(begun(&mut downloads), ["c"]);
        downloads.done("a");
        downloads.done("c");
        assert_eq!(begun(&mut downloads), ["d"]);
    }

    #[test]
    fn downloads_without_clients_do_not_begin() {
        let mut downloads = Downloads::new(1);
        for (identity, id) in [("a@1", "a"), ("b@2", "b"), ("c@3", "c"), ("b@4", "b")] {
            downloads.ask(identity, id);
        }
        assert_eq!(begun(&mut downloads), ["a"]);
        let gone = ["a@1", "b@2", "c@3"];
        assert_eq!(downloads.drop_unwanted(|identity| !gone.contains(&identity)), ["b@2", "c@3"]);
        assert_eq!(downloads.done("a"), ["a@1"], "what runs goes on");
        assert_eq!(begun(&mut downloads), ["b"]);
        assert_eq!(downloads.done("b"), ["b@4"]);
        assert!(begun(&mut downloads).is_empty());
    }
}
