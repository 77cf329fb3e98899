//! One user: asks, waits for the answer, takes the time, asks again.

use std::time::{Duration, Instant};

use motet::error::SubmitError;
use motet::model::sampling::Sampling;
use motet::request::{FinishReason, Prompt};
use motet::{Engine, Request, TokenId};
use tokio::sync::watch;

use crate::conversation::Conversation;
use crate::progress::RunBars;
use crate::script::{Cue, Script};

/// All that happened to one user.
#[derive(Debug)]
pub(crate) struct Visit {
    pub(crate) conversation: Conversation,
    pub(crate) turns: Vec<Turn>,
}

/// One question and what came of it. Times run from the first try to submit it,
/// so that a refusal counts as waiting.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) prompt: Prompt,
    pub(crate) reply_tokens: Vec<TokenId>,
    pub(crate) reply_text: String,
    /// How often the queue was full.
    pub(crate) refusals: u64,
    pub(crate) first_token: Option<Duration>,
    /// Times between two tokens.
    pub(crate) gaps: Vec<Duration>,
    pub(crate) whole: Duration,
    pub(crate) ending: Ending,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished(FinishReason),
    Failed(String),
    /// The run was ended before the reply was complete.
    Interrupted,
}

/// Tells users that the run is to end.
#[derive(Clone, Debug)]
pub(crate) struct Stop(pub(crate) watch::Receiver<bool>);

impl Stop {
    /// Whether the run is to end.
    pub(crate) fn is_pressed(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the run is to end.
    async fn pressed(&mut self) {
        if self.0.wait_for(|pressed| *pressed).await.is_err() {
            // Nobody is left who could end it.
            std::future::pending().await
        }
    }
}

/// Plays a user's script from `start` on.
pub(crate) async fn visit(
    engine: &Engine,
    script: &Script,
    start: Instant,
    mut stop: Stop,
    bars: &RunBars,
) -> Visit {
    let mut visit = Visit {
        conversation: Conversation::new(engine.text().is_some(), &script.system_prompt),
        turns: Vec::new(),
    };
    let mut free_at = start;
    for cue in &script.turns {
        let due = (start + cue.due).max(free_at);
        tokio::select! {
            biased;
            () = stop.pressed() => break,
            () = tokio::time::sleep_until(due.into()) => {}
        }
        visit.conversation.ask(&cue.question);
        let mut turn = Turn::new(visit.conversation.prompt());
        let request = request(script, cue, &turn.prompt);
        let ending = tokio::select! {
            biased;
            // What is dropped here is the reply's stream, and that cancels it.
            () = stop.pressed() => Ending::Interrupted,
            ending = turn.play(engine, request, bars) => ending,
        };
        visit
            .conversation
            .answer(&turn.reply_text, &turn.reply_tokens);
        bars.turn_is_over(
            script
                .reply_tokens_max
                .saturating_sub(turn.reply_tokens.len()),
        );
        let goes_on = matches!(ending, Ending::Finished(_));
        turn.ending = ending;
        visit.turns.push(turn);
        if !goes_on {
            break;
        }
        free_at = Instant::now() + script.think;
    }
    visit
}

fn request(script: &Script, cue: &Cue, prompt: &Prompt) -> Request {
    let mut request = Request::new(prompt.clone()).output_tokens_max(script.reply_tokens_max);
    request.sampling = Sampling {
        temperature: script.temperature,
        seed: cue.seed,
        ..Sampling::GREEDY
    };
    request.ignore_end_tokens = script.ignore_end;
    request
}

impl Turn {
    fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            reply_tokens: Vec::new(),
            reply_text: String::new(),
            refusals: 0,
            first_token: None,
            gaps: Vec::new(),
            whole: Duration::ZERO,
            ending: Ending::Interrupted,
        }
    }

    /// Asks and listens to the end.
    async fn play(&mut self, engine: &Engine, mut request: Request, bars: &RunBars) -> Ending {
        let asked_at = Instant::now();
        let mut stream = loop {
            match engine.submit(request).await {
                Ok(stream) => break stream,
                Err(SubmitError::QueueFull {
                    retry_after,
                    request: refused,
                    ..
                }) => {
                    self.refusals += 1;
                    request = *refused;
                    tokio::time::sleep(retry_after).await;
                }
                Err(error) => return Ending::Failed(error.to_string()),
            }
        };
        let mut last_at = asked_at;
        while let Some(piece) = stream.next().await {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => return Ending::Failed(error.to_string()),
            };
            self.reply_text.push_str(&piece.text);
            let Some(token) = piece.token else { continue };
            let now = Instant::now();
            match self.first_token {
                None => self.first_token = Some(now - asked_at),
                Some(_) => self.gaps.push(now - last_at),
            }
            self.reply_tokens.push(token);
            last_at = now;
            bars.token();
        }
        self.whole = asked_at.elapsed();
        match stream.finish() {
            Some(finish) => Ending::Finished(finish.reason),
            None => Ending::Failed("the stream ended without a word".to_owned()),
        }
    }
}
