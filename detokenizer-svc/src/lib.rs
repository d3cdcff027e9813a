//! Incremental decoding, stop strings, log-probability texts: tokens become the stream of text.
