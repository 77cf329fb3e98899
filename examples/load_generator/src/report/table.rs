//! The report as a plain-text table.

use std::fmt::Write;

use super::layout::{bar, counted, duration, paragraph, thousands};
use super::{Computed, KindFigures, Memory, Paged, Percentiles, Report, Restored, Steps};
use crate::arguments::Load;
use crate::byte_size;

/// Most rows of the histogram of batch sizes; more sizes share rows.
const HISTOGRAM_ROWS: usize = 16;
/// This program's own delay is reported from this value on, in milliseconds and as a share
/// of the time between two tokens.
const LATE_MS_MIN: f64 = 5.0;
const LATE_SHARE_MIN: f64 = 0.1;
/// Columns of the histogram's longest bar.
const BAR_COLUMNS: usize = 56;

/// The report as a table, 80 columns wide.
pub(crate) fn table(report: &Report) -> String {
    let memory = report
        .memory
        .as_ref()
        .map(|figures| memory(report, figures));
    let parts = [
        Some(workload_rows(report)),
        Some(requests(report)),
        Some(latencies(report)),
        (report.kinds.len() > 1).then(|| kinds(&report.kinds)),
        Some(tokens(report)),
        memory,
        report.steps.as_ref().map(histogram),
        lateness(report),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    parts.join("\n")
}

fn workload_rows(report: &Report) -> String {
    let load = &report.load;
    let model = match (&report.url, report.model.simulated) {
        (Some(url), _) => format!("{} at {url}", report.model.name),
        (None, true) => "the oracle on a simulated device: no language model".to_owned(),
        (None, false) => format!(
            "{}, loaded in {:.1} s",
            report.model.name, report.model.load_seconds
        ),
    };
    row("Load", &describe_users(load)) + &row("", &describe_load(load)) + &row("Model", &model)
}

fn describe_users(load: &Load) -> String {
    if let Some(path) = &load.trace.trace {
        return format!("the requests of {}", path.display());
    }
    let users = counted(load.mix().kinds().len() as u64, "user");
    let users = match &load.mix {
        Some(mix) => format!("{users} ({mix})"),
        None => users,
    };
    match load.unique_words {
        Some(words) => format!(
            "{users}, each with {} of its own",
            counted(words as u64, "word")
        ),
        None => format!(
            "{users}, {} each, system prompt of {}",
            counted(load.turns as u64, "turn"),
            counted(load.system_words as u64, "word")
        ),
    }
}

fn describe_load(load: &Load) -> String {
    match load.trace.trace {
        Some(_) => format!(
            "{} times as fast, lengths times {}, seed {}",
            load.trace.trace_speed, load.trace.trace_scale, load.seed
        ),
        None => format!(
            "replies of at most {}, arrivals {}, seed {}",
            counted(load.reply_tokens as u64, "token"),
            load.arrivals,
            load.seed
        ),
    }
}

fn requests(report: &Report) -> String {
    let requests = &report.requests;
    let wall = report.wall_seconds;
    let mut rows = row(
        "Requests",
        &format!(
            "{} of {} finished in {wall:.2} s, {:.2} a second",
            thousands(requests.finished as u64),
            thousands(requests.planned as u64),
            requests.finished as f64 / wall
        ),
    );
    if report.interrupted {
        let under_way = thousands(requests.interrupted as u64);
        let text = format!("the run was interrupted while {under_way} were under way");
        rows += &row("", &text);
    }
    if requests.rejections > 0 {
        let times = counted(requests.rejections, "time");
        rows += &row("", &format!("the queue was full {times}"));
    }
    for (error, count) in &requests.errors {
        let text = format!("{} failed: {error}", thousands(*count as u64));
        rows += &row("", &text);
    }
    let text = format!(
        "{}, {:.1} a second",
        counted(report.tokens.output as u64, "token"),
        report.tokens.output_per_second
    );
    rows + &row("Output", &text)
}

fn latencies(report: &Report) -> String {
    let latency = &report.latency;
    line("Latency", ["p50", "p90", "p99", "max"].map(str::to_owned))
        + &line("  to the first token", cells(&latency.first_token))
        + &line("  between two tokens", cells(&latency.between_tokens))
        + &line("  of the whole reply", cells(&latency.whole_reply))
}

fn kinds(kinds: &[KindFigures]) -> String {
    let kinds = kinds.iter().map(|kind| {
        let users = counted(kind.users as u64, "user");
        line(
            &format!("{}, {users}", kind.kind.name()),
            ["p50", "p90", "p99", "max"].map(str::to_owned),
        ) + &line("  to the first token", cells(&kind.latency.first_token))
            + &line("  between two tokens", cells(&kind.latency.between_tokens))
    });
    kinds.collect()
}

fn line(name: &str, cells: [String; 4]) -> String {
    let mut line = format!("{name:<24}");
    for cell in cells {
        write!(line, "{cell:>13}").expect("writing to a string does not fail");
    }
    line + "\n"
}

fn cells(measured: &Option<Percentiles>) -> [String; 4] {
    match measured {
        Some(p) => [p.p50_ms, p.p90_ms, p.p99_ms, p.max_ms].map(duration),
        None => ["–"; 4].map(str::to_owned),
    }
}

/// Warns if the latencies may be due to this program's own delays.
fn lateness(report: &Report) -> Option<String> {
    let late = report.client_late_p90_ms;
    let gap = report.latency.between_tokens.as_ref()?.p50_ms;
    let matters = late > LATE_MS_MIN && late > LATE_SHARE_MIN * gap;
    matters.then(|| {
        let text = format!(
            "this program itself was late by {} or more in one of ten moments: latencies \
             are partly its own. Give it a processor, or run it on another machine",
            duration(late)
        );
        row("Warning", &text)
    })
}

fn tokens(report: &Report) -> String {
    let tokens = &report.tokens;
    let prompts = match tokens.prompt {
        0 => "the server reports no usage".to_owned(),
        prompt => format!(
            "{}, {:.1} % of them served from cache",
            counted(prompt, "token"),
            100.0 * tokens.prompt_from_cache_share
        ),
    };
    let computed = tokens.computed.as_ref();
    row("Prompts", &prompts) + &computed.map_or_else(String::new, |c| self::computed(report, c))
}

fn computed(report: &Report, computed: &Computed) -> String {
    let distinct = format!(
        "{} in the prompts, {} with the replies",
        counted(computed.prompt_distinct as u64, "token"),
        thousands(computed.distinct as u64)
    );
    let evaluated = format!(
        "{}, {:.3} for each distinct one",
        counted(computed.evaluated, "token"),
        computed.evaluated as f64 / computed.distinct.max(1) as f64
    );
    let mut rows = row("Distinct", &distinct) + &row("Evaluated", &evaluated);
    if computed.shared_start_computed_once {
        let start = counted(computed.shared_start as u64, "token");
        let load = &report.load;
        let has_system_prompt = load.unique_words.is_none()
            && load.mix.is_none()
            && load.trace.trace.is_none()
            && load.system_words > 0;
        let what = if has_system_prompt {
            format!("the shared system prompt ({start}) was computed once")
        } else {
            format!("what all prompts begin with ({start}) was computed once")
        };
        rows += &row("", &what);
    }
    rows
}

fn restore_rows(restore: &Restored) -> String {
    let points = format!(
        "{} taken, {} given up; {} of {} held",
        restore.taken,
        restore.given_up,
        counted(restore.snapshots as u64, "snapshot"),
        byte_size::of(restore.snapshot_bytes)
    );
    let resumed = format!(
        "{:.1} % of {} resumed; {} computed again",
        100.0 * restore.resumed_share,
        counted(restore.prompts, "prompt"),
        counted(restore.recomputed_tokens, "token")
    );
    row("Restore points", &points) + &row("", &resumed)
}

fn memory(report: &Report, memory: &Memory) -> String {
    let cached = format!(
        "{} for {} in {}; {} at most",
        byte_size::of(memory.cached_bytes),
        counted(memory.cached_tokens as u64, "token"),
        counted(memory.segments as u64, "segment"),
        byte_size::of(memory.cached_bytes_max)
    );
    let mut rows = row("Cached state", &cached);
    let needed = format!(
        "{:.3} times what distinct tokens need; {:.3} at most",
        memory.held_by_needed, memory.held_max_by_needed
    );
    rows += &row("", &needed);
    if memory.evicted_segments > 0 {
        let evicted = counted(memory.evicted_segments, "segment");
        rows += &row("", &format!("{evicted} evicted"));
    }
    if let Some(restore) = &memory.restore {
        rows += &restore_rows(restore);
    }
    if let Some(pager) = &memory.pager {
        rows += &pager_rows(pager);
    }
    let busy_seconds = report
        .steps
        .as_ref()
        .map_or(0.0, |steps| steps.device_busy_seconds);
    let device = format!(
        "{} at the peak, busy {:.1} % of the time",
        byte_size::of(memory.device_peak_bytes),
        // The last step may end a moment after the last user has finished.
        (100.0 * busy_seconds / report.wall_seconds).min(100.0)
    );
    rows + &row("Device memory", &device)
}

/// The number of steps by batch size, in at most [`HISTOGRAM_ROWS`] rows.
fn histogram(steps: &Steps) -> String {
    if steps.count == 0 {
        return String::new();
    }
    let title = format!(
        "Batch size: sequences in each of {}, {:.1} in the mean\n",
        counted(steps.count, "step"),
        steps.sequences_mean
    );
    let sizes_a_row = steps.by_sequences.len().div_ceil(HISTOGRAM_ROWS).max(1);
    let rows = || steps.by_sequences.chunks(sizes_a_row);
    let highest = rows().map(|row| row.iter().sum()).max().unwrap_or(0);
    let mut text = title;
    for (number, sizes) in rows().enumerate() {
        let first = number * sizes_a_row + 1;
        let last = first + sizes.len() - 1;
        let name = if first == last {
            first.to_string()
        } else {
            format!("{first}–{last}")
        };
        let count: u64 = sizes.iter().sum();
        let bar = bar(count, highest, BAR_COLUMNS);
        let line = format!("{name:>9} {:>9}  {bar}", thousands(count));
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn pager_rows(pager: &Paged) -> String {
    let describe_copies = |copies, bytes| {
        format!(
            "{} in {}",
            byte_size::of(bytes),
            counted(copies as u64, "segment")
        )
    };
    let mut rows = row(
        "Beside device",
        &format!(
            "{} of host memory",
            describe_copies(pager.host_copies, pager.host_bytes)
        ),
    );
    if pager.disk_copies > 0 {
        let disk = format!(
            "{} on disk",
            describe_copies(pager.disk_copies, pager.disk_bytes)
        );
        rows += &row("", &disk);
    }
    let moved = format!(
        "{} offloaded, {} loaded ({} from disk), {} times computed instead",
        thousands(pager.left),
        thousands(pager.came_back),
        thousands(pager.from_disk),
        thousands(pager.computed_instead)
    );
    rows + &row("", &moved)
}

fn row(name: &str, text: &str) -> String {
    paragraph(&format!("{name:<16}"), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_batch_sizes_share_rows() {
        let check = |sizes: usize, rows: usize, last: &str| {
            let steps = Steps {
                count: sizes as u64,
                sequences_mean: 1.0,
                by_sequences: vec![1; sizes],
                device_busy_seconds: 0.0,
            };
            let text = histogram(&steps);
            let lines: Vec<&str> = text.lines().skip(1).collect();
            assert_eq!(lines.len(), rows);
            let name = lines.last().and_then(|line| line.split_whitespace().next());
            assert_eq!(name.unwrap_or_default(), last);
        };
        check(0, 0, "");
        check(1, 1, "1");
        check(16, 16, "16");
        check(17, 9, "17");
        check(64, 16, "61–64");
    }
}
