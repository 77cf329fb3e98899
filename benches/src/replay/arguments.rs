//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Parser, ValueEnum};
use motet::config::EvictionPolicy;

/// Replays traces of requests through the cache and reports the hit rates.
///
/// The hit rate is the number of tokens found as a contiguous prefix, divided by the
/// number of tokens asked for. The optimum knows the future (Bélády's rule, contiguous
/// prefixes).
#[derive(Debug, Parser)]
#[command(name = "trace_replay", max_term_width = 80)]
#[command(group = ArgGroup::new("traces").required(true).multiple(true))]
pub(crate) struct Arguments {
    /// A file of JSON lines, or a folder of such files that form one trace
    ///
    /// A line has either `hash_ids` (numbers, one for each block of its prompt) or
    /// `input` and `output` (texts). Lines are sorted by `timestamp`, if they have one.
    /// May be given several times.
    #[arg(long, value_name = "PATH", group = "traces")]
    pub(crate) trace: Vec<PathBuf>,

    /// A synthetic trace by name, or `all`
    #[arg(long, value_name = "NAME", group = "traces", value_delimiter = ',')]
    pub(crate) synthetic: Vec<String>,

    /// Capacities, in percent of the trace's distinct tokens (blocks, for hash ids)
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_value = "2,5,10,20",
          value_parser = percent)]
    pub(crate) capacity: Vec<f64>,

    /// Capacities in tokens instead
    #[arg(long, value_name = "TOKENS", value_delimiter = ',')]
    pub(crate) capacity_tokens: Vec<usize>,

    /// Eviction policies
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "lru,foresight,optimum"
    )]
    pub(crate) policy: Vec<Policy>,

    /// Also plot hit rate against capacity to this file
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    pub(crate) plot: Option<PathBuf>,

    /// Also write all figures to this file, as JSON
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub(crate) json: Option<PathBuf>,

    /// No progress bar
    #[arg(long, short, help_heading = "Output")]
    pub(crate) quiet: bool,
}

/// An eviction policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Evicts the least recently used
    Lru,
    /// Evicts the smallest chance of reuse, learned from the trace so far
    Foresight,
    /// Evicts the latest next use, known from the whole trace
    Optimum,
}

impl Policy {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Foresight => "foresight",
            Self::Optimum => "optimum",
        }
    }

    /// The cache's policy; the optimum is not one that the cache has.
    pub(crate) fn eviction(self) -> EvictionPolicy {
        match self {
            Self::Lru => EvictionPolicy::Lru,
            Self::Foresight | Self::Optimum => EvictionPolicy::Foresight,
        }
    }
}

impl Arguments {
    /// The capacities for a trace: in percent, if given so, and in tokens.
    pub(crate) fn of(&self, distinct_tokens: usize) -> Vec<(f64, usize)> {
        let share = |tokens: usize| 100.0 * tokens as f64 / distinct_tokens.max(1) as f64;
        if !self.capacity_tokens.is_empty() {
            let tokens = self.capacity_tokens.iter();
            return tokens.map(|tokens| (share(*tokens), *tokens)).collect();
        }
        let tokens = |percent: f64| (distinct_tokens as f64 * percent / 100.0) as usize;
        let percents = self.capacity.iter();
        percents
            .map(|percent| (*percent, tokens(*percent).max(1)))
            .collect()
    }

    pub(crate) fn capacities(&self) -> usize {
        match self.capacity_tokens.len() {
            0 => self.capacity.len(),
            tokens => tokens,
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 100.0 => Ok(percent),
        _ => Err("expected a number above 0 and at most 100".to_owned()),
    }
}
