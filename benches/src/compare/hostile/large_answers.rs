//! Small requests that ask for much, by kinds.
//!
//! Each kind is sent by several clients at once. Where a kind names state of the server, that state
//! is stored before. A server may reject any of them: what counts is its memory.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::attack::{Reads, Shot};
use super::victim::Victim;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const EMBEDDINGS: &str = "/v1/embeddings";

/// Requests of one kind.
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Stores the state that the requests name, and returns the requests, which are sent at once.
    pub(super) shots: fn(&Victim, &Sizes) -> Result<Vec<Shot>>,
}

/// All kinds. The last has the requests of all others.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "log probabilities of prompts",
        shots: |_, sizes| Ok(scores(sizes)),
    },
    Kind {
        name: "references to a stored item",
        shots: references,
    },
    Kind {
        name: "continuations of a long conversation",
        shots: continuations,
    },
    Kind {
        name: "n and best_of with log probabilities",
        shots: |_, sizes| Ok(outputs(sizes)),
    },
    Kind {
        name: "unread ends of streams",
        shots: |_, sizes| Ok(unread_ends(sizes)),
    },
    Kind {
        name: "reads of stored responses",
        shots: stored_reads,
    },
    Kind {
        name: "embeddings",
        shots: |_, sizes| Ok(embeddings(sizes)),
    },
    Kind {
        name: "all at once",
        shots: all_kinds,
    },
];

/// The requests of all kinds at once.
pub(super) fn all() -> &'static Kind {
    KINDS.last().expect("there are kinds")
}

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Clients of each kind.
    clients: usize,
    /// Prompts of a request, and the outputs of one.
    lists: usize,
    /// Tokens of each of them.
    list_tokens: usize,
    output_tokens: usize,
    /// Tokens of a stream whose end is not read.
    stream_tokens: usize,
    /// Bytes of a stored item, within the limit of a body.
    item_bytes: usize,
    /// References to it in one body.
    references: usize,
    /// Responses of a stored conversation, each with such an item.
    turns: usize,
    /// Time that a client waits, or stalls.
    timeout: Duration,
}

impl Sizes {
    pub(super) fn new(is_quick: bool) -> Self {
        if is_quick {
            return Self {
                clients: 2,
                lists: 3,
                list_tokens: 40,
                output_tokens: 8,
                stream_tokens: 60,
                item_bytes: 20_000,
                references: 10,
                turns: 2,
                timeout: Duration::from_millis(400),
            };
        }
        Self {
            clients: 8,
            // With three digits and a comma each, nearly 1 MB.
            lists: 64,
            list_tokens: 4_000,
            output_tokens: 400,
            stream_tokens: 7_000,
            item_bytes: 3_900_000,
            references: 400,
            turns: 12,
            timeout: Duration::from_secs(25),
        }
    }

    /// Requests of the same kinds whose answers are small.
    pub(super) fn smallest(full: &Self) -> Self {
        Self {
            clients: full.clients,
            lists: 1,
            list_tokens: 8,
            output_tokens: 2,
            stream_tokens: 4,
            item_bytes: 8,
            references: 1,
            turns: 1,
            timeout: full.timeout.min(Duration::from_secs(2)),
        }
    }

    /// The same request of each client.
    fn posts(&self, path: &'static str, body: &Value, reads: Reads) -> Vec<Shot> {
        let shot = Shot::post(path, body.to_string().into_bytes(), self.timeout);
        vec![Shot { reads, ..shot }; self.clients]
    }

    fn gets(&self, path: &str, reads: Reads) -> Vec<Shot> {
        let shot = Shot {
            method: "GET",
            path: path.to_owned().into(),
            reads,
            ..Shot::post("", [], self.timeout)
        };
        vec![shot; self.clients]
    }
}

fn all_kinds(victim: &Victim, sizes: &Sizes) -> Result<Vec<Shot>> {
    let mut shots = Vec::new();
    let (_, kinds) = KINDS.split_last().expect("there are kinds");
    for kind in kinds {
        shots.extend((kind.shots)(victim, sizes)?);
    }
    Ok(shots)
}

/// Prompts of tokens with all log probabilities: one half of the clients does not read the answer.
fn scores(sizes: &Sizes) -> Vec<Shot> {
    let list = |number: usize| -> Vec<usize> {
        let tokens = 0..sizes.list_tokens;
        tokens.map(|token| 100 + (token + number) % 100).collect()
    };
    let lists: Vec<_> = (0..sizes.lists).map(list).collect();
    let body = json!({
        "prompt": lists, "max_tokens": 0, "echo": true, "logprobs": 20, "prompt_logprobs": 20,
    });
    let mut shots = sizes.posts(COMPLETIONS, &body, Reads::All);
    for shot in shots.iter_mut().step_by(2) {
        shot.reads = Reads::Status;
    }
    shots
}

/// Bodies that name one stored item again and again.
fn references(victim: &Victim, sizes: &Sizes) -> Result<Vec<Shot>> {
    let stored = store(victim, &json!([large_item(sizes), question()]), None)?;
    let mut input = vec![reference(&stored); sizes.references];
    input.push(question());
    let body = json!({"input": input, "max_output_tokens": 1, "store": false});
    Ok(sizes.posts(RESPONSES, &body, Reads::All))
}

