//! The report as a self-contained HTML page with plots.

use std::collections::BTreeMap;
use std::time::Duration;

use super::plot::{Axis, Chart, Line, escaped, figure};
use super::{Report, table};
use crate::load_run::LoadRun;
use crate::mix::Kind;
use crate::user::{Ending, Turn};

/// Number of intervals that the time of a run is divided into.
const PARTS: usize = 60;
/// Number of points of a distribution.
const QUANTILES: usize = 200;
/// The style supports dark mode: it replaces the colours of the plots. The lines also differ in
/// their dashes.
const STYLE: &str = "\
:root { color-scheme: light dark; --text: #1b1b1b; --page: #ffffff; --grid: #dddddd;
  --c0: #0072b2; --c1: #b34a00; --c2: #007a58; --c3: #a3457f; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --page: #161616; --grid: #3a3a3a;
  --c0: #56b4e9; --c1: #ff9d4d; --c2: #3fd0a0; --c3: #e9a3cb; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
pre { overflow-x: auto; padding: 1rem; border: 1px solid var(--grid); border-radius: .4rem;
  font-size: .85rem; line-height: 1.35; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; }
figure ul { list-style: none; display: flex; flex-wrap: wrap; gap: .25rem 1rem; margin: 0; padding: 0;
  font-size: .85rem; }
figure div svg { width: 100%; height: auto; }
svg text { fill: var(--text); font-size: 12px; }
svg line, svg polyline { stroke: var(--grid); }
.key { width: 30px; height: 8px; margin-right: .4rem; vertical-align: middle; }
polyline[stroke='#0072B2'] { stroke: var(--c0); }
polyline[stroke='#B34A00'] { stroke: var(--c1); stroke-dasharray: 7 3; }
polyline[stroke='#007A58'] { stroke: var(--c2); stroke-dasharray: 2 3; }
polyline[stroke='#A3457F'] { stroke: var(--c3); stroke-dasharray: 9 3 2 3; }";

/// The run over time.
struct Course<'a> {
    /// Each kind's turns.
    kinds: BTreeMap<Kind, Vec<&'a Turn>>,
    wall: Duration,
}

/// Returns the whole page. `command` is the command line of the run.
pub(crate) fn page(report: &Report, load_run: &LoadRun, command: &str) -> String {
    let course = Course::new(load_run);
    let plots = [
        course.first_tokens(),
        course.gaps(),
        course.throughput(),
        course.queue(),
        course.cache_hits(),
    ];
    let title = match &report.url {
        Some(url) => format!("Load on {} at {url}", report.model.name),
        None => format!("Load on {}", report.model.name),
    };
    let settings = serde_json::to_string_pretty(&(&report.load, &report.engine))
        .expect("settings are plain data");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}\n</style>\n<h1>{title}</h1>\n\
         <pre>{table}</pre>\n<div class=\"plots\">\n{plots}</div>\n\
         <h2>Again</h2>\n<pre>{command}</pre>\n\
         <details><summary>All settings</summary><pre>{settings}</pre></details>\n</html>\n",
        title = escaped(&title),
        table = escaped(&table(report)),
        plots = plots.concat(),
        command = escaped(command),
        settings = escaped(&settings),
    )
}

impl<'a> Course<'a> {
    fn new(load_run: &'a LoadRun) -> Self {
        let mut kinds: BTreeMap<Kind, Vec<&Turn>> = BTreeMap::new();
        for visit in &load_run.visits {
            kinds.entry(visit.kind).or_default().extend(&visit.turns);
        }
        Self {
            kinds,
            wall: load_run.wall,
        }
    }

    fn first_tokens(&self) -> String {
        let lines = self.lines(|turns| distribution(turns.iter().filter_map(|t| t.first_token)));
        figure(&distributions("Time to the first token", lines))
    }

    fn gaps(&self) -> String {
        let lines = self.lines(|turns| distribution(turns.iter().flat_map(|t| &t.gaps).copied()));
        figure(&distributions("Time between two tokens", lines))
    }

    fn throughput(&self) -> String {
        let lines = self.lines(|turns| {
            let mut tokens = [0_u32; PARTS];
            for at in turns.iter().flat_map(|turn| token_times(turn)) {
                tokens[self.part(at)] += 1;
            }
            let seconds = self.wall.as_secs_f64() / PARTS as f64;
            self.timeline_points(tokens.map(|tokens| Some(f64::from(tokens) / seconds)))
        });
        figure(&self.timeline("Throughput", "tokens a second", None, lines))
    }

