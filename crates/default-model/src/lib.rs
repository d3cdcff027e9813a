//! Wren, the small chat model that ships inside Quire.
