//! Output for the user: one line for each task, with progress on a terminal and plain lines
//! elsewhere.

use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

/// Interval at which a running task prints a line where there is no terminal to redraw.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// A task in progress. [`Task::done`] ends it; a task that is dropped has failed, and its last
/// progress stays on the terminal.
#[derive(Debug)]
pub struct Task {
    label: String,
    started: Instant,
    last_printed: Instant,
    /// Hidden where there is no terminal.
    line: ProgressBar,
}

impl Task {
    /// Shows the task's name.
    #[must_use]
    pub fn start(label: impl Into<String>) -> Self {
        let now = Instant::now();
        let target = if std::env::var_os("CI").is_none() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let style = ProgressStyle::with_template("  {prefix}: {msg}").expect("a template");
        let task = Self {
            label: label.into(),
            started: now,
            last_printed: now,
            line: ProgressBar::with_draw_target(None, target)
                .with_style(style)
                .with_finish(ProgressFinish::Abandon),
        };
        task.line.set_prefix(task.label.clone());
        task.line.set_message("…");
        if task.line.is_hidden() {
            eprintln!("  {} …", task.label);
        }
        task
    }

    /// Shows the task's progress.
    pub fn progress(&mut self, text: &str) {
        self.line.set_message(text.to_owned());
        if self.line.is_hidden() && self.last_printed.elapsed() >= PLAIN_INTERVAL {
            self.last_printed = Instant::now();
            eprintln!("  {}: {text}", self.label);
        }
    }

    /// Shows that the task has ended.
    pub fn done(self) {
        let text = format!("done in {}", duration(self.started.elapsed()));
        if self.line.is_hidden() {
            eprintln!("  {}: {text}", self.label);
        }
        self.line.finish_with_message(text);
    }
}

/// Time of each stage of a command.
#[derive(Default)]
pub(crate) struct Timings(Vec<(String, Duration, bool)>);

impl Timings {
    /// Runs a stage and notes its time, whether it succeeds or not.
    pub(crate) fn time<T>(
        &mut self,
        name: impl Into<String>,
        stage: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let started = Instant::now();
        let result = stage();
        self.0
            .push((name.into(), started.elapsed(), result.is_ok()));
        result
    }

    /// One line for each stage, and the total.
    pub(crate) fn table(&self) -> String {
        let mut table = format!("{:<26} {:>12}\n", "stage", "time");
        for (name, time, succeeded) in &self.0 {
            let mark = if *succeeded { "" } else { "  FAILED" };
            table.push_str(&format!("{name:<26} {:>12}{mark}\n", duration(*time)));
        }
        let total: Duration = self.0.iter().map(|(_, time, _)| *time).sum();
        table + &format!("{:<26} {:>12}\n", "total", duration(total))
    }
}

/// Prints the heading of the next part.
pub fn heading(text: &str) {
    eprintln!("==> {text}");
}

/// Prints a line that belongs to no task.
pub fn note(text: &str) {
    eprintln!("  {text}");
}

/// Prints the error of a failed command, as its last output.
pub fn failure(error: &anyhow::Error) {
    eprintln!("\nerror: {error:#}");
}

/// `350 ms`, `4.2 s`, `3 min 05 s`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        _ => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

/// `12.30 MB`, in powers of ten as registries count.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    DecimalBytes(bytes).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        for (millis, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (4_200, "4.2 s"),
            (59_940, "59.9 s"),
            (185_000, "3 min 05 s"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_failed_stage_stands_out_in_the_table() {
        let mut timings = Timings::default();
        timings.time("fine", || Ok(())).unwrap();
        assert!(
            timings
                .time::<()>("broken", || anyhow::bail!("no"))
                .is_err()
        );
        let marked: Vec<String> = timings
            .table()
            .lines()
            .filter(|line| line.contains("FAILED"))
            .map(String::from)
            .collect();
        assert!(
            matches!(&marked[..], [line] if line.starts_with("broken")),
            "{marked:?}"
        );
    }
}
