//! Chat templates and encoding, in a process of their own.
