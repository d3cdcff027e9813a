//! The OpenAI-compatible HTTP server: authentication, validation, shapes, streaming.
