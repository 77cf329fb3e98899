//! One user: asks, waits for the answer, measures the time, asks again.

use std::time::{Duration, Instant};

use motet::error::SubmitError;
use motet::request::{FinishReason, Prompt, Sampling};
use motet::{Engine, Request, TokenId, TokenStream};
use tokio::sync::watch;

use crate::conversation::{Conversation, USER_PART};
use crate::load_target::LoadTarget;
use crate::mix::Kind;
use crate::progress::RunBars;
use crate::script::{Cue, Script};
use crate::server::{Answer, AskError, Client, Question, ServerError};

/// Number of times in a row that a server may reject a request as too busy.
const REJECTIONS_MAX: u64 = 100;

/// The results of one user.
#[derive(Debug)]
pub(crate) struct Visit {
    pub(crate) kind: Kind,
    pub(crate) conversation: Conversation,
    pub(crate) turns: Vec<Turn>,
}

/// One question and its result. Times are measured from the first try to submit it, so
/// that a rejection counts as waiting.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) prompt: Prompt,
    /// Time of the first try, after the start of the run.
    pub(crate) asked_at: Duration,
    /// The reply's tokens, if the engine reports them.
    pub(crate) reply_tokens: Vec<TokenId>,
    pub(crate) reply_text: String,
    /// Number of tokens of the reply.
    pub(crate) output_tokens: usize,
    /// Number of tokens of the prompt, and of those that were cached, if they are reported.
    pub(crate) prompt_tokens: Option<usize>,
    pub(crate) cached_tokens: Option<usize>,
    /// Times at which the queue was full, after the start of the run.
    pub(crate) rejected_at: Vec<Duration>,
    pub(crate) first_token: Option<Duration>,
    /// Times between two tokens; for a server, between two pieces of text.
    pub(crate) gaps: Vec<Duration>,
    pub(crate) whole: Duration,
    pub(crate) ending: Ending,
}

/// The ending of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Finished(Completeness),
    Failed(String),
    /// The run was interrupted before the reply was complete.
    Interrupted,
}

/// Whether a finished reply has all its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// The reply has as many tokens as it may have.
    Full,
    Other,
}

/// The signal that ends the run.
#[derive(Clone, Debug)]
pub(crate) struct Stop(pub(crate) watch::Receiver<bool>);

