//! The users' questions, and the system prompt. All texts were written for this example.
//! The system prompt answers most questions, in words simple enough for a model of 135
//! million parameters.

use rand::Rng;
use rand::seq::SliceRandom;

const SYSTEM_PROMPT: &str = include_str!("data/system_prompt.txt");
/// Conversations, separated by empty lines; each line is one question of the user.
const CONVERSATIONS: &str = include_str!("data/conversations.txt");
/// Questions for users whose conversation has ended, one per line.
const FOLLOW_UPS: &str = include_str!("data/follow_ups.txt");
/// Sentences that fit together in any order, one per line.
const DIARY: &str = include_str!("data/diary.txt");

/// The first `words` words of the system prompt, with its paragraphs kept. The text is
/// repeated past its end.
pub(crate) fn system_prompt(words: usize) -> String {
    let mut text = String::new();
    let mut left = words;
    while left > 0 {
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        let part = first_words(SYSTEM_PROMPT.trim(), left);
        left -= part.split_whitespace().count();
        text.push_str(part);
    }
    text
}

/// The user's part of each conversation.
pub(crate) fn conversations() -> Vec<Vec<&'static str>> {
    CONVERSATIONS
        .split("\n\n")
        .map(|conversation| conversation.lines().collect())
        .collect()
}

/// Questions for users whose conversation has ended.
pub(crate) fn follow_ups() -> Vec<&'static str> {
    FOLLOW_UPS.lines().collect()
}

/// Exactly `words` words: `start`, then sentences of a diary in random order.
pub(crate) fn babble(start: &str, words: usize, random: &mut impl Rng) -> String {
    let mut sentences = sentences();
    let mut text = start.to_owned();
    let mut count = text.split_whitespace().count();
    while count < words {
        sentences.shuffle(random);
        for sentence in &sentences {
            text.push(' ');
            text.push_str(sentence);
            count += sentence.split_whitespace().count();
        }
    }
    first_words(&text, words).to_owned()
}

/// Sentences that fit together in any order.
fn sentences() -> Vec<&'static str> {
    DIARY.lines().collect()
}

/// The start of `text` up to the end of its `words`th word, or all of it.
pub(crate) fn first_words(text: &str, words: usize) -> &str {
    let mut left = words;
    let mut in_word = false;
    for (at, character) in text.char_indices() {
        if in_word && character.is_whitespace() {
            left -= 1;
        }
        in_word = !character.is_whitespace();
        if left == 0 {
            return &text[..at];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_long_enough() {
        assert_eq!(SYSTEM_PROMPT.split_whitespace().count(), 400);
        let conversations = conversations();
        assert!(conversations.len() >= 64);
        assert!(conversations.iter().all(|turns| turns.len() == 3));
        let mut firsts: Vec<_> = conversations.iter().map(|turns| turns[0]).collect();
        firsts.sort_unstable();
        firsts.dedup();
        assert_eq!(firsts.len(), conversations.len(), "first questions differ");
        let lines = conversations.concat();
        for line in lines.into_iter().chain(follow_ups()).chain(sentences()) {
            assert_eq!(line.trim(), line);
            assert!(!line.is_empty());
        }
    }

    #[test]
    fn prompts_have_the_words_asked_for() {
        for words in [0, 1, 2, 399, 400, 401, 1_000] {
            let prompt = system_prompt(words);
            assert_eq!(prompt.split_whitespace().count(), words);
        }
        assert_eq!(system_prompt(400), SYSTEM_PROMPT.trim());
    }

    #[test]
    fn words_are_cut_at_their_ends() {
        let check = |text, words, expected| assert_eq!(first_words(text, words), expected);
        check("one two  three", 0, "");
        check("one two  three", 1, "one");
        check("one two  three", 2, "one two");
        check("one two  three", 3, "one two  three");
        check("one two  three", 9, "one two  three");
        check(" übel\nso", 1, " übel");
        check("", 3, "");
    }
}
