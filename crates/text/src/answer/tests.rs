//! Tests of the parser and of the grammar.
