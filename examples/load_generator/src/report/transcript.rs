//! Conversations in full, to check that the model talks sense.

use motet::text::Message;

use super::layout::paragraph;
use crate::conversation::Conversation;
use crate::texts::first_words;
use crate::user::{Completeness, Ending, Visit};

/// Words of the system prompt that are shown.
const SYSTEM_WORDS_SHOWN: usize = 24;

/// The conversations of the first `users` users.
pub(crate) fn transcripts(visits: &[Visit], users: usize, is_oracle: bool) -> String {
    if users > 0 && is_oracle {
        return "No conversation is shown: the oracle's tokens are hashes, not language.\n\n"
            .to_owned();
    }
    let shown = (1..).zip(visits).take(users);
    shown
        .map(|(number, visit)| transcript(number, visit))
        .collect()
}

fn transcript(number: usize, visit: &Visit) -> String {
    let (Conversation::Chat(messages) | Conversation::Script(messages)) = &visit.conversation
    else {
        return String::new();
    };
    let mut endings = visit.turns.iter().map(|turn| &turn.ending);
    let mut text = format!("The conversation of user {number}\n\n");
    for message in messages {
        let ending = match message.role.as_str() {
            "assistant" => endings.next(),
            _ => None,
        };
        text += &paragraph(
            &format!("{:<11}", message.role),
            &message_text(message, ending),
        );
    }
    text + "\n"
}

/// The message's text, and its ending if the reply did not finish by itself.
fn message_text(message: &Message, ending: Option<&Ending>) -> String {
    let text = message.content.trim();
    match ending {
        Some(Ending::Finished(Completeness::Full)) => format!("{text} …"),
        Some(Ending::Failed(error)) => format!("{text} [failed: {error}]"),
        Some(Ending::Interrupted) => format!("{text} [interrupted]"),
        None if message.role == "system" => {
            let words = text.split_whitespace().count();
            if words > SYSTEM_WORDS_SHOWN {
                format!(
                    "{} … ({words} words)",
                    first_words(text, SYSTEM_WORDS_SHOWN)
                )
            } else {
                text.to_owned()
            }
        }
        _ => text.to_owned(),
    }
}
