//! A client of an OpenAI-compatible server.

mod answer;
mod client;
mod error;
mod events;
#[cfg(test)]
mod tests;
mod url;
mod wire;

pub(crate) use answer::Answer;
pub(crate) use client::{AskError, Client, Settings};
pub(crate) use error::ServerError;
pub(crate) use wire::Question;
