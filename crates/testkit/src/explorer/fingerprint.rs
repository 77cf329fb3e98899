//! A state's fingerprint: a hash of its description in which names and clock values are
//! replaced by their ranks.
//!
//! It does not matter whether a segment is the third or the thirtieth, nor at what time an
//! operation started; only the order of two matters. Each number that is a name, a logical time
//! or a time is therefore replaced by its rank among those of its kind. Sums that are only
//! displayed are left out.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

/// Text before numbers that are names, never used twice.
const NAMES: [&str; 6] = ["seg", "slot", "copy", "pin", "NodeKey", "SequenceKey"];
/// Fields with logical times of one counter; each list is a counter of its own.
const COUNTERS: [&[&str]; 3] = [
    &["last_use", "tick", "order", "evictable", "unwritten"],
    &[
        "asked",
        "memory_freed_by",
        "last_reset",
        "probe_message",
        "barriers",
        "pending_commands",
    ],
    &["fence", "fences"],
];
/// Fields that make no difference for later events, or none here.
const LEFT_OUT: [&str; 23] = [
    "evicted_segments",
    "evicted_tokens",
    "asked_tokens",
    "hit_tokens",
    "hits",
    "opened",
    "segments_made",
    "fences_made",
    "made",
    "stats",
    "restores",
    "rate",
    "cost",
    "takes",
    "ends_at",
    "device_idle",
    "preempted",
    "queue_scanned_at",
    "start_interval",
    "started_at",
    "queued_for",
    "spec",
    "config",
];
/// The kind of durations, after those of names and counters.
const TIMES: usize = NAMES.len() + COUNTERS.len();

enum Part {
    /// The hash of literal text.
    Text(u64),
    /// A number that is replaced by its rank.
    Ranked { kind: usize, value: u128 },
}

/// The fingerprint of a state's `{:?}` text.
pub(super) fn fingerprint(text: &str) -> u64 {
    let parts = Reader::new(text).read();
    let mut values: Vec<Vec<u128>> = vec![Vec::new(); TIMES + 1];
    for part in &parts {
        if let Part::Ranked { kind, value } = part {
            values[*kind].push(*value);
        }
    }
    for values in &mut values {
        values.sort_unstable();
        values.dedup();
    }
    let mut hasher = FxHasher::default();
    for part in &parts {
        match part {
            Part::Text(hash) => hash.hash(&mut hasher),
            Part::Ranked { kind, value } => {
                let rank = values[*kind].binary_search(value).expect("it was listed");
                (kind, rank).hash(&mut hasher);
            }
        }
    }
    hasher.finish()
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    parts: Vec<Part>,
    /// The current field, and the number of open brackets in it.
    field: &'a [u8],
    /// The word before the next bracket.
    word: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            bytes: text.as_bytes(),
            at: 0,
            parts: Vec::with_capacity(text.len() / 4),
            field: b"",
            word: b"",
        }
    }

    fn read(mut self) -> Vec<Part> {
        while let Some(byte) = self.bytes.get(self.at) {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.word(),
                b'0'..=b'9' => self.number(),
                b'(' | b'-' => self.at += 1,
                _ => {
                    self.text(self.at, self.at + 1);
                    self.word = b"";
                    self.at += 1;
                }
            }
        }
        self.parts
    }

    fn text(&mut self, from: usize, to: usize) {
        let mut hasher = FxHasher::default();
        self.bytes[from..to].hash(&mut hasher);
        self.parts.push(Part::Text(hasher.finish()));
    }

    fn word(&mut self) {
        let from = self.at;
        let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        let rest = &self.bytes[from..];
        self.at += rest.iter().position(|b| !is_word(b)).unwrap_or(rest.len());
        self.word = &self.bytes[from..self.at];
        if self.bytes[self.at..].starts_with(b": ") {
            self.field = self.word;
            self.at += 2;
            if is_among(&LEFT_OUT, self.field) {
                self.skip_value();
                return;
            }
        }
        self.text(from, from + self.word.len());
    }

    /// Skips the value that starts here.
    fn skip_value(&mut self) {
        let mut open = 0;
        while let Some(byte) = self.bytes.get(self.at) {
            match byte {
                b'(' | b'[' | b'{' => open += 1,
                b')' | b']' | b'}' | b',' if open == 0 => return,
                b')' | b']' | b'}' => open -= 1,
                _ => {}
            }
            self.at += 1;
        }
    }

    fn number(&mut self) {
        let from = self.at;
        let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'.' || *byte >= 0x80;
        let rest = &self.bytes[from..];
        self.at += rest.iter().position(|b| !is_part(b)).unwrap_or(rest.len());
        // A range's dots belong to no number.
        let text = std::str::from_utf8(&self.bytes[from..self.at]).expect("a whole word");
        let name = NAMES.iter().position(|name| name.as_bytes() == self.word);
        let counter = COUNTERS
            .iter()
            .position(|fields| is_among(fields, self.field));
        let (kind, value) = match (name, counter) {
            (Some(name), _) => (name, value_of_key(text)),
            (None, Some(counter)) => (NAMES.len() + counter, text.parse().ok()),
            (None, None) => (TIMES, nanoseconds(text)),
        };
        match value {
            Some(value) => self.parts.push(Part::Ranked { kind, value }),
            None => self.text(from, self.at),
        }
        self.word = b"";
    }
}

