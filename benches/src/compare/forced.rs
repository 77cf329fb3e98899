//! Tokens that a schema forces: appended at once, or sampled one by one.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use xtask::serving::Serving;
use xtask::workspace;

use super::exchange::post_json;
use super::turns::take_turns;
use super::workbench::Workbench;
use crate::measured::Measured;

/// Option of our server that samples every token.
const SAMPLE_ALL: &str = "--sample-forced-tokens";
/// Option of our server that lets a schema say that there is no white space to choose.
const OPTIONS_ALLOWED: &str = "--grammar-options";
const ANSWER_TOKENS_MAX: usize = 600;
/// Members of the answer, whose names are most of it.
const MEMBERS: [&str; 8] = [
    "customer_identification_number",
    "customer_has_accepted_the_terms_and_conditions",
    "estimated_delivery_time_in_business_days",
    "preferred_communication_language",
    "number_of_previous_complaints_this_year",
    "requires_immediate_attention_of_a_supervisor",
    "refund_has_been_promised_to_the_customer",
    "overall_satisfaction_on_a_scale_of_ten",
];

/// An answer to one request.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    text: String,
    tokens: f64,
    seconds: f64,
}

/// Tokens/s of an answer that a schema with long names binds ÷ the same where each token is
/// sampled.
pub(crate) fn gain(workbench: &mut Workbench) -> Result<Measured> {
    let rounds = workbench.rounds();
    let mut appending = workbench.our_server()?;
    if workbench.serves_model() {
        // Otherwise last bits depend on how many tokens a step has, and a token may change.
        appending.arguments.push("--deterministic".into());
    }
    appending.arguments.push(OPTIONS_ALLOWED.into());
    let mut sampling = appending.clone();
    sampling.arguments.push(SAMPLE_ALL.into());
    let folder = workspace::reports()?;
    let appending = appending.start(&folder.join("forced-tokens.log"))?;
    let sampling = sampling.start(&folder.join("forced-tokens-sampled.log"))?;
    let body = request(workbench.pick(ANSWER_TOKENS_MAX, 40));
    let mut last: Option<Answer> = None;
    let pairs = take_turns(rounds, |turn| {
        let answer = ask(turn.pick(&appending, &sampling), &body)?;
        if let Some(last) = &last {
            ensure!(
                answer.text == last.text,
                "the texts differ: {:?} and {:?}",
                last.text,
                answer.text
            );
        }
        let seconds = answer.seconds;
        last = Some(answer);
        Ok(seconds)
    })?;
    let answer = last.context("there was a turn")?;
    let (appended, sampled) = pairs.medians();
    let remark = format!(
        "the same text of {:.0} tokens at {:.0} tok/s against {:.0} tok/s",
        answer.tokens,
        answer.tokens / appended,
        answer.tokens / sampled
    );
    Ok(Measured::new(pairs.second_by_first()).remark(remark))
}

/// A chat whose answer has all members.
fn request(tokens_max: usize) -> Value {
    let kind = |number: usize| match number % 2 {
        0 => json!({ "type": "integer", "minimum": 0, "maximum": 99 }),
        _ => json!({ "type": "boolean" }),
    };
    let members = MEMBERS.iter().enumerate();
    let properties: serde_json::Map<String, Value> = members
        .map(|(number, name)| ((*name).to_owned(), kind(number)))
        .collect();
    json!({
        "messages": [{ "role": "user", "content": "Describe a customer's case in JSON." }],
        "max_tokens": tokens_max,
        "temperature": 0,
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "case",
                "schema": {
                    "type": "object",
                    "properties": properties,
                    "required": MEMBERS,
                    "additionalProperties": false,
                    "x-guidance": { "whitespace_flexible": false },
                },
            },
        },
    })
}

fn ask(server: &Serving, body: &Value) -> Result<Answer> {
    let started_at = Instant::now();
    let answer = post_json(server.port(), "/v1/chat/completions", body)?;
    let seconds = started_at.elapsed().as_secs_f64();
    let text = answer["choices"][0]["message"]["content"].as_str();
    let tokens = answer["usage"]["completion_tokens"].as_f64();
    match (text, tokens) {
        (Some(text), Some(tokens)) => Ok(Answer {
            text: text.to_owned(),
            tokens,
            seconds,
        }),
        _ => bail!("{} did not answer: {answer}", server.name()),
    }
}
