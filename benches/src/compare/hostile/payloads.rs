//! Requests of hostile clients: schemas, long texts, bodies of zeros.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::attack::Shot;
use super::grammars::{self, HostileGrammar};
use crate::compare::prompts::split_mix;

/// Time that a patient client waits for its answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which an impatient client leaves.
const SHORT_TIMEOUT: Duration = Duration::from_millis(200);
/// A longer schema gets no comment: it would be rejected for its length alone.
const COMMENTED_BYTES_MAX: usize = 60 << 10;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";
const TOKENIZE: &str = "/tokenize";
const MESSAGES: &str = r#"[{"role":"user","content":"Say anything."}]"#;

/// The corpus' schemas, and the number of its grammars that the server has no field for.
pub(super) fn schemas(is_quick: bool) -> (Vec<HostileGrammar>, usize) {
    const QUICK_BYTES_MAX: usize = 100;
    const QUICK_COUNT: usize = 3;
    let (mut schemas, others): (Vec<_>, Vec<_>) = grammars::grammars()
        .into_iter()
        .partition(|grammar| grammar.kind == "json_schema");
    if is_quick {
        schemas.retain(|schema| schema.source.len() <= QUICK_BYTES_MAX);
        schemas.truncate(QUICK_COUNT);
    }
    (schemas, others.len())
}

/// An ordinary schema.
pub(super) fn honest() -> HostileGrammar {
    HostileGrammar {
        name: "an honest one",
        kind: "json_schema",
        source: r#"{"type":"object","properties":{"name":{"type":"string"}}}"#.into(),
    }
}

