//! Chat templates as Hugging Face renders them.
