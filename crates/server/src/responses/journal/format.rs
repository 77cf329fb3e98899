//! The file of a response: frames, each with its length and a checksum.
//!
//! ```text
//!  "MOTETRS1" │ bytes, checksum, Header │ bytes, checksum, Frame │ …
//! ```
//!
//! A frame that is cut off or damaged ends the file: what follows it is computed again.

use motet::TokenId;
use motet::chat::{ChatEvent, Delta};
use motet::request::TokenLogprobs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::super::response::End;
use crate::conversation::ScoredToken;

/// The first bytes of a file. The last of them is the format's version.
pub(super) const MAGIC: [u8; 8] = *b"MOTETRS1";
/// Bytes of a frame before its content: its length in four, and the first bytes of its SHA-256.
const FRAME_BYTES: usize = 4 + CHECKSUM_BYTES;
const CHECKSUM_BYTES: usize = 8;

/// The request of a response, from which its answer goes on.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Header {
    /// The identity of the model.
    pub(in super::super) model: u64,
    /// The name of the response's key.
    pub(in super::super) key: Option<String>,
    /// The random part of its ids.
    pub(in super::super) id: String,
    /// Seconds since 1970.
    pub(in super::super) created_at: u64,
    pub(in super::super) seed: u64,
    /// The request's body without its items, in JSON.
    pub(in super::super) fields: String,
    /// Its items, and those of the conversation before it: bodies with `input` alone.
    pub(in super::super) input: String,
    pub(in super::super) history: Option<String>,
}

/// A part of an answer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Frame {
    /// Entries from this number on. They replace those that have these numbers already.
    Entries(u64, Vec<Entry>),
    /// A start of the server, which goes on with the answer.
    Resumed,
    Ended(End),
}

/// Tokens, and the events that they became: another answer can go on after them.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Entry {
    pub(in super::super) tokens: Vec<TokenId>,
    pub(in super::super) events: Vec<Event>,
}

/// An event of an answer.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Event {
    #[serde(with = "SavedDelta")]
    delta: Delta,
    logprobs: Vec<(TokenId, f32, Alternatives)>,
}

type Alternatives = Vec<(TokenId, f32)>;

/// The library has no serde. The compiler keeps this equal to [`Delta`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Delta")]
enum SavedDelta {
    Reasoning(String),
    Text(String),
    CallStarted {
        index: usize,
        id: String,
        name: String,
    },
    CallArguments {
        index: usize,
        json: String,
    },
    CallEnded {
        index: usize,
        is_complete: bool,
    },
}

impl Event {
    pub(super) fn new(delta: &Delta, logprobs: &[ScoredToken]) -> Self {
        let logprobs = logprobs.iter();
        Self {
            delta: delta.clone(),
            logprobs: logprobs
                .map(|(token, row)| (*token, row.logprob, row.top.clone()))
                .collect(),
        }
    }

    /// Bytes in memory, about.
    pub(super) fn bytes(&self) -> usize {
        let rows = self.logprobs.iter();
        let rows: usize = rows
            .map(|(_, _, top)| TokenLogprobs::listed_bytes(top.len()))
            .sum();
        size_of::<Self>() + self.delta.bytes() + rows
    }
}

impl From<Event> for ChatEvent {
    fn from(event: Event) -> Self {
        let rows = event.logprobs.into_iter();
        Self::Delta {
            delta: event.delta,
            logprobs: rows
                .map(|(token, logprob, top)| (token, TokenLogprobs { logprob, top }))
                .collect(),
        }
    }
}

/// Appends a frame with this content.
pub(super) fn write(content: &impl Serialize, into: &mut Vec<u8>) {
    let content = rmp_serde::to_vec(content).expect("there is no map with keys of other types");
    let length = u32::try_from(content.len()).expect("bodies and pending entries are bounded");
    into.extend(length.to_le_bytes());
    into.extend(checksum(&content));
    into.extend(content);
}

/// Reads the frame at the start of `bytes`, and removes it from them. `None` if it is cut off or damaged.
pub(super) fn read<T: DeserializeOwned>(bytes: &mut &[u8]) -> Option<T> {
    let (head, rest) = bytes.split_first_chunk::<FRAME_BYTES>()?;
    let (length, sum) = head.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (content, rest) = rest.split_at_checked(length)?;
    if *sum != checksum(content) {
        return None;
    }
    let frame = rmp_serde::from_slice(content).ok()?;
    *bytes = rest;
    Some(frame)
}

fn checksum(content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = Sha256::digest(content);
    *digest.first_chunk().expect("a digest is longer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_up_to_the_first_damaged_one() {
        let row = TokenLogprobs {
            logprob: f32::NEG_INFINITY,
            top: vec![(7, -0.1), (8, f32::MIN_POSITIVE)],
        };
        let event = Event::new(&Delta::Text("héllo".into()), &[(7, row)]);
        let entries = |first| {
            let event = ChatEvent::from(Event::new(&Delta::Text("é".into()), &[]));
            let ChatEvent::Delta { delta, logprobs } = event else {
                unreachable!("it is a part")
            };
            let events = vec![Event::new(&delta, &logprobs)];
            let tokens = vec![1, 2];
            Frame::Entries(first, vec![Entry { tokens, events }])
        };
        let with_rows = Entry {
            tokens: vec![7],
            events: vec![event],
        };
        let frames = [
            entries(0),
            Frame::Entries(1, vec![with_rows]),
            Frame::Resumed,
            entries(2),
        ];
        let mut bytes = Vec::new();
        let mut ends = vec![0];
        for frame in &frames {
            write(frame, &mut bytes);
            ends.push(bytes.len());
        }
        let whole = |bytes: &[u8]| {
            let mut rest = bytes;
            std::iter::from_fn(|| read::<Frame>(&mut rest)).collect::<Vec<_>>()
        };
        assert_eq!(whole(&bytes), frames);
        for cut in 0..bytes.len() {
            let complete = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!(whole(&bytes[..cut]), frames[..complete], "{cut}");
            let mut damaged = bytes.clone();
            damaged[cut] ^= 0x10;
            assert_eq!(whole(&damaged), frames[..complete], "{cut}");
        }
    }
}
