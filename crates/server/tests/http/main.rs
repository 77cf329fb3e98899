//! The server's routes on the oracle. One program: linking is most of what a test program costs.
//! Tests that need a process of their own are beside this folder.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod api;
mod call_ends;
mod changed_files;
mod client_errors;
mod continued;
mod description;
mod forced_calls;
mod messages;
mod model_names;
mod page;
mod responses;
mod responses_background;
mod responses_restart;
mod responses_store;
mod results;
mod scores;
mod speculation;
mod tools;
