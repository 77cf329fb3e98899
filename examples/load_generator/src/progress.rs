//! Progress bars on standard error, shown only if that is a terminal.

use std::fmt::Write;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use motet::EngineStats;

use crate::byte_size;

/// The interval at which a spinner turns.
const SPIN_INTERVAL: Duration = Duration::from_millis(100);

/// The place where the bars are drawn, if they are drawn.
#[derive(Debug)]
pub(crate) struct Progress {
    bars: MultiProgress,
}

/// The bars of a run.
#[derive(Clone, Debug)]
pub(crate) struct RunBars {
    requests: ProgressBar,
    tokens: ProgressBar,
    engine: ProgressBar,
}

impl Progress {
    pub(crate) fn new(quiet: bool) -> Self {
        let bars = if quiet {
            MultiProgress::with_draw_target(ProgressDrawTarget::hidden())
        } else {
            MultiProgress::new()
        };
        Self { bars }
    }

    /// A spinner that turns until it is finished or dropped.
    pub(crate) fn spinner(&self, what: &'static str) -> ProgressBar {
        let spinner = self.bars.add(ProgressBar::new_spinner());
        spinner.set_message(what);
        spinner.enable_steady_tick(SPIN_INTERVAL);
        spinner
    }

    /// The bars of a run of this many requests and at most this many reply tokens.
    pub(crate) fn run(&self, requests: usize, reply_tokens: usize) -> RunBars {
        let bar = |length: usize, template: &str| {
            let style = ProgressStyle::with_template(template).expect("a template that parses");
            let style = style.progress_chars("━╸ ").with_key("rate", rate);
            self.bars
                .add(ProgressBar::new(length as u64).with_style(style))
        };
        let bars = RunBars {
            requests: bar(
                requests,
                "requests {bar:40} {human_pos}/{human_len}  {elapsed}",
            ),
            tokens: bar(
                reply_tokens,
                "tokens   {bar:40} {human_pos}/{human_len}  {rate}",
            ),
            engine: bar(0, "         {msg}"),
        };
        bars.requests.enable_steady_tick(SPIN_INTERVAL);
        bars
    }
}

impl RunBars {
    /// Counts one more token of a reply.
    pub(crate) fn token(&self) {
        self.tokens.inc(1);
    }

    /// Counts a finished turn, which left `tokens_unused` tokens of its reply unused.
    pub(crate) fn turn_finished(&self, tokens_unused: usize) {
        self.requests.inc(1);
        self.tokens.dec_length(tokens_unused as u64);
    }

    /// Shows the engine's current figures.
    pub(crate) fn show_stats(&self, stats: &EngineStats) {
        let prompt_tokens = stats.prompt_tokens.max(1) as f64;
        self.engine.set_message(format!(
            "{} running, {} waiting, {:.0} % of prompts from cache, {} cached",
            stats.running,
            stats.waiting,
            100.0 * stats.cached_tokens as f64 / prompt_tokens,
            byte_size::of(stats.cache.sealed_bytes + stats.cache.reserved_bytes),
        ));
    }

    /// Removes the bars.
    pub(crate) fn clear(&self) {
        for bar in [&self.requests, &self.tokens, &self.engine] {
            bar.finish_and_clear();
        }
    }
}

fn rate(state: &ProgressState, output: &mut dyn Write) {
    write!(output, "{:.0} a second", state.per_sec()).expect("writing to the bar does not fail");
}