fn is_among(words: &[&str], word: &[u8]) -> bool {
    words.iter().any(|one| one.as_bytes() == word)
}

/// A plain number, or a slot map's `3v1`.
fn value_of_key(text: &str) -> Option<u128> {
    match text.split_once('v') {
        Some((index, version)) => {
            let version: u128 = version.parse().ok()?;
            Some(version << 64 | index.parse::<u128>().ok()?)
        }
        None => text.parse().ok(),
    }
}

/// A duration, as `{:?}` writes it.
fn nanoseconds(text: &str) -> Option<u128> {
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let scale = match &text[unit..] {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    let number: f64 = text[..unit].parse().ok()?;
    Some((number * scale).round() as u128)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use motet_core::cache::{Message, OpenSlot};
    use motet_core::config::{CacheConfig, EvictionPolicy};
    use motet_protocol::{LayerKind, ModelSpec};
    use motet_protocol::{SequenceId, TokenId};

    use super::{COUNTERS, LEFT_OUT, fingerprint};
    use crate::cache_harness::CacheHarness;

    /// A field that was renamed would keep states apart that differ in nothing.
    #[test]
    fn each_listed_field_exists() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut text = String::new();
        for folder in ["core/src", "testkit/src"] {
            read_sources(&crates.join(folder), &mut text);
        }
        for name in COUNTERS.into_iter().flatten().chain(&LEFT_OUT) {
            assert!(text.contains(&format!(" {name}: ")), "no field `{name}`");
        }
    }

    fn read_sources(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                read_sources(&path, text);
            } else {
                text.push_str(&fs::read_to_string(&path).expect("a source file"));
            }
        }
    }

    /// A cache of two prompts. The second one is looked up again so many times, which leaves
    /// nothing but later ticks and larger totals.
    fn cache_text(lookups: u64) -> String {
        let spec = ModelSpec::with_layer_kinds(&[LayerKind::Full]);
        let config = CacheConfig {
            eviction: EvictionPolicy::Lru,
            share_tokens_min: 1,
            ..CacheConfig::default()
        };
        let mut cache = CacheHarness::new(&spec, config, None);
        let open_slot = |cache: &mut CacheHarness, name: u64, tokens: &[TokenId]| {
            let opened = cache.open_slot(OpenSlot::new(SequenceId(name), tokens, 4), &[]);
            opened.expect("the prompt is valid");
        };
        for name in [1, 2] {
            let sequence = SequenceId(name);
            open_slot(&mut cache, name, &[name as TokenId; 8]);
            cache.compute(sequence, 8);
            let close = cache.close(sequence).expect("the sequence is live");
            cache.end(close).expect("the sequence is live");
        }
        for name in 3..3 + lookups {
            open_slot(&mut cache, name, &[2, 2, 2, 2, 2, 2, 2, 2, 3]);
            let sequence = SequenceId(name);
            let discarded = cache.end(Message::Discard { sequence });
            discarded.expect("the sequence is live");
        }
        cache.check();
        format!("{:?}", cache.core())
    }

    /// A tick or a total under a name that is not listed would keep these states apart.
    #[test]
    fn later_ticks_and_larger_totals_make_no_difference() {
        let [none, one, many] = [0, 1, 5].map(cache_text);
        assert!(none != one && one != many, "a lookup leaves a trace");
        let expected = fingerprint(&none);
        for text in [one, many] {
            assert_eq!(fingerprint(&text), expected, "{none}\n{text}");
        }
    }

    #[test]
    fn ids_are_compared_by_order_only() {
        #[track_caller]
        fn check(one: &str, other: &str, same: bool) {
            assert_eq!(
                fingerprint(one) == fingerprint(other),
                same,
                "{one}, {other}"
            );
        }
        check("[seg-3, seg-9]", "[seg-1, seg-2]", true);
        check("[seg-3, seg-9]", "[seg-2, seg-1]", false);
        check("[seg-3, seg-3]", "[seg-2, seg-1]", false);
        check("[seg-3, copy-3]", "[seg-2, copy-1]", true);
        check(
            "Node { last_use: 3, tokens: 5 }",
            "Node { last_use: 4, tokens: 5 }",
            true,
        );
        check(
            "Node { last_use: 3, tokens: 5 }",
            "Node { last_use: 3, tokens: 6 }",
            false,
        );
        check(
            "{ stats: A { b: (3, 4) }, c: 1 }",
            "{ stats: 9, c: 1 }",
            true,
        );
        check(
            "{ stats: A { b: (3, 4) }, c: 1 }",
            "{ stats: 9, c: 2 }",
            false,
        );
        check("{ now: 5ms, at: 7.5ms }", "{ now: 1s, at: 1.1s }", true);
        check("{ now: 5ms, at: 5ms }", "{ now: 1s, at: 1.1s }", false);
        check(
            "NodeKey(1v3) NodeKey(2v1)",
            "NodeKey(9v3) NodeKey(1v1)",
            true,
        );
        check("[seq-3, seq-9]", "[seq-1, seq-2]", false);
        check("0..4", "0..5", false);
    }
}
