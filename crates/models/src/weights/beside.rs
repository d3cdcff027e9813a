//! Files of weights that lie beside a model's own, as those of sentence-transformers' modules do.

use std::borrow::Cow;

use super::OpenFiles;
use super::files::{Files, Tensor};
use crate::error::LoadError;

/// A model's files, and others whose tensors are called `file/name`.
pub(super) struct FilesBeside {
    pub(super) model: OpenFiles,
    /// By their paths, relative to the model's folder.
    pub(super) others: Vec<(String, OpenFiles)>,
}

impl FilesBeside {
    /// The file beside the model's own that a name is in, and what the file calls it.
    fn other<'n>(&self, name: &'n str) -> Option<(&dyn Files, &'n str)> {
        self.others.iter().find_map(|(path, files)| Some((&**files, name.strip_prefix(path)?.strip_prefix('/')?)))
    }
}

impl Files for FilesBeside {
    fn find<'a>(&'a self, name: &str) -> Option<Tensor<'a>> {
        match self.other(name) {
            Some((files, inside)) => files.find(inside).map(|tensor| Tensor { name: name.to_owned(), ..tensor }),
            None => self.model.find(name),
        }
    }

    fn names(&self) -> Vec<&str> {
        let others = self.others.iter().flat_map(|(_, files)| files.names());
        self.model.names().into_iter().chain(others).collect()
    }

    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>, LoadError> {
        match self.other(name) {
            Some((files, inside)) => files.bytes(inside),
            None => self.model.bytes(name),
        }
    }
}
