//! Threads that a start has beside its own.

use std::io;
use std::thread::{Builder, JoinHandle};

/// A thread that is waited for where this is dropped: no process may end while CUDA's libraries start.
#[derive(Debug)]
pub struct Joined(Option<JoinHandle<()>>);

impl Joined {
    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Builder::new().name(name.to_owned()).spawn(run).map(Some).map(Self)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // It leaves nothing half done: who needs what it was to bring asks for it again.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn whoever_drops_it_waits_for_its_end() {
        let (sender, ended) = channel();
        drop(Joined::spawn("test", move || sender.send(()).expect("a listener")).expect("a thread"));
        assert_eq!(ended.try_recv(), Ok(()));
    }
}