/// Requests that continue a conversation that fills most of the store.
fn continuations(victim: &Victim, sizes: &Sizes) -> Result<Vec<Shot>> {
    let mut last = None;
    for _ in 0..sizes.turns {
        let input = json!([large_item(sizes), question()]);
        last = Some(store(victim, &input, last.as_deref())?);
    }
    let body = json!({
        "input": [question()], "previous_response_id": last, "max_output_tokens": 1,
    });
    Ok(sizes.posts(RESPONSES, &body, Reads::All))
}

/// Many outputs with all log probabilities, whole.
fn outputs(sizes: &Sizes) -> Vec<Shot> {
    let chat = json!({
        "messages": [question()], "n": 2 * sizes.lists, "max_tokens": sizes.output_tokens,
        "ignore_eos": true, "logprobs": true, "top_logprobs": 20,
    });
    let text = json!({
        "prompt": "x", "n": sizes.lists, "best_of": 2 * sizes.lists, "logprobs": 20,
        "max_tokens": sizes.output_tokens, "ignore_eos": true,
    });
    let mut shots = sizes.posts(CHAT, &chat, Reads::All);
    shots.extend(sizes.posts(COMPLETIONS, &text, Reads::Status));
    shots
}

/// Streams that are read nearly to their end, where the whole answer comes again.
fn unread_ends(sizes: &Sizes) -> Vec<Shot> {
    const UNREAD_TOKENS: usize = 100;
    let tokens = sizes.stream_tokens;
    // A form keeps the oracle from ending early. Its letters are tokens.
    let schema = json!({"type": "string", "pattern": format!("^[a-z]{{{tokens}}}$")});
    let body = json!({
        "input": [question()], "stream": true, "store": false, "max_output_tokens": tokens + 8,
        "top_logprobs": 20,
        "text": {"format": {"type": "json_schema", "name": "it", "schema": schema}},
    });
    let read = tokens.saturating_sub(UNREAD_TOKENS).max(tokens / 2);
    sizes.posts(RESPONSES, &body, Reads::Logprobs(read))
}

/// Reads of stored responses and of their input, which stop after the status. The input of one is
/// a large item, that of the other names it as often as the store has space for.
fn stored_reads(victim: &Victim, sizes: &Sizes) -> Result<Vec<Shot>> {
    let one = store(victim, &json!([large_item(sizes), question()]), None)?;
    let mut input = vec![reference(&one); sizes.turns];
    input.push(question());
    let many = store(victim, &json!(input), None)?;
    let mut shots = Vec::new();
    for stored in [one, many] {
        let path = format!("{RESPONSES}/{stored}");
        let items = format!("{path}/input_items?limit=100");
        shots.extend(sizes.gets(&path, Reads::Status));
        shots.extend(sizes.gets(&items, Reads::Status));
    }
    Ok(shots)
}

fn embeddings(sizes: &Sizes) -> Vec<Shot> {
    let texts: Vec<_> = (0..2 * sizes.lists)
        .map(|number| format!("{number} {}", "x".repeat(sizes.list_tokens / 2)))
        .collect();
    sizes.posts(EMBEDDINGS, &json!({"input": texts}), Reads::Status)
}

fn question() -> Value {
    json!({"role": "user", "content": "Say anything."})
}

/// An item that takes many bytes and adds few tokens: its summary is not in the prompt.
fn large_item(sizes: &Sizes) -> Value {
    json!({
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "x".repeat(sizes.item_bytes)}],
        "content": [{"type": "reasoning_text", "text": "x"}],
    })
}

/// A reference to the first item of a stored response's input, which is reasoning.
fn reference(stored: &str) -> Value {
    let item = format!("{}_i0", stored.replacen("resp_", "rs_", 1));
    json!({"type": "item_reference", "id": item})
}

/// Stores a response and returns its id. A server that does not store it has no response to name.
fn store(victim: &Victim, input: &Value, previous: Option<&str>) -> Result<String> {
    let body = json!({
        "input": input, "previous_response_id": previous, "max_output_tokens": 1, "store": true,
    });
    let answer = victim.post(RESPONSES, &body)?;
    let id = answer["id"].as_str();
    Ok(id.unwrap_or("resp_none").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_below_the_limit_of_a_body() {
        const BODY_BYTES_MAX: usize = 4 << 20;
        let sizes = Sizes::new(false);
        for shots in [
            scores(&sizes),
            outputs(&sizes),
            unread_ends(&sizes),
            embeddings(&sizes),
        ] {
            assert!(shots.len() >= sizes.clients);
            for shot in shots {
                assert!(shot.body.len() < BODY_BYTES_MAX, "{}", shot.path);
                let body: Value = serde_json::from_slice(&shot.body).unwrap();
                assert!(body.is_object());
            }
        }
        assert!(large_item(&sizes).to_string().len() < BODY_BYTES_MAX);
    }
}
