//! Readers of single calls.
//!
//! A reader takes a call character by character. Parts of the arguments are returned while they
//! are written; forms that are no JSON are converted on the way. Nothing is returned before the
//! call is certain: the tool is offered, and its arguments have begun.
//!
//! | file | reads |
//! |---|---|
//! | `body.rs` | what stands between a call's marks: one of the forms below, or a list of them |
//! | `object.rs` | `{"name": …, "arguments": …}` |
//! | `quoted.rs` | arguments that are a string of JSON |
//! | `named.rs` | `name[ARGS]{…}`, `name(key=value)`, `call:name{key:value}` |
//! | `loose.rs` | arguments that are no JSON, as in Python and Gemma |
//! | `xml.rs` | `<function=name><parameter=key>value</parameter></function>` |
//! | `json.rs` | follows JSON from character to character |
//!
//! `reader.rs` has what all of them share.

mod body;
mod json;
mod loose;
mod named;
mod object;
mod quoted;
mod reader;
mod xml;

pub(super) use body::MarkedReader;
pub(super) use json::ArgumentsReader;
pub(super) use reader::{Calls, Progress};