/// A chat whose answer must follow the schema.
pub(super) fn schema_shot(schema: &HostileGrammar, number: usize, tokens: usize) -> Shot {
    // The schema is sent as text with a comment, so that the server finds no two alike.
    let source = match schema.source.strip_prefix('{') {
        Some(rest) if rest.starts_with('"') && rest.len() < COMMENTED_BYTES_MAX => {
            format!(r#"{{"$comment":"{number}",{rest}"#)
        }
        _ => schema.source.clone(),
    };
    let body = format!(
        r#"{{"messages":{MESSAGES},"max_tokens":{tokens},"temperature":0,"user":"hostile-{number}","response_format":{{"type":"json_schema","json_schema":{{"name":"it","schema":{source}}}}}}}"#
    );
    Shot::post(CHAT, body.into_bytes(), TIMEOUT)
}

/// Each schema twice: one client waits for the answer, the other leaves soon. Each round starts
/// with another schema.
pub(super) fn schema_shots(
    schemas: &[HostileGrammar],
    tokens: usize,
    round: usize,
    rounds: usize,
) -> Vec<Shot> {
    let mut shots = Vec::new();
    for (number, schema) in schemas.iter().enumerate() {
        let number = round * schemas.len() + number;
        let waits = schema_shot(schema, 2 * number, tokens);
        let leaves = schema_shot(schema, 2 * number + 1, tokens);
        shots.push(waits);
        shots.push(Shot {
            timeout: SHORT_TIMEOUT,
            ..leaves
        });
    }
    let first = round * shots.len() / rounds.max(1);
    shots.rotate_left(first);
    shots
}

/// Texts of every kind for every field that takes text, for `clients` clients.
pub(super) fn text_shots(clients: usize, bytes: usize, round: usize) -> Vec<Shot> {
    let places = [CHAT, COMPLETION, TOKENIZE];
    let texts = [words, unspaced, unicode];
    let mut shots = Vec::new();
    for (turn, path) in places.into_iter().enumerate() {
        for client in 0..clients {
            let mut seed = (round * clients * places.len() + shots.len()) as u64;
            let text = texts[(client + turn) % texts.len()](&mut seed, bytes);
            let user = format!("hostile-{client}");
            let body = match path {
                CHAT => json!({
                    "messages": [{"role": "user", "content": text}], "max_tokens": 1, "user": user,
                }),
                COMPLETION => json!({"prompt": text, "max_tokens": 1, "user": user}),
                _ => json!({"prompt": text}),
            };
            let timeout = Duration::from_secs(60);
            shots.push(Shot::post(path, body.to_string().into_bytes(), timeout));
        }
    }
    shots
}

/// `count` bodies of `bytes` bytes, nearly all of it `[0,0,…]`. The zeros are in every field that
/// might keep them, and in an unknown field.
pub(super) fn zero_shots(count: usize, bytes: usize) -> Vec<Shot> {
    let rest = r#""max_tokens":8,"temperature":0,"ignore_eos":true"#;
    let chat = format!(r#""messages":{MESSAGES},{rest}"#);
    let completion = format!(r#""prompt":"Say anything.",{rest}"#);
    let kinds = [
        (CHAT, format!(r#"{{{chat},"unknown":"#), "}"),
        (COMPLETION, format!(r#"{{{completion},"unknown":"#), "}"),
        (
            CHAT,
            format!(r#"{{{rest},"messages":[{{"role":"user","content":"Say anything.","unknown":"#),
            "}]}",
        ),
        (CHAT, format!(r#"{{{chat},"tools":"#), "}"),
        (
            CHAT,
            format!(
                r#"{{{chat},"response_format":{{"type":"json_schema","json_schema":{{"name":"it","schema":{{"enum":"#
            ),
            "}}}}",
        ),
        (
            CHAT,
            format!(r#"{{{chat},"chat_template_kwargs":{{"unknown":"#),
            "}}",
        ),
        (CHAT, format!(r#"{{{chat},"stop":"#), "}"),
        (CHAT, format!(r#"{{{chat},"logit_bias":"#), "}"),
        (CHAT, format!(r#"{{{rest},"messages":"#), "}"),
        (COMPLETION, format!(r#"{{{rest},"prompt":"#), "}"),
        (
            TOKENIZE,
            r#"{"prompt":"Say anything.","unknown":"#.to_owned(),
            "}",
        ),
    ];
    let bodies: Vec<(&'static str, Arc<[u8]>)> = kinds
        .iter()
        .map(|(path, before, after)| (*path, zeros(before, after, bytes).into()))
        .collect();
    let shots = bodies.iter().cycle().take(count);
    let timeout = Duration::from_secs(90);
    let shots = shots.map(|(path, body)| Shot::post(path, Arc::clone(body), timeout));
    shots.collect()
}

/// `before`, as many zeros as make the text `bytes` long or one less, and `after`.
fn zeros(before: &str, after: &str, bytes: usize) -> Vec<u8> {
    let zeros = bytes.saturating_sub(before.len() + after.len() + 3) / 2;
    let mut body = Vec::with_capacity(bytes);
    body.extend_from_slice(before.as_bytes());
    body.push(b'[');
    for _ in 0..zeros {
        body.extend_from_slice(b"0,");
    }
    body.extend_from_slice(b"0]");
    body.extend_from_slice(after.as_bytes());
    body
}

/// Words of two to nine letters: their tokens are in no cache.
fn words(seed: &mut u64, bytes: usize) -> String {
    letters(seed, bytes, |random_bits| 2 + random_bits as usize % 8)
}

/// One word.
fn unspaced(seed: &mut u64, bytes: usize) -> String {
    letters(seed, bytes, |_| usize::MAX)
}

fn letters(seed: &mut u64, bytes: usize, length: impl Fn(u64) -> usize) -> String {
    let mut text = String::with_capacity(bytes);
    let mut left = length(split_mix(seed));
    while text.len() < bytes {
        for byte in split_mix(seed).to_le_bytes() {
            if left == 0 {
                text.push(' ');
                left = length(split_mix(seed));
            } else {
                text.push(char::from(b'a' + byte % 26));
                left -= 1;
            }
        }
    }
    text.truncate(bytes);
    text
}

/// Characters of two to four bytes, of many scripts.
fn unicode(seed: &mut u64, bytes: usize) -> String {
    let scripts = [
        (0xc0, 0x250),
        (0x391, 0x52f),
        (0x4e00, 0x9fff),
        (0xac00, 0xd7a3),
        (0x1f300, 0x1f6ff),
    ];
    let mut text = String::with_capacity(bytes);
    loop {
        let random_bits = split_mix(seed);
        let (first, last) = scripts[random_bits as usize % scripts.len()];
        let code = first + (random_bits >> 32) as u32 % (last - first);
        let character = char::from_u32(code).unwrap_or('ÿ');
        if text.len() + character.len_utf8() > bytes {
            return text;
        }
        text.push(character);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn bodies_of_zeros_are_json_just_below_the_limit() {
        const BYTES: usize = 4_096;
        let shots = zero_shots(25, BYTES);
        assert_eq!(shots.len(), 25);
        for shot in &shots {
            assert!((BYTES - 1..=BYTES).contains(&shot.body.len()));
            let body: Value = serde_json::from_slice(&shot.body).unwrap();
            assert!(body.is_object(), "{body}");
        }
        let kinds: BTreeSet<&[u8]> = shots.iter().map(|shot| &*shot.body).collect();
        assert_eq!(kinds.len(), 11);
    }

    #[test]
    fn texts_are_long_and_no_two_alike() {
        const BYTES: usize = 10_000;
        let shots = [text_shots(8, BYTES, 0), text_shots(8, BYTES, 1)].concat();
        let mut texts = BTreeSet::new();
        for shot in &shots {
            let body: Value = serde_json::from_slice(&shot.body).unwrap();
            let content = &body["messages"][0]["content"];
            let text = content.as_str().or(body["prompt"].as_str()).unwrap();
            assert!((BYTES - 4..=BYTES).contains(&text.len()), "{}", text.len());
            texts.insert(text.to_owned());
        }
        assert_eq!(texts.len(), shots.len());
        let spaces = |text: &&String| text.contains(' ');
        assert_eq!(texts.iter().filter(spaces).count() % 16, 0);
    }

    #[test]
    fn each_schema_comes_with_a_client_that_waits_and_one_that_leaves() {
        let (schemas, others) = schemas(false);
        assert!(schemas.len() >= 40, "{}", schemas.len());
        assert!(others > 0);
        let shots = schema_shots(&schemas, 16, 1, 5);
        assert_eq!(shots.len(), 2 * schemas.len());
        let patient = shots.iter().filter(|shot| shot.timeout == TIMEOUT);
        assert_eq!(patient.count(), schemas.len());
        let bodies: BTreeSet<&[u8]> = shots.iter().map(|shot| &*shot.body).collect();
        assert!(bodies.len() >= 2 * schemas.len() - 2);
        let first: Value = serde_json::from_slice(&schema_shot(&schemas[0], 7, 16).body).unwrap();
        let schema = &first["response_format"]["json_schema"]["schema"];
        assert_eq!(schema["$comment"], "7");
        assert!(schema["patternProperties"].is_object());
        assert!((1..=3).contains(&super::schemas(true).0.len()));
    }
}
