//! Finds marks in text that arrives in pieces.
