//! Choosing the next token: one file per rule, one order of application.
