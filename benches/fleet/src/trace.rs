//! The trace's requests, and their prompts as tokens.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use motet_protocol::TokenId;
use motet_traces::{Answer, BLOCK_TOKENS, Prompt};

use crate::Result;

/// The first id of outputs: those of prompts are smaller.
const FIRST_OUTPUT: TokenId = 1 << 31;

/// Requests in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) requests: Vec<Request>,
}

/// A prompt in blocks, and the length of the answer.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) at: Duration,
    /// Consecutive numbers of the distinct blocks.
    pub(crate) blocks: Vec<TokenId>,
    pub(crate) prompt_tokens: usize,
    pub(crate) output_tokens: usize,
}

/// Makes the tokens of outputs. No two are alike, and no prompt has them: the trace does not say
/// which blocks of a prompt are an earlier answer.
#[derive(Debug, Default)]
pub(crate) struct Outputs(TokenId);

impl Trace {
    /// Reads a trace of blocks.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let trace = motet_traces::read(path)?;
        let mut numbers = HashMap::new();
        let mut requests = Vec::with_capacity(trace.requests.len());
        for request in trace.requests {
            let (Prompt::Blocks { ids, tokens }, Answer::Length(output_tokens)) =
                (request.prompt, request.answer)
            else {
                return Err(format!(
                    "{} is no trace of blocks with the lengths of answers",
                    path.display()
                )
                .into());
            };
            let mut number = |id: u64| {
                let next = numbers.len() as TokenId;
                *numbers.entry(id).or_insert(next)
            };
            requests.push(Request {
                at: request.at,
                prompt_tokens: tokens.min(ids.len() * BLOCK_TOKENS),
                blocks: ids.into_iter().map(&mut number).collect(),
                output_tokens: output_tokens.max(1),
            });
        }
        if numbers.len() * BLOCK_TOKENS > FIRST_OUTPUT as usize {
            return Err(format!("{} has more blocks than there are ids", path.display()).into());
        }
        Ok(Self { requests })
    }

    /// Tokens of all prompts.
    pub(crate) fn prompt_tokens(&self) -> usize {
        self.requests.iter().map(|r| r.prompt_tokens).sum()
    }

    /// Tokens of prompts that an endless cache of the whole fleet would have, if each request were
    /// computed before the next one comes.
    pub(crate) fn bound(&self) -> usize {
        // By the node before it and its number: the node of a block, and the tokens of it so far.
        let mut nodes: HashMap<(usize, TokenId), (usize, usize)> = HashMap::new();
        let mut reused = 0;
        for request in &self.requests {
            let (mut at, mut found, mut is_found) = (0, 0, true);
            for (block, tokens) in request.parts() {
                let next = nodes.len() + 1;
                let node = nodes.entry((at, block)).or_insert((next, 0));
                if is_found {
                    found += tokens.min(node.1);
                    is_found = node.1 == BLOCK_TOKENS;
                }
                node.1 = node.1.max(tokens);
                at = node.0;
            }
            // The last token is computed in any case.
            reused += found.min(request.prompt_tokens - 1);
        }
        reused
    }
}

impl Request {
    /// The prompt's tokens.
    pub(crate) fn prompt(&self) -> Vec<TokenId> {
        let tokens = self.parts().flat_map(|(block, tokens)| {
            let first = block * BLOCK_TOKENS as TokenId;
            first..first + tokens as TokenId
        });
        tokens.collect()
    }

    /// Each block, and the number of its tokens that the prompt has.
    fn parts(&self) -> impl Iterator<Item = (TokenId, usize)> {
        let blocks = self.blocks.iter().enumerate();
        blocks.filter_map(|(at, block)| {
            let left = self.prompt_tokens.saturating_sub(at * BLOCK_TOKENS);
            (left > 0).then_some((*block, left.min(BLOCK_TOKENS)))
        })
    }
}

impl Outputs {
    pub(crate) fn next(&mut self) -> TokenId {
        self.0 += 1;
        FIRST_OUTPUT + self.0
    }
}
