use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::Parser;
use motet::config::EvictionPolicy;

use crate::replay::arguments::Arguments;
use crate::replay::optimum::Paths;
use crate::replay::trace::{self, Request, Trace};
use crate::replay::{cache, plot, replay_all, synthetic};

/// A temporary file of these lines. Dropping it removes the file.
struct Lines(PathBuf);

impl Lines {
    fn new(text: &str) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("motet-trace-replay-{}-{number}.jsonl", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("the temporary folder is writable");
        Self(path)
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // A temporary file that stays behind does no harm.
        drop(std::fs::remove_file(&self.0));
    }
}

fn blocks(prompts: &[&[u32]]) -> Trace {
    let prompts = prompts.iter();
    Trace {
        name: "small".to_owned(),
        requests: prompts
            .map(|blocks| Request::from_blocks(blocks.to_vec()))
            .collect(),
    }
}

#[track_caller]
fn fails(text: &str, expected: &str) {
    let lines = Lines::new(text);
    let error = trace::read(&lines.0).expect_err("it is not a trace");
    let path = lines.0.display().to_string();
    assert_eq!(error.to_string().replace(&path, "X"), expected);
}

#[test]
fn errors_name_file_line_and_field() {
    let good = r#"{"hash_ids": [1, 2]}"#;
    fails(
        "",
        "X holds no requests; expected JSON lines, a folder of .jsonl files, or a .csv file",
    );
    fails(&format!("{good}\n{{"), "line 2 of X is not JSON");
    fails(
        &format!("{good}\n\n{{\"timestamp\": 1}}"),
        "line 3 of X: field `hash_ids` is missing",
    );
    let blocks = "expected an array of whole numbers that is not empty";
    fails(
        r#"{"hash_ids": []}"#,
        &format!("line 1 of X: field `hash_ids` is []; {blocks}"),
    );
    fails(
        r#"{"hash_ids": [1, -2]}"#,
        &format!("line 1 of X: field `hash_ids` is -2; {blocks}"),
    );
    fails(
        r#"{"input": "a"}"#,
        "line 1 of X: field `output` is missing",
    );
    fails(
        r#"{"input": 3, "output": ""}"#,
        "line 1 of X: field `input` is 3; expected a text",
    );
    fails(
        r#"{"hash_ids": [1], "timestamp": "now"}"#,
        "line 1 of X: field `timestamp` is \"now\"; expected a number",
    );
    fails(
        r#"{"hash_ids": [1], "output_length": -1}"#,
        "line 1 of X: field `output_length` is -1; expected a number of tokens",
    );
    let missing = trace::read("/no/such/file".as_ref()).expect_err("there is none");
    assert_eq!(missing.to_string(), "cannot read /no/such/file");
}

#[test]
fn lines_are_sorted_by_time_and_texts_cut_into_words() {
    let lines = Lines::new(
        "{\"timestamp\": 2, \"hash_ids\": [70, 80]}\n{\"timestamp\": 1, \"hash_ids\": [70]}\n",
    );
    let trace = trace::read(&lines.0).unwrap();
    assert_eq!(trace.requests, blocks(&[&[0], &[0, 1]]).requests);
    let lines = Lines::new("{\"input\": \"to be or to\", \"output\": \"be \"}");
    let trace = trace::read(&lines.0).unwrap();
    let published: Vec<_> = trace.requests[0].published().collect();
    assert_eq!(published, [0, 1, 2, 3, 1]);
}

#[test]
fn the_replay_finds_what_is_cached() {
    // The four requests find 0, 1, 2 and 3 blocks: 6 of 12.
    let trace = blocks(&[&[0, 1, 2], &[0, 3], &[0, 1, 4], &[0, 1, 4, 5]]);
    for eviction in [EvictionPolicy::Lru, EvictionPolicy::Foresight] {
        let outcome = cache::replay(&trace, 100, eviction, || {});
        assert_eq!((outcome.asked_tokens, outcome.hit_tokens), (12, 6));
    }
    let paths = Paths::new(&trace);
    assert_eq!(paths.distinct_tokens(), 6);
    assert_eq!(paths.unbounded_hit_percent(), 50.0);
}

#[test]
fn the_optimum_keeps_what_is_used_next() {
    let trace = blocks(&[&[1], &[2], &[3], &[1], &[2], &[3], &[1]]);
    let lru = cache::replay(&trace, 2, EvictionPolicy::Lru, || {});
    assert_eq!(lru.hit_tokens, 0);
    // The optimum keeps 1 and 2 past 3, and then 1.
    assert_eq!(Paths::new(&trace).optimum(2, || {}).hit_tokens, 3);
}

#[test]
fn a_prompt_longer_than_the_cache_finds_nothing() {
    let trace = blocks(&[&[1, 2, 3, 4], &[1, 2, 3, 4], &[5], &[5]]);
    let outcome = cache::replay(&trace, 2, EvictionPolicy::Lru, || {});
    assert_eq!((outcome.requests, outcome.hit_tokens), (4, 1));
}

#[test]
fn the_table_the_picture_and_the_names_agree() {
    let arguments = [
        "trace_replay",
        "--synthetic",
        "recent",
        "--capacity",
        "50,100",
        "-q",
    ];
    let arguments = Arguments::try_parse_from(arguments).unwrap();
    let trace = Trace {
        name: "a < b".to_owned(),
        ..blocks(&[&[1, 2], &[1, 2, 3], &[1, 4], &[1, 2, 3]])
    };
    let report = replay_all(&[trace], &arguments);
    assert_eq!(report.traces[0].rows.len(), 6);
    assert!(report.to_string().contains("foresight against lru"));
    let picture = plot::svg(&report);
    assert!(picture.contains("a &lt; b") && picture.contains("optimum"));
    for name in synthetic::names() {
        assert!(!synthetic::named(name).is_empty(), "{name} makes requests");
    }
    assert!(synthetic::named("no such").is_empty());
    let rejected = ["trace_replay", "--trace", "x", "--capacity", "0"];
    assert!(Arguments::try_parse_from(rejected).is_err());
    assert!(Arguments::try_parse_from(["trace_replay"]).is_err());
}
