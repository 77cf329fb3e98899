//! Helpers for tests of a whole server.

#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) mod client;
pub(crate) mod folder;
pub(crate) mod responses;

use clap::Parser;
use motet_server::app::App;
use motet_server::arguments::Arguments;
use motet_server::keys::Keys;
use motet_server::start;

/// A server on the oracle with these arguments, and with keys unless there are none.
pub(crate) async fn app(arguments: &str, keys: &str) -> App {
    let words = ["server", "--oracle"].into_iter();
    let arguments = Arguments::parse_from(words.chain(arguments.split_whitespace()));
    let engine = start::engine(&arguments).await.expect("the oracle starts");
    let keys = match keys {
        "" => Keys::default(),
        keys => Keys::parse(keys).expect("keys"),
    };
    App::new(engine, arguments.model_names(), keys, arguments.access).store(arguments.store)
}
