//! Who says what, and when: fixed by the seed before anything runs.

use std::time::Duration;

use rand::SeedableRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::arguments::Load;
use crate::texts;

/// All that one user is going to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Script {
    /// What the model is told before the conversation; empty is nothing.
    pub(crate) system_prompt: String,
    /// What the user says, turn by turn.
    pub(crate) turns: Vec<Cue>,
    /// How long the user thinks after an answer.
    pub(crate) think: Duration,
    /// Longest reply.
    pub(crate) reply_tokens_max: usize,
    /// At which temperature tokens are drawn.
    pub(crate) temperature: f32,
    /// Whether replies go on past the model's end tokens.
    pub(crate) ignore_end: bool,
}

/// One turn of a user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cue {
    /// What the user says.
    pub(crate) question: String,
    /// When it is due, after the start of the run. It waits for the answer before.
    pub(crate) due: Duration,
    /// Seed of the reply's draws.
    pub(crate) seed: u64,
}

/// The scripts of all users.
pub(crate) fn write(load: &Load) -> Vec<Script> {
    let mut random = ChaCha8Rng::seed_from_u64(load.seed);
    let questions = match load.unique_words {
        Some(words) => unique_questions(load.users, words, &mut random),
        None => shared_questions(load.users, load.turns, &mut random),
    };
    let system_prompt = match load.unique_words {
        Some(_) => String::new(),
        None => texts::system_prompt(load.system_words),
    };
    let times = load.arrivals.times(load.requests(), &mut random);
    let cue = |user: usize, turn: usize, question: String| Cue {
        question,
        // The first arrivals are the users' first turns, and so on.
        due: times[turn * load.users + user],
        seed: load
            .seed
            .wrapping_add((user * load.turns() + turn) as u64)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15),
    };
    let script = |(user, questions): (usize, Vec<String>)| Script {
        system_prompt: system_prompt.clone(),
        turns: (0..)
            .zip(questions)
            .map(|(turn, question)| cue(user, turn, question))
            .collect(),
        think: Duration::from_millis(load.think_ms),
        reply_tokens_max: load.reply_tokens,
        temperature: load.temperature,
        ignore_end: load.ignore_end,
    };
    (0..).zip(questions).map(script).collect()
}

/// The questions of users who talk to the concierge: the conversations, then
/// follow-ups at random. The first user has the first conversation, which is the one
/// that is shown; the others' order is random. Users beyond the conversations' number
/// say who they are, so that no two ask the same.
fn shared_questions(users: usize, turns: usize, random: &mut ChaCha8Rng) -> Vec<Vec<String>> {
    let mut conversations = texts::conversations();
    conversations[1..].shuffle(random);
    let follow_ups = texts::follow_ups();
    (0..users)
        .map(|user| {
            let conversation = &conversations[user % conversations.len()];
            let mut questions: Vec<String> = conversation
                .iter()
                .map(|question| (*question).to_owned())
                .collect();
            if user >= conversations.len() {
                questions[0] = format!("This is guest {}. {}", user + 1, questions[0]);
            }
            questions.resize_with(turns, || {
                let follow_up = follow_ups.choose(random);
                (*follow_up.expect("there are follow-ups")).to_owned()
            });
            questions
        })
        .collect()
}

/// For each user one prompt of exactly `words` words that begins with a word of
/// its own.
fn unique_questions(users: usize, words: usize, random: &mut ChaCha8Rng) -> Vec<Vec<String>> {
    let mut sentences = texts::sentences();
    (0..users)
        .map(|user| {
            let mut prompt = format!("{}. What comes after this?", user + 1);
            let mut count = prompt.split_whitespace().count();
            while count < words {
                sentences.shuffle(random);
                for sentence in &sentences {
                    prompt.push(' ');
                    prompt.push_str(sentence);
                    count += sentence.split_whitespace().count();
                }
            }
            vec![texts::first_words(&prompt, words).to_owned()]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;
    use crate::arguments::Arguments;

    fn load(words: &str) -> Load {
        let words = std::iter::once("load_generator").chain(words.split_whitespace());
        Arguments::parse_from(words).load
    }

    #[test]
    fn the_seed_decides() {
        let check = |words: &str| assert_eq!(write(&load(words)), write(&load(words)));
        check("");
        check("--arrivals poisson:3 --turns 5");
        check("--unique-words 100");
        let (one, other) = (write(&load("--seed 1")), write(&load("--seed 2")));
        let question = |scripts: &[Script], user: usize| scripts[user].turns[0].question.clone();
        assert_eq!(question(&one, 0), question(&other, 0), "shown for any seed");
        assert_ne!(question(&one, 1), question(&other, 1));
    }

    #[test]
    fn no_two_users_begin_alike() {
        let check = |words: &str, users: usize, turns: usize| {
            let scripts = write(&load(words));
            assert_eq!(scripts.len(), users);
            assert!(scripts.iter().all(|script| script.turns.len() == turns));
            let firsts: BTreeSet<_> = scripts
                .iter()
                .map(|script| script.turns[0].question.split_whitespace().next())
                .collect();
            let questions: BTreeSet<_> = scripts.iter().map(|s| &s.turns[0].question).collect();
            assert_eq!(questions.len(), users);
            firsts.len()
        };
        check("", 16, 3);
        check("--users 200 --turns 7", 200, 7);
        assert_eq!(check("--users 90 --unique-words 1", 90, 1), 90);
    }

    #[test]
    fn unique_prompts_have_the_words_asked_for() {
        for words in [1, 2, 100, 3_000] {
            for script in write(&load(&format!("--users 3 --unique-words {words}"))) {
                let question = &script.turns[0].question;
                assert_eq!(question.split_whitespace().count(), words);
                assert_eq!(script.system_prompt, "");
            }
        }
    }

    #[test]
    fn arrivals_are_dealt_to_the_users_in_turn() {
        let scripts = write(&load("--users 3 --turns 2 --arrivals poisson:1"));
        let dues = |turn: usize| scripts.iter().map(move |script| script.turns[turn].due);
        assert!(dues(0).chain(dues(1)).is_sorted());
    }
}
