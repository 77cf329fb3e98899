//! Ids of responses and of their items.
//!
//! An item's id holds its response's and its place there, so that a reference leads to the item
//! without a search. Ids are random: a client without a key cannot guess those of another.

use sha2::{Digest, Sha256};

/// The start of a response's id.
const RESPONSE: &str = "resp_";
/// Hexadecimal digits of the random part.
const DIGITS: usize = 32;
const CALL_ID_CHARACTERS: usize = 9;

/// The random part of a response's id, and of those of its items.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    random: String,
}

/// The kind of an item, as its id begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdKind {
    Message,
    Reasoning,
    Call,
    CallOutput,
}

impl IdKind {
    fn prefix(self) -> &'static str {
        match self {
            Self::Message => "msg",
            Self::Reasoning => "rs",
            Self::Call => "fc",
            Self::CallOutput => "fco",
        }
    }
}

impl Ids {
    pub(super) fn new() -> Self {
        let random: u128 = rand::random();
        Self {
            random: format!("{random:032x}"),
        }
    }

    /// Ids with this random part.
    pub(super) fn of(random: &str) -> Self {
        Self {
            random: random.to_owned(),
        }
    }

    /// The random part.
    pub(super) fn random(&self) -> &str {
        &self.random
    }

    pub(super) fn response(&self) -> String {
        format!("{RESPONSE}{}", self.random)
    }

    /// The id of an item of the request.
    pub(super) fn input(&self, kind: IdKind, index: usize) -> String {
        format!("{}_{}_i{index}", kind.prefix(), self.random)
    }

    /// The id by which the client refers to the answer's call with this number. It is nine letters and
    /// digits, which Mistral's templates demand, and the same wherever the answer goes on.
    pub(super) fn call(&self, index: usize) -> String {
        const CHARACTERS: &[u8; 62] =
            b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let digest = Sha256::digest(format!("{}_{index}", self.random));
        // 16 bits for each of them: no character is noticeably more frequent.
        let pairs = digest.chunks_exact(2).take(CALL_ID_CHARACTERS);
        let characters = pairs.map(|pair| {
            let number = usize::from(pair[0]) << 8 | usize::from(pair[1]);
            char::from(CHARACTERS[number % CHARACTERS.len()])
        });
        characters.collect()
    }

    /// The id of an item of the answer.
    pub(super) fn output(&self, kind: IdKind, index: usize) -> String {
        format!("{}_{}_{index}", kind.prefix(), self.random)
    }
}

/// Where an item is: its response, and its place in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ItemPlace {
    /// The id of the response.
    pub(super) response: String,
    /// Whether the item is one of the request.
    pub(super) is_input: bool,
    pub(super) index: usize,
}

/// The place of the item with this id; `None` if the id is not one that this server gives.
pub(super) fn place_of_item(id: &str) -> Option<ItemPlace> {
    let (_, rest) = id.split_once('_')?;
    let (random, place) = rest.split_once('_')?;
    let is_random = random.len() == DIGITS && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    let index = place.strip_prefix('i');
    is_random.then_some(ItemPlace {
        response: format!("{RESPONSE}{random}"),
        is_input: index.is_some(),
        index: index.unwrap_or(place).parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_leads_to_its_response() {
        let ids = Ids::new();
        let kinds = [
            IdKind::Message,
            IdKind::Reasoning,
            IdKind::Call,
            IdKind::CallOutput,
        ];
        for kind in kinds {
            for (id, is_input, index) in [
                (ids.input(kind, 3), true, 3),
                (ids.output(kind, 12), false, 12),
            ] {
                let place = ItemPlace {
                    response: ids.response(),
                    is_input,
                    index,
                };
                assert_eq!(place_of_item(&id), Some(place), "{id}");
            }
        }
        assert_ne!(ids.response(), Ids::new().response());
        let call = ids.call(0);
        assert!(call.len() == 9 && call.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        assert_eq!(call, Ids::of(ids.random()).call(0));
        assert!(call != ids.call(1) && call != Ids::new().call(0));
        for id in ["", "msg", "msg_1", "msg_1_2", "msg__", &ids.response()] {
            assert_eq!(place_of_item(id), None, "{id}");
        }
    }
}
