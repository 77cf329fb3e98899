//! One conversation, so that a person sees whether the model talks sense.

use motet::request::FinishReason;

use super::layout::paragraph;
use crate::conversation::Conversation;
use crate::texts::first_words;
use crate::user::{Ending, Visit};

/// Words of the system prompt that are shown.
const SYSTEM_WORDS_SHOWN: usize = 36;

/// The conversation of the first user who got the most answers.
pub(crate) fn transcript(visits: &[Visit], is_oracle: bool) -> String {
    if is_oracle {
        return "No conversation is shown: the oracle's tokens are hashes, not language.\n\n"
            .to_owned();
    }
    let answers = |visit: &Visit| {
        let endings = visit.turns.iter().map(|turn| &turn.ending);
        endings
            .filter(|ending| matches!(ending, Ending::Finished(_)))
            .count()
    };
    // Of equals `max_by_key` takes the last.
    let shown = visits
        .iter()
        .enumerate()
        .rev()
        .max_by_key(|(_, v)| answers(v));
    let Some((number, visit)) = shown else {
        return String::new();
    };
    let Conversation::Chat(messages) = &visit.conversation else {
        return String::new();
    };
    let mut endings = visit.turns.iter().map(|turn| &turn.ending);
    let mut text = format!("The conversation of user {}\n\n", number + 1);
    for message in messages {
        let mut said = message.content.trim().to_owned();
        if message.role == "system" {
            let words = said.split_whitespace().count();
            let start = first_words(&said, SYSTEM_WORDS_SHOWN);
            if start.len() < said.len() {
                said = format!("{start} … ({words} words)");
            }
        }
        if message.role == "assistant" {
            match endings.next() {
                Some(Ending::Finished(FinishReason::Length)) => said += " …",
                Some(Ending::Failed(error)) => said += &format!(" [failed: {error}]"),
                Some(Ending::Interrupted) => said += " [interrupted]",
                _ => {}
            }
        }
        text += &paragraph(&format!("{:<11}", message.role), &said);
    }
    text + "\n"
}
