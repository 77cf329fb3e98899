//! Grammars of requests, on an engine that was compiled without feature `grammar`.

use std::sync::Arc;

use super::Engine;
use crate::error::SubmitError;
use crate::request::Request;
use motet_protocol::TokenId;
use motet_protocol::{GrammarLimits, TokenConstraint};

/// The shared parts of grammar compilation: none.
#[derive(Debug)]
pub(super) struct Grammars;

impl Grammars {
    pub(super) fn new(_limits: GrammarLimits, _end_tokens: &[TokenId]) -> Self {
        Self
    }
}

impl Engine {
    pub(super) async fn grammar(
        &self,
        request: &mut Request,
    ) -> Result<Option<Arc<dyn TokenConstraint>>, SubmitError> {
        match &request.grammar {
            None => Ok(None),
            Some(source) => match *source {},
        }
    }
}
