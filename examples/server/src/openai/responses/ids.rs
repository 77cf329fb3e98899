//! Ids of responses and of their items.
//!
//! An item's id holds its response's, so that a reference to an item leads to its response without
//! an index. Ids are random: a client without a key cannot guess those of another.

/// The start of a response's id.
const RESPONSE: &str = "resp_";
/// Hexadecimal digits of the random part.
const DIGITS: usize = 32;

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

    /// Ids with this part in place of the random one.
    #[cfg(test)]
    pub(super) fn of(random: &str) -> Self {
        Self {
            random: random.to_owned(),
        }
    }

    pub(super) fn response(&self) -> String {
        format!("{RESPONSE}{}", self.random)
    }

    /// The id of an item of the request.
    pub(super) fn input(&self, kind: IdKind, index: usize) -> String {
        format!("{}_{}_i{index}", kind.prefix(), self.random)
    }

    /// The id of an item of the answer.
    pub(super) fn output(&self, kind: IdKind, index: usize) -> String {
        format!("{}_{}_{index}", kind.prefix(), self.random)
    }
}

/// The id of the response that an item with this id belongs to; `None` if the id is not one that
/// this server gives.
pub(super) fn response_of_item(id: &str) -> Option<String> {
    let (_, rest) = id.split_once('_')?;
    let (random, _) = rest.split_once('_')?;
    let is_random = random.len() == DIGITS && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_random.then(|| format!("{RESPONSE}{random}"))
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
            for id in [ids.input(kind, 3), ids.output(kind, 12)] {
                assert_eq!(response_of_item(&id), Some(ids.response()), "{id}");
            }
        }
        assert_ne!(ids.response(), Ids::new().response());
        for id in ["", "msg", "msg_1", "msg_1_2", "msg__", &ids.response()] {
            assert_eq!(response_of_item(id), None, "{id}");
        }
    }
}
