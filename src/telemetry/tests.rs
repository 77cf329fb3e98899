//! That `docs/metrics.md` lists what there is, and that each method counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ::metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use super::*;
use motet_core::protocol::Withheld;

/// What a metric is, as the recorder is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Described {
    kind: String,
    unit: String,
    /// The values of each label.
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Remembers what it is told, and counts. Of a gauge it keeps the bits of the value, of
/// a histogram how often it was recorded.
#[derive(Clone, Default)]
struct Notebook(Arc<Mutex<Notes>>);

#[derive(Default)]
struct Notes {
    described: BTreeMap<String, Described>,
    values: HashMap<Key, Arc<AtomicU64>>,
}

struct Times(Arc<AtomicU64>);

impl HistogramFn for Times {
    fn record(&self, _value: f64) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Notebook {
    fn describe(&self, name: &KeyName, unit: Option<Unit>) {
        let unit = unit.map_or("none", |unit| unit.as_str());
        let mut notes = self.0.lock().unwrap();
        let described = notes.described.entry(name.as_str().into()).or_default();
        described.unit = unit.into();
    }

    fn register(&self, key: &Key, kind: &str) -> Arc<AtomicU64> {
        let mut notes = self.0.lock().unwrap();
        let described = notes.described.entry(key.name().into()).or_default();
        described.kind = kind.into();
        for label in key.labels() {
            let values = described.labels.entry(label.key().into()).or_default();
            values.insert(label.value().into());
        }
        Arc::clone(notes.values.entry(key.clone()).or_default())
    }

    /// The value of the one series of this name and, if any, label value.
    fn value(&self, name: &str, label: Option<&str>) -> u64 {
        let notes = self.0.lock().unwrap();
        let wanted = |key: &&Key| {
            let labelled = label.is_none_or(|label| key.labels().any(|l| l.value() == label));
            key.name() == name && labelled
        };
        let keys: Vec<&Key> = notes.values.keys().filter(wanted).collect();
        let [key] = keys[..] else {
            panic!("expected one series {name} {label:?}, found {keys:?}")
        };
        notes.values[key].load(Ordering::Relaxed)
    }
}

impl Recorder for Notebook {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _about: SharedString) {
        self.describe(&name, unit);
    }
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _about: SharedString) {
        self.describe(&name, unit);
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _about: SharedString) {
        self.describe(&name, unit);
    }
    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.register(key, "counter"))
    }
    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.register(key, "gauge"))
    }
    fn register_histogram(&self, key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(Arc::new(Times(self.register(key, "histogram"))))
    }
}

fn telemetry() -> (Telemetry, Notebook) {
    let notebook = Notebook::default();
    let telemetry = ::metrics::with_local_recorder(&notebook, Telemetry::new);
    (telemetry, notebook)
}

/// The rows of the page's table whose first cell is a metric's name.
fn documented(page: &str) -> BTreeMap<String, Described> {
    let mut all = BTreeMap::new();
    for line in page.lines() {
        let Some(row) = line.strip_prefix("| `motet_") else {
            continue;
        };
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, unit, labels, _] = cells[..] else {
            // A row of the table of buckets.
            assert_eq!(cells.len(), 2, "a metric's row has five cells: {line}");
            continue;
        };
        let mut described = Described {
            kind: kind.into(),
            unit: unit.into(),
            labels: BTreeMap::new(),
        };
        for label in labels.split(';').filter(|label| !label.is_empty()) {
            let (label, values) = label.split_once(':').expect("`label`: `values`");
            let values = values.split(',').map(|value| ticked(value).to_owned());
            let label = ticked(label).to_owned();
            described.labels.insert(label, values.collect());
        }
        let name = format!("motet_{}", name.trim_end_matches('`'));
        assert_eq!(all.insert(name, described), None, "one row each: {line}");
    }
    all
}

fn ticked(cell: &str) -> &str {
    cell.trim().trim_matches('`')
}

#[test]
fn the_page_lists_exactly_what_there_is() {
    let (_telemetry, notebook) = telemetry();
    let page = documented(include_str!("../../docs/metrics.md"));
    let notes = notebook.0.lock().unwrap();
    for (name, described) in &notes.described {
        assert_eq!(page.get(name), Some(described), "{name} in docs/metrics.md");
    }
    for name in page.keys() {
        assert!(notes.described.contains_key(name), "{name} does not exist");
    }
}

#[test]
fn without_a_listener_no_event_is_made() {
    let (telemetry, _) = telemetry();
    telemetry.tell(|| unreachable!("nobody listens"));
    let mut events = telemetry.events();
    telemetry.preempted(SequenceId(1));
    assert!(events.try_next().is_some(), "somebody does");
    drop(events);
    telemetry.tell(|| unreachable!("nobody listens any more"));
}

#[test]
fn what_happens_is_counted_once_and_by_its_reason() {
    let (telemetry, notebook) = telemetry();
    let second = Duration::from_secs(1);
    for reason in FinishReason::ALL {
        telemetry.finished(SequenceId(1), reason, 2, second, Some(second));
        let counted = notebook.value("motet_request_success_total", Some(reason.label()));
        assert_eq!(counted, 1, "{reason:?}");
    }
    let errors = [
        GenerateError::OutOfMemory,
        GenerateError::Lost,
        GenerateError::Grammar(Withheld::default()),
    ];
    for error in errors {
        telemetry.failed(SequenceId(1), &error);
        let counted = notebook.value("motet_request_failed_total", Some(error.label()));
        assert_eq!(counted, 1, "{error}");
    }
    telemetry.rejected(&SubmitError::Draining);
    let refused = |reason| notebook.value("motet_request_rejected_total", Some(reason));
    assert_eq!((refused("draining"), refused("invalid")), (1, 0));
    telemetry.preempted(SequenceId(1));
    telemetry.preempted(SequenceId(2));
    assert_eq!(notebook.value("motet_num_preemptions_total", None), 2);
    let mut stats = SchedulerStats::default();
    stats.paused = 3;
    telemetry.scheduler(stats);
    let paused = f64::from_bits(notebook.value("motet_num_requests_paused", None));
    assert_eq!((paused, telemetry.sequences().2), (3.0, 3));
    telemetry.device_idle(second);
    assert_eq!(notebook.value("motet_device_idle_seconds", None), 1);
    telemetry.drawn(5);
    assert_eq!(notebook.value("motet_generation_tokens_total", None), 5);
    let stats = telemetry.stats();
    assert_eq!((stats.finished, stats.failed, stats.rejected), (6, 3, 1));
    assert_eq!((stats.preempted, stats.output_tokens), (2, 5));
    assert_eq!(stats.device_idle_share(), 1.0);
    telemetry.device_alive(false);
    assert!(!telemetry.stats().device_alive);
    telemetry.rebuilt(Fault::Cache);
    let rebuilt = |reason| notebook.value("motet_rebuilds_total", Some(reason));
    assert_eq!((rebuilt("cache"), rebuilt("scheduler")), (1, 0));
    assert_eq!(telemetry.stats().rebuilds, 1);
}
