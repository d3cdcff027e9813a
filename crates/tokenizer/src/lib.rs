//! Encoding and incremental decoding of text.
