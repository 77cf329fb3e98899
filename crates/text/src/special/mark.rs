//! Marks a caller's strings where they spell a special token.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Markup;
use super::table::SpellingMatch;
use crate::{Chat, Message, TextError};

/// Marks are taken from the private-use planes 15 and 16.
const MARKS: [std::ops::RangeInclusive<u32>; 2] = [0xF_0000..=0xF_FFFD, 0x10_0000..=0x10_FFFD];

/// The marks that stand for the first characters of special tokens in one conversation.
#[derive(Debug)]
pub(crate) struct Marks {
    /// First character, mark.
    pairs: Vec<(char, char)>,
}

impl Markup {
    /// The conversation with marks, and their meaning; `None` if nothing is to be marked.
    ///
    /// # Errors
    ///
    /// [`TextError::Template`] when the conversation leaves no character to mark with: it
    /// contains a hundred thousand private-use ones.
    pub(crate) fn mark(
        &self,
        chat: &Chat,
        template: &str,
    ) -> Result<Option<(Chat, Marks)>, TextError> {
        let mut is_marked = false;
        each_text(chat, &mut |text| {
            is_marked |= self.offsets(text).next().is_some()
        });
        if !is_marked {
            return Ok(None);
        }
        let marks = Marks::choose(&self.special.first_characters(), chat, template)?;
        let change = |text: &str| marks.insert_marks(text, self.offsets(text));
        // A template finds variables by their names, and writes none of these.
        let same = |name: &str| name.to_owned();
        let messages = chat.messages.iter().map(|message| Message {
            role: change(&message.role),
            content: change(&message.content),
            more: changed_members(&message.more, &change, &change),
        });
        let marked = Chat {
            messages: messages.collect(),
            variables: changed_members(&chat.variables, &same, &change),
            ..*chat
        };
        Ok(Some((marked, marks)))
    }

    /// Offsets where a special token begins in a string of the caller's, or may begin and be
    /// completed by another string. A template may remove white space at the end of a string.
    fn offsets<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let trimmed = text.trim_end();
        self.special.offsets(text).filter(move |at| {
            let ends_soon = trimmed.len() < at + self.special.longest;
            self.special.at(text, *at) != SpellingMatch::Nothing
                || (ends_soon && *at < trimmed.len())
                    && self.special.at(trimmed, *at) == SpellingMatch::Prefix
        })
    }
}

impl Marks {
    fn choose(first: &[char], chat: &Chat, template: &str) -> Result<Self, TextError> {
        let mut taken = BTreeSet::new();
        let mut collect_marks = |text: &str| taken.extend(text.chars().filter(|c| is_mark(*c)));
        collect_marks(template);
        each_text(chat, &mut collect_marks);
        let all = MARKS.into_iter().flatten().filter_map(char::from_u32);
        let free = all.filter(|mark| !taken.contains(mark));
        let pairs: Vec<(char, char)> = first.iter().copied().zip(free).collect();
        if pairs.len() == first.len() {
            Ok(Self { pairs })
        } else {
            let what = format!(
                "the messages have {} of Unicode's private-use characters; expected at most {}",
                taken.len(),
                131_068 - first.len(),
            );
            Err(TextError::Template { what: what.into() })
        }
    }

    /// The text with marks at these offsets, which are in order.
    fn insert_marks(&self, text: &str, offsets: impl Iterator<Item = usize>) -> String {
        let mut marked = String::with_capacity(text.len());
        let mut done = 0;
        for at in offsets {
            let first = text[at..]
                .chars()
                .next()
                .expect("a place is within the text");
            let pair = self.pairs.iter().find(|(character, _)| *character == first);
            let (_, mark) = pair.expect("there is a mark for each first character");
            marked.push_str(&text[done..at]);
            marked.push(*mark);
            done = at + first.len_utf8();
        }
        marked.push_str(&text[done..]);
        marked
    }

    /// The rendered text without marks, and the offsets of the marks, in bytes.
    pub(crate) fn restore(&self, rendered: &str) -> (String, Vec<usize>) {
        let mut text = String::with_capacity(rendered.len());
        let mut offsets = Vec::new();
        for character in rendered.chars() {
            let pair = is_mark(character)
                .then(|| self.pairs.iter().find(|(_, mark)| *mark == character))
                .flatten();
            match pair {
                Some((first, _)) => {
                    offsets.push(text.len());
                    text.push(*first);
                }
                None => text.push(character),
            }
        }
        (text, offsets)
    }
}

fn is_mark(character: char) -> bool {
    MARKS
        .iter()
        .any(|marks| marks.contains(&u32::from(character)))
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

/// The values with every string changed, and their own names by `rename`.
fn changed_members(
    members: &std::collections::BTreeMap<String, Value>,
    rename: &impl Fn(&str) -> String,
    change: &impl Fn(&str) -> String,
) -> std::collections::BTreeMap<String, Value> {
    let members = members.iter();
    let members = members.map(|(name, value)| (rename(name), changed(value, change)));
    members.collect()
}

fn changed(value: &Value, change: &impl Fn(&str) -> String) -> Value {
    match value {
        Value::String(text) => Value::String(change(text)),
        Value::Array(values) => values.iter().map(|value| changed(value, change)).collect(),
        Value::Object(members) => {
            let members = members.iter();
            let members = members.map(|(name, value)| (change(name), changed(value, change)));
            Value::Object(members.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
