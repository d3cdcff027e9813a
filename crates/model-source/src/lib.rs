//! Finds a model: a folder, the Hugging Face cache, a download, or the model that ships with Quire.
