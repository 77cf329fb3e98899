//! Each user's questions and their times, fixed by the seed before the run.

use std::time::Duration;

use motet::TokenId;
use rand::SeedableRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand_chacha::ChaCha8Rng;

use crate::arguments::Load;
use crate::mix::Kind;
use crate::texts;

/// The plan of one user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Script {
    /// The user's kind.
    pub(crate) kind: Kind,
    /// The system prompt; empty means none.
    pub(crate) system_prompt: String,
    /// The user's turns.
    pub(crate) turns: Vec<Cue>,
    /// Whether a question is sent with the conversation before it.
    pub(crate) remembers: bool,
    /// The user's pause after an answer.
    pub(crate) think: Duration,
    /// Longest reply, in tokens.
    pub(crate) reply_tokens_max: usize,
    /// Sampling temperature.
    pub(crate) temperature: f32,
    /// Whether replies continue past the model's end tokens.
    pub(crate) ignore_end: bool,
    /// Tokens that are never sampled.
    pub(crate) banned: Vec<TokenId>,
}

/// One turn of a user.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cue {
    /// The user's question.
    pub(crate) question: String,
    /// The due time after the start of the run. The turn also waits for the answer before it.
    pub(crate) due: Duration,
    /// Sampling seed of the reply.
    pub(crate) seed: u64,
}

/// Returns the scripts of all users.
pub(crate) fn write(load: &Load) -> Vec<Script> {
    let mut random = ChaCha8Rng::seed_from_u64(load.seed);
    let kinds = load.mix().kinds();
    let turns = load.turns();
    let mut questions = questions(load, &kinds, &mut random);
    let times = load
        .arrivals
        .times(kinds.len().saturating_mul(turns), &mut random);
    let cue = |user: usize, turn: usize, question: String| Cue {
        question,
        // The first arrivals are the users' first turns, and so on.
        due: times[turn * kinds.len() + user],
        seed: seed_of(load.seed, user * turns + turn),
    };
    let script = |(user, kind): (usize, &Kind)| Script {
        kind: *kind,
        system_prompt: match kind {
            Kind::Chatty if load.unique_words.is_none() => system_prompt(load),
            _ => String::new(),
        },
        turns: (0..)
            .zip(std::mem::take(&mut questions[user]))
            .map(|(turn, question)| cue(user, turn, question))
            .collect(),
        remembers: *kind != Kind::Batch,
        think: Duration::from_millis(load.think_ms),
        reply_tokens_max: load.reply_tokens,
        temperature: load.temperature,
        ignore_end: load.ignore_end,
        banned: load.ban_tokens.clone(),
    };
    kinds.iter().enumerate().map(script).collect()
}

fn system_prompt(load: &Load) -> String {
    let prompt = texts::system_prompt(load.system_words);
    if load.fresh {
        format!("{}. {prompt}", load.seed)
    } else {
        prompt
    }
}

/// The sampling seed of a reply.
pub(crate) fn seed_of(seed: u64, number: usize) -> u64 {
    seed.wrapping_add(number as u64)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// The questions of each user, turn by turn.
fn questions(load: &Load, kinds: &[Kind], random: &mut ChaCha8Rng) -> Vec<Vec<String>> {
    if let Some(words) = load.unique_words {
        return unique_questions(kinds.len(), words, random);
    }
    let chatty = kinds.iter().filter(|kind| **kind == Kind::Chatty).count();
    let mut shared = shared_questions(chatty, load.turns, random).into_iter();
    let follow_ups = texts::follow_ups();
    (1..)
        .zip(kinds)
        .map(|(user, kind)| match kind {
            Kind::Long => {
                let start = format!("{user}. This is my diary.");
                let mut questions = vec![texts::babble(&start, load.long_words, random)];
                questions.resize_with(load.turns, || {
                    let follow_up = follow_ups.choose(random);
                    (*follow_up.expect("there are follow-ups")).to_owned()
                });
                questions
            }
            Kind::Batch => (1..=load.turns)
                .map(|turn| {
                    let start = format!("{user}.{turn}. What comes after this?");
                    texts::babble(&start, load.batch_words, random)
                })
                .collect(),
            Kind::Chatty | Kind::Trace => shared.next().expect("as many as there are chatty ones"),
        })
        .collect()
}

/// The questions of users that talk to the concierge: the conversations, then random
/// follow-ups. The first user has the first conversation, which is the one that is shown.
/// The order of the others is random. Users beyond the number of conversations introduce
/// themselves, so that no two ask the same.
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

/// One prompt for each user, of exactly `words` words. Its first word is unique.
fn unique_questions(users: usize, words: usize, random: &mut ChaCha8Rng) -> Vec<Vec<String>> {
    (1..=users)
        .map(|user| {
            let start = format!("{user}. What comes after this?");
            vec![texts::babble(&start, words, random)]
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
    fn fresh_loads_share_nothing_with_others() {
        let prompt = |words: &str| write(&load(words))[1].system_prompt.clone();
        assert_eq!(
            prompt("--seed 7 --fresh"),
            format!("7. {}", prompt("--seed 7"))
        );
    }

    #[test]
    fn user_kinds_send_different_prompts() {
        let scripts = write(&load("--mix chatty=2,long=1,batch=2 --long-words 500"));
        assert_eq!(scripts.len(), 5);
        assert_eq!(scripts[1].system_prompt, texts::system_prompt(400));
        let long = &scripts[2];
        assert_eq!((long.kind, long.system_prompt.as_str()), (Kind::Long, ""));
        assert_eq!(long.turns[0].question.split_whitespace().count(), 500);
        let batch = &scripts[3];
        assert!(!batch.remembers && long.remembers);
        assert_ne!(batch.turns[0].question, scripts[4].turns[0].question);
        assert_ne!(batch.turns[0].question, batch.turns[1].question);
    }

    #[test]
    fn arrivals_are_dealt_to_the_users_in_turn() {
        let scripts = write(&load("--users 3 --turns 2 --arrivals poisson:1"));
        let dues = |turn: usize| scripts.iter().map(move |script| script.turns[turn].due);
        assert!(dues(0).chain(dues(1)).is_sorted());
    }
}