    fn queue(&self) -> String {
        let turns: Vec<&Turn> = self.kinds.values().flatten().copied().collect();
        let (mut waiting, mut answered) = ([0_u32; PARTS], [0_u32; PARTS]);
        let mut rejected = [0_u32; PARTS];
        for turn in turns {
            let ends = match turn.ending {
                Ending::Interrupted => self.wall,
                Ending::Finished(_) | Ending::Failed(_) => turn.asked_at + turn.whole,
            };
            let speaks = turn.first_token.map_or(ends, |after| turn.asked_at + after);
            for part in self.part(turn.asked_at)..=self.part(ends) {
                if part < self.part(speaks) {
                    waiting[part] += 1
                } else {
                    answered[part] += 1
                }
            }
            for at in &turn.rejected_at {
                rejected[self.part(*at)] += 1;
            }
        }
        let line = |name: &str, counts: [u32; PARTS]| Line {
            name: name.to_owned(),
            points: self.timeline_points(counts.map(|count| Some(f64::from(count)))),
        };
        let lines = vec![
            line("being answered", answered),
            line("waiting for the first token", waiting),
            line("rejected: the queue was full", rejected),
        ];
        figure(&self.timeline("Requests", "requests", None, lines))
    }

    fn cache_hits(&self) -> String {
        let lines = self.lines(|turns| {
            let mut prompts = [(0_usize, 0_usize); PARTS];
            for turn in turns {
                if let (Some(tokens), Some(cached)) = (turn.prompt_tokens, turn.cached_tokens) {
                    let part = &mut prompts[self.part(turn.asked_at)];
                    *part = (part.0 + tokens, part.1 + cached);
                }
            }
            self.timeline_points(prompts.map(|(tokens, cached)| {
                (tokens > 0).then(|| 100.0 * cached as f64 / tokens as f64)
            }))
        });
        let title = "Prompt tokens from cache, by when they were asked";
        figure(&self.timeline(title, "%", Some(100.0), lines))
    }

    /// A line for each kind of user.
    fn lines(&self, points: impl Fn(&[&Turn]) -> Vec<(f64, f64)>) -> Vec<Line> {
        let kinds = self.kinds.iter().map(|(kind, turns)| Line {
            name: kind.name().to_owned(),
            points: points(turns),
        });
        kinds.collect()
    }

    fn part(&self, at: Duration) -> usize {
        let share = at.as_secs_f64() / self.wall.as_secs_f64().max(f64::MIN_POSITIVE);
        ((share * PARTS as f64) as usize).min(PARTS - 1)
    }

    /// Places each value in the middle of its interval.
    fn timeline_points(&self, values: [Option<f64>; PARTS]) -> Vec<(f64, f64)> {
        let seconds = self.wall.as_secs_f64() / PARTS as f64;
        let points = values.into_iter().enumerate().filter_map(|(part, value)| {
            let middle = (part as f64 + 0.5) * seconds;
            Some((middle, value?))
        });
        points.collect()
    }

    fn timeline<'b>(
        &self,
        title: &'b str,
        label: &'b str,
        end: Option<f64>,
        lines: Vec<Line>,
    ) -> Chart<'b> {
        let axis = |label, end| Axis { label, end };
        Chart {
            title,
            x: axis("seconds", Some(self.wall.as_secs_f64())),
            is_x_logarithmic: false,
            y: axis(label, end),
            lines,
        }
    }
}

/// The time of each token, after the start of the run.
fn token_times(turn: &Turn) -> impl Iterator<Item = Duration> {
    let first = turn.first_token.map(|after| turn.asked_at + after);
    let gaps = turn.gaps.iter();
    first.into_iter().flat_map(move |first| {
        let later = gaps.clone().scan(first, |at, gap| {
            *at += *gap;
            Some(*at)
        });
        std::iter::once(first).chain(later)
    })
}

/// Points of a duration in milliseconds, and the percentage of durations up to it.
fn distribution(durations: impl Iterator<Item = Duration>) -> Vec<(f64, f64)> {
    let mut sorted: Vec<f64> = durations
        .map(|duration| duration.as_secs_f64() * 1e3)
        .collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return Vec::new();
    };
    (0..=QUANTILES)
        .map(|quantile| {
            let rank = last * quantile / QUANTILES;
            (sorted[rank], 100.0 * quantile as f64 / QUANTILES as f64)
        })
        .collect()
}

fn distributions(title: &str, lines: Vec<Line>) -> Chart<'_> {
    Chart {
        title,
        x: Axis {
            label: "milliseconds",
            end: None,
        },
        is_x_logarithmic: true,
        y: Axis {
            label: "% that took no longer",
            end: Some(100.0),
        },
        lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_rise_from_the_least_to_the_most() {
        let points = distribution([3, 1, 2].into_iter().map(Duration::from_millis));
        assert_eq!(points.first(), Some(&(1.0, 0.0)));
        assert_eq!(points.last(), Some(&(3.0, 100.0)));
        assert!(points.is_sorted());
        assert_eq!(distribution([].into_iter()), []);
    }
}
