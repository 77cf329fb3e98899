//! From what the users met and what the engine counted to a [`Report`].

use std::time::Duration;

use anyhow::{Context, Result};
use motet::model::Extent;
use motet::request::{FinishReason, Prompt};
use motet::text::TextCodec;
use motet::{Engine, EngineStats, TokenId};

use super::{Latency, Memory, ModelFigures, Paged, Percentiles, Report, Requests, Steps, Tokens};
use crate::arguments::Arguments;
use crate::crowd::Crowd;
use crate::distinct;
use crate::user::{Ending, Turn};
use motet::pager::PagerStats;

impl Report {
    /// Reckons the figures. Tokenises all prompts once more, so it takes a moment.
    ///
    /// # Errors
    ///
    /// When a prompt that the engine could tokenise cannot be tokenised here.
    pub(crate) fn new(
        arguments: &Arguments,
        engine: &Engine,
        load_time: Duration,
        crowd: &Crowd,
    ) -> Result<Self> {
        let turns: Vec<&Turn> = crowd.visits.iter().flat_map(|v| &v.turns).collect();
        let stats = &crowd.stats;
        let tokens = tokens(&turns, engine.text(), stats, crowd.wall)?;
        let token_bytes = engine.model().segment_bytes(Extent::whole(1));
        let memory = memory(crowd, arguments.oracle, tokens.distinct * token_bytes);
        Ok(Self {
            load: arguments.load.clone(),
            engine: arguments.engine.clone(),
            model: ModelFigures {
                name: engine.model().name.clone(),
                simulated: arguments.oracle,
                load_seconds: load_time.as_secs_f64(),
            },
            wall_seconds: crowd.wall.as_secs_f64(),
            interrupted: crowd.interrupted,
            requests: requests(arguments.load.requests(), &turns),
            latency: latency(&turns),
            tokens,
            steps: steps(stats),
            memory,
        })
    }
}

fn requests(planned: usize, turns: &[&Turn]) -> Requests {
    let mut requests = Requests {
        planned,
        refusals: turns.iter().map(|turn| turn.refusals).sum(),
        ..Requests::default()
    };
    for turn in turns {
        match &turn.ending {
            Ending::Finished(_) => requests.finished += 1,
            Ending::Interrupted => requests.interrupted += 1,
            Ending::Failed(error) => {
                requests.failed += 1;
                *requests.errors.entry(error.clone()).or_default() += 1;
            }
        }
    }
    requests
}

fn latency(turns: &[&Turn]) -> Latency {
    let finished = turns
        .iter()
        .filter(|turn| matches!(turn.ending, Ending::Finished(_)));
    Latency {
        first_token: Percentiles::of(turns.iter().filter_map(|turn| turn.first_token)),
        between_tokens: Percentiles::of(turns.iter().flat_map(|turn| &turn.gaps).copied()),
        whole_reply: Percentiles::of(finished.map(|turn| turn.whole)),
    }
}

fn tokens(
    turns: &[&Turn],
    text: Option<&TextCodec>,
    stats: &EngineStats,
    wall: Duration,
) -> Result<Tokens> {
    let mut prompts = Vec::new();
    let mut sequences = Vec::new();
    // A request that never started had nothing to compute.
    for turn in turns.iter().filter(|turn| turn.first_token.is_some()) {
        let prompt = prompt_tokens(&turn.prompt, text)?;
        let computed = match turn.ending {
            // The reply's last token was drawn, but never evaluated.
            Ending::Finished(FinishReason::Length) => turn.reply_tokens.split_last(),
            _ => None,
        };
        let reply = computed.map_or(&*turn.reply_tokens, |(_, before)| before);
        sequences.push([&*prompt, reply].concat());
        prompts.push(prompt);
    }
    let output = turns.iter().map(|turn| turn.reply_tokens.len()).sum();
    let all = distinct::count(sequences);
    let of_prompts = distinct::count(prompts);
    let again = stats.evaluated_tokens.saturating_sub(all.tokens as u64);
    Ok(Tokens {
        output,
        output_per_second: output as f64 / wall.as_secs_f64(),
        prompt: stats.prompt_tokens,
        prompt_from_cache: stats.cached_tokens,
        prompt_from_cache_share: share(stats.cached_tokens, stats.prompt_tokens),
        prompt_distinct: of_prompts.tokens,
        distinct: all.tokens,
        evaluated: stats.evaluated_tokens,
        shared_start: of_prompts.shared_start,
        shared_start_computed_once: turns.len() > 1 && again < of_prompts.shared_start as u64,
    })
}

fn steps(stats: &EngineStats) -> Steps {
    let in_steps: u64 = (1..)
        .zip(&stats.steps_by_sequences)
        .map(|(sequences, steps)| sequences * steps)
        .sum();
    Steps {
        count: stats.steps,
        sequences_mean: share(in_steps, stats.steps),
        by_sequences: stats.steps_by_sequences.clone(),
        device_busy_seconds: stats.device_busy.as_secs_f64(),
    }
}

/// `counts_state`: whether the device counts cached state and nothing else.
fn memory(crowd: &Crowd, counts_state: bool, needed_bytes: usize) -> Memory {
    let stats = &crowd.stats;
    let (held, held_max) = match counts_state {
        true => (
            stats.device_memory.active_bytes,
            stats.device_memory.peak_bytes,
        ),
        false => (stats.cache.sealed_bytes, crowd.cached_bytes_max),
    };
    Memory {
        device_peak_bytes: stats.device_memory.peak_bytes,
        cached_bytes: stats.cache.sealed_bytes,
        cached_bytes_max: crowd.cached_bytes_max,
        needed_bytes,
        held_by_needed: share(held as u64, needed_bytes as u64),
        held_max_by_needed: share(held_max as u64, needed_bytes as u64),
        cached_tokens: stats.cache.cached_tokens,
        segments: stats.cache.segments,
        evicted_segments: stats.cache.evicted_segments,
        pager: (stats.pager != PagerStats::default()).then(|| paged(&stats.pager)),
    }
}

fn paged(stats: &PagerStats) -> Paged {
    Paged {
        host_copies: stats.host_copies,
        host_bytes: stats.host_bytes,
        disk_copies: stats.disk_copies,
        disk_bytes: stats.disk_bytes,
        left: stats.packed,
        came_back: stats.unpacked,
        from_disk: stats.read,
        computed_instead: stats.computed_instead,
    }
}

fn prompt_tokens(prompt: &Prompt, text: Option<&TextCodec>) -> Result<Vec<TokenId>> {
    let text = text.context("the engine has no tokenizer");
    Ok(match prompt {
        Prompt::Tokens(tokens) => tokens.clone(),
        Prompt::Text(words) => text?.encode_prompt(words)?,
        Prompt::Chat(chat) => text?.encode_chat(chat)?,
    })
}

/// `part / whole`; none of nothing is 0, for JSON knows no NaN.
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 / whole as f64,
    }
}
