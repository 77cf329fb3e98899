//! The schemas in a grammar of an answer.
