//! Links and calls between hosts: the connection, and who gets one.

pub(crate) mod channel;
pub(crate) mod guard;
pub(crate) mod socket;
pub(crate) mod tls;
pub(crate) mod token;
