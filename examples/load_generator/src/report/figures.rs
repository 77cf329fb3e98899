//! Computes a [`Report`] from the users' results and the engine's counters.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use motet::cache::PagerStats;
use motet::request::Prompt;
use motet::text::TextCodec;
use motet::{EngineStats, TokenId};

use super::{
    Computed, KindFigures, Latency, Memory, ModelFigures, Paged, Percentiles, Report, Requests,
    Restored, Steps, Tokens,
};
use crate::arguments::Arguments;
use crate::distinct;
use crate::load_run::{EngineReport, LoadRun};
use crate::load_target::LoadTarget;
use crate::mix::Kind;
use crate::user::{Completeness, Ending, Turn, Visit};

impl Report {
    /// Computes the figures. Tokenises all prompts once more, so it takes a moment.
    ///
    /// # Errors
    ///
    /// Fails when a prompt that the engine could tokenise cannot be tokenised here.
    pub(crate) fn new(
        arguments: &Arguments,
        load_target: &LoadTarget,
        load_seconds: f64,
        load_run: &LoadRun,
    ) -> Result<Self> {
        let turns: Vec<&Turn> = load_run.visits.iter().flat_map(|v| &v.turns).collect();
        let mut tokens = tokens(&turns, load_run.wall);
        let mut memory = None;
        if let (Some(engine), Some(engine_report)) = (load_target.engine(), &load_run.engine) {
            let stats = &engine_report.stats;
            let computed = computed(&turns, engine.text(), stats)?;
            let token_bytes = engine.model().token_bytes();
            let needed_bytes = computed.distinct * token_bytes;
            memory = Some(self::memory(engine_report, arguments.oracle, needed_bytes));
            tokens.prompt = stats.prompt_tokens;
            tokens.prompt_from_cache = stats.cached_tokens;
            tokens.computed = Some(computed);
        }
        tokens.prompt_from_cache_share = share(tokens.prompt_from_cache, tokens.prompt);
        Ok(Self {
            load: arguments.load.clone(),
            engine: load_target.engine().map(|_| arguments.engine.clone()),
            url: arguments.server.url.clone(),
            model: ModelFigures {
                name: load_target.model().to_owned(),
                simulated: arguments.oracle,
                load_seconds,
            },
            wall_seconds: load_run.wall.as_secs_f64(),
            interrupted: load_run.interrupted,
            requests: requests(load_run.planned, &turns),
            latency: latency(&turns),
            kinds: kinds(&load_run.visits),
            tokens,
            steps: load_run
                .engine
                .as_ref()
                .map(|engine_report| steps(&engine_report.stats)),
            memory,
            client_late_p90_ms: Percentiles::of(load_run.late.iter().copied())
                .map_or(0.0, |late| late.p90_ms),
        })
    }
}

fn requests(planned: usize, turns: &[&Turn]) -> Requests {
    let mut requests = Requests {
        planned,
        rejections: turns.iter().map(|turn| turn.rejected_at.len() as u64).sum(),
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

fn is_finished(turn: &Turn) -> bool {
    matches!(turn.ending, Ending::Finished(_))
}

fn latency(turns: &[&Turn]) -> Latency {
    let finished = turns.iter().filter(|turn| is_finished(turn));
    Latency {
        first_token: Percentiles::of(turns.iter().filter_map(|turn| turn.first_token)),
        between_tokens: Percentiles::of(turns.iter().flat_map(|turn| &turn.gaps).copied()),
        whole_reply: Percentiles::of(finished.map(|turn| turn.whole)),
    }
}

fn kinds(visits: &[Visit]) -> Vec<KindFigures> {
    let mut by_kind: BTreeMap<Kind, Vec<&Visit>> = BTreeMap::new();
    for visit in visits {
        by_kind.entry(visit.kind).or_default().push(visit);
    }
    let figures = by_kind.into_iter().map(|(kind, visits)| {
        let turns: Vec<&Turn> = visits.iter().flat_map(|visit| &visit.turns).collect();
        KindFigures {
            kind,
            users: visits.len(),
            finished: turns.iter().filter(|turn| is_finished(turn)).count(),
            output_tokens: turns.iter().map(|turn| turn.output_tokens).sum(),
            latency: latency(&turns),
        }
    });
    figures.collect()
}

/// The token counts that the users know.
fn tokens(turns: &[&Turn], wall: Duration) -> Tokens {
    let output = turns.iter().map(|turn| turn.output_tokens).sum();
    let sum = |of: fn(&Turn) -> Option<usize>| -> u64 {
        turns.iter().filter_map(|turn| of(turn)).sum::<usize>() as u64
    };
    Tokens {
        output,
        output_per_second: output as f64 / wall.as_secs_f64(),
        prompt: sum(|turn| turn.prompt_tokens),
        prompt_from_cache: sum(|turn| turn.cached_tokens),
        prompt_from_cache_share: 0.0,
        computed: None,
    }
}

fn computed(turns: &[&Turn], text: Option<&TextCodec>, stats: &EngineStats) -> Result<Computed> {
    let mut prompts = Vec::new();
    let mut sequences = Vec::new();
    // A request that never started had nothing to compute.
    for turn in turns.iter().filter(|turn| turn.first_token.is_some()) {
        let prompt = prompt_tokens(&turn.prompt, text)?;
        let computed = match turn.ending {
            // The reply's last token was sampled, but never evaluated.
            Ending::Finished(Completeness::Full) => turn.reply_tokens.split_last(),
            _ => None,
        };
        let reply = computed.map_or(&*turn.reply_tokens, |(_, before)| before);
        sequences.push([&*prompt, reply].concat());
        prompts.push(prompt);
    }
    let all = distinct::count(sequences);
    let of_prompts = distinct::count(prompts);
    let again = stats.evaluated_tokens.saturating_sub(all.tokens as u64);
    Ok(Computed {
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
fn memory(engine_report: &EngineReport, counts_state: bool, needed_bytes: usize) -> Memory {
    let stats = &engine_report.stats;
    let (held, held_max) = if counts_state {
        (
            stats.device_memory.active_bytes,
            stats.device_memory.peak_bytes,
        )
    } else {
        (stats.cache.sealed_bytes, engine_report.cached_bytes_max)
    };
    Memory {
        device_peak_bytes: stats.device_memory.peak_bytes,
        cached_bytes: stats.cache.sealed_bytes,
        cached_bytes_max: engine_report.cached_bytes_max,
        needed_bytes,
        held_by_needed: share(held as u64, needed_bytes as u64),
        held_max_by_needed: share(held_max as u64, needed_bytes as u64),
        cached_tokens: stats.cache.cached_tokens,
        segments: stats.cache.segments,
        evicted_segments: stats.cache.evicted_segments,
        restore: stats.cache.restore.map(|restore| Restored {
            taken: restore.taken,
            given_up: restore.given_up,
            snapshots: restore.snapshots,
            snapshot_bytes: restore.snapshot_bytes,
            prompts: restore.prompts,
            resumed_share: share(restore.resumed, restore.prompts),
            recomputed_tokens: restore.recomputed_tokens,
        }),
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
        _ => anyhow::bail!("a prompt of an unknown kind: {prompt:?}"),
    })
}

/// `part / whole`; 0 if `whole` is 0, as JSON has no NaN.
fn share(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 / whole as f64,
    }
}