impl Stop {
    /// Whether the run must end.
    pub(crate) fn is_pressed(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until the run must end.
    async fn pressed(&mut self) {
        if self.0.wait_for(|pressed| *pressed).await.is_err() {
            // The sender is gone, so the signal can never come.
            std::future::pending().await
        }
    }
}

/// Plays a user's script from `start` on.
pub(crate) async fn visit(
    load_target: &LoadTarget,
    script: &Script,
    start: Instant,
    mut stop: Stop,
    bars: &RunBars,
) -> Visit {
    let mut visit = Visit {
        kind: script.kind,
        conversation: Conversation::new(load_target.form(), &script.system_prompt),
        turns: Vec::new(),
    };
    let mut free_at = start;
    for cue in &script.turns {
        let due = start.checked_add(cue.due).unwrap_or(free_at).max(free_at);
        tokio::select! {
            biased;
            () = stop.pressed() => break,
            () = tokio::time::sleep_until(due.into()) => {}
        }
        if !script.remembers {
            visit.conversation.forget();
        }
        visit.conversation.ask(&cue.question);
        let mut turn = Turn::new(visit.conversation.prompt(), start);
        let ending = tokio::select! {
            biased;
            // This drops the reply's stream, which cancels the request.
            () = stop.pressed() => Ending::Interrupted,
            ending = turn.play(load_target, script, cue, start, bars) => ending,
        };
        visit
            .conversation
            .answer(&turn.reply_text, &turn.reply_tokens);
        bars.turn_finished(script.reply_tokens_max.saturating_sub(turn.output_tokens));
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
    if let Prompt::Text(_) = prompt {
        request.stop_strings = vec![USER_PART.to_owned()];
    }
    request.logit_bias = script
        .banned
        .iter()
        .map(|token| (*token, f32::NEG_INFINITY))
        .collect();
    request
}

/// The times of the last token and of the one before it.
#[derive(Debug)]
struct Clock {
    asked_at: Instant,
    last_at: Instant,
}

impl Turn {
    fn new(prompt: Prompt, start: Instant) -> Self {
        Self {
            prompt,
            asked_at: start.elapsed(),
            reply_tokens: Vec::new(),
            reply_text: String::new(),
            output_tokens: 0,
            prompt_tokens: None,
            cached_tokens: None,
            rejected_at: Vec::new(),
            first_token: None,
            gaps: Vec::new(),
            whole: Duration::ZERO,
            ending: Ending::Interrupted,
        }
    }

    /// Sends a question and reads the reply to its end.
    async fn play(
        &mut self,
        load_target: &LoadTarget,
        script: &Script,
        cue: &Cue,
        start: Instant,
        bars: &RunBars,
    ) -> Ending {
        let now = Instant::now();
        let mut clock = Clock {
            asked_at: now,
            last_at: now,
        };
        let ended = match load_target {
            LoadTarget::Engine(engine) => {
                let request = request(script, cue, &self.prompt);
                match self.submit(engine, request, start).await {
                    Ok(stream) => self.listen(stream, &mut clock, bars).await,
                    Err(error) => Err(error.to_string()),
                }
            }
            LoadTarget::Server(client) => match self.ask(client, script, cue, start).await {
                Ok(answer) => {
                    let read = self.read_answer(answer, &mut clock, bars).await;
                    read.map_err(|error| error.to_string())
                }
                Err(error) => Err(error.to_string()),
            },
        };
        self.whole = clock.asked_at.elapsed();
        match ended {
            Ok(completeness) => Ending::Finished(completeness),
            Err(error) => Ending::Failed(error),
        }
    }

    async fn submit(
        &mut self,
        engine: &Engine,
        mut request: Request,
        start: Instant,
    ) -> Result<TokenStream, SubmitError> {
        loop {
            match engine.submit(request).await {
                Err(SubmitError::QueueFull {
                    retry_after,
                    request: rejected,
                    ..
                }) => {
                    self.rejected_at.push(start.elapsed());
                    request = *rejected;
                    tokio::time::sleep(retry_after).await;
                }
                submitted => return submitted,
            }
        }
    }

    async fn listen(
        &mut self,
        mut stream: TokenStream,
        clock: &mut Clock,
        bars: &RunBars,
    ) -> Result<Completeness, String> {
        let mut finish = None;
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|error| error.to_string())?;
            finish = piece.finish;
            self.reply_text.push_str(&piece.text);
            if let Some(token) = piece.token {
                self.reply_tokens.push(token);
                self.record_chunk(clock, bars);
            }
        }
        let finish = finish.ok_or("the stream ended without a finish")?;
        self.prompt_tokens = Some(finish.usage.prompt_tokens);
        self.cached_tokens = Some(finish.usage.cached_tokens);
        Ok(match finish.reason {
            FinishReason::Length => Completeness::Full,
            _ => Completeness::Other,
        })
    }

    async fn ask(
        &mut self,
        client: &Client,
        script: &Script,
        cue: &Cue,
        start: Instant,
    ) -> Result<Answer, ServerError> {
        let prompt = self.prompt.clone();
        let Prompt::Chat(chat) = &prompt else {
            unreachable!("servers are asked in chats");
        };
        let question = Question {
            messages: &chat.messages,
            reply_tokens_max: script.reply_tokens_max,
            temperature: script.temperature,
            seed: cue.seed,
            ignore_end: script.ignore_end,
            banned: &script.banned,
        };
        for _ in 0..REJECTIONS_MAX {
            match client.ask(&question).await {
                Ok(answer) => return Ok(answer),
                Err(AskError::Failed(error)) => return Err(error),
                Err(AskError::Busy(wait)) => {
                    self.rejected_at.push(start.elapsed());
                    tokio::time::sleep(wait).await;
                }
            }
        }
        let times = REJECTIONS_MAX;
        Err(ServerError::Busy { times })
    }

    async fn read_answer(
        &mut self,
        mut answer: Answer,
        clock: &mut Clock,
        bars: &RunBars,
    ) -> Result<Completeness, ServerError> {
        while let Some(chunk) = answer.next().await? {
            if !chunk.text.is_empty() {
                self.reply_text.push_str(&chunk.text);
                self.record_chunk(clock, bars);
            }
            if let Some(cost) = chunk.cost {
                self.output_tokens = cost.output_tokens;
                self.prompt_tokens = Some(cost.prompt_tokens);
                self.cached_tokens = cost.cached_tokens;
            }
        }
        Ok(Completeness::Other)
    }

    /// Records one more token.
    fn record_chunk(&mut self, clock: &mut Clock, bars: &RunBars) {
        let now = Instant::now();
        match self.first_token {
            None => self.first_token = Some(now - clock.asked_at),
            Some(_) => self.gaps.push(now - clock.last_at),
        }
        clock.last_at = now;
        self.output_tokens += 1;
        bars.token();
    }
}
