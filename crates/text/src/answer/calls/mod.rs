//! Readers of single calls.
