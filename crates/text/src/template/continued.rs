//! Prompts that end with the text of the last message.
//!
//! Templates write marks behind each message that end its turn. A character that no string of the
//! conversation has is put behind the last message's text, and what was rendered is cut there.
//! `transformers` does the same with a word.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use serde_json::Value;

use super::chat::Chat;
use super::jinja::Written;
use crate::error::TextError;

/// Private-use characters of the basic plane: ordinary text has none of them.
const ENDS: RangeInclusive<char> = '\u{E000}'..='\u{F8FF}';

/// The character behind the text that goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextEnd(char);

impl TextEnd {
    /// A character that neither the conversation nor the template has.
    pub(super) fn choose(chat: &Chat, template: &str) -> Result<Self, TextError> {
        let mut taken = BTreeSet::new();
        let mut collect = |text: &str| taken.extend(text.chars().filter(|c| ENDS.contains(c)));
        collect(template);
        each_text(chat, &mut collect);
        let free = ENDS.clone().find(|end| !taken.contains(end));
        free.map(Self).ok_or_else(|| {
            rejection("the messages have all private-use characters of Unicode's basic plane")
        })
    }

    /// The conversation with the character behind its last message. The space behind it shows
    /// whether the template keeps white space at a message's end.
    pub(super) fn behind_last(self, chat: &Chat) -> Chat {
        let mut marked = chat.clone();
        if let Some(last) = marked.messages.last_mut() {
            last.content.push(self.0);
            last.content.push(' ');
        }
        marked
    }

    /// Cuts the rendered text before the character. White space before it goes too where the
    /// template would have removed it.
    pub(super) fn cut(self, rendered: &mut Written, chat: &Chat) -> Result<(), TextError> {
        let at = rendered.text.rfind(self.0).ok_or_else(|| {
            rejection("does not write the text of the last message as it is, so that no answer can go on with it")
        })?;
        let keeps_spaces = rendered.text[at + self.0.len_utf8()..].starts_with(' ');
        rendered.truncate(at);
        let content = chat.messages.last().map_or("", |last| &*last.content);
        let spaces = &content[content.trim_end().len()..];
        if !keeps_spaces && rendered.text.ends_with(spaces) {
            rendered.truncate(at - spaces.len());
        }
        Ok(())
    }
}

/// Visits every string of the caller's that a template may write.
fn each_text(chat: &Chat, visit: &mut impl FnMut(&str)) {
    fn within(value: &Value, visit: &mut impl FnMut(&str)) {
        match value {
            Value::String(text) => visit(text),
            Value::Array(values) => values.iter().for_each(|value| within(value, visit)),
            Value::Object(members) => members.iter().for_each(|(name, value)| {
                visit(name);
                within(value, visit);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    for message in &chat.messages {
        visit(&message.role);
        visit(&message.content);
        for (name, value) in &message.more {
            visit(name);
            within(value, visit);
        }
    }
    chat.variables
        .values()
        .for_each(|value| within(value, visit));
}

fn rejection(what: &str) -> TextError {
    TextError::Template {
        what: what.to_owned().into(),
    }
}
