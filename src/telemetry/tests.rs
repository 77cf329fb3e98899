//! Tests that `docs/metrics.md` lists exactly the metrics, and that each method counts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ::metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

use super::*;
use motet_core::cache::RestoreStats;
use motet_protocol::Withheld;

/// A metric's description, as the recorder receives it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Described {
    kind: String,
    unit: String,
    /// Values of each label.
    labels: BTreeMap<String, BTreeSet<String>>,
}

/// Stores descriptions and counts. For a gauge it keeps the bits of the value, for a histogram
/// the number of records.
#[derive(Clone, Default)]
struct TestRecorder(Arc<Mutex<Notes>>);

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

impl TestRecorder {
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

    /// Returns the value of the only series with this name and, if given, this label value.
    fn value(&self, name: &str, label: Option<&str>) -> u64 {
        let notes = self.0.lock().unwrap();
        let selected = |key: &&Key| {
            let labelled = label.is_none_or(|label| key.labels().any(|l| l.value() == label));
            key.name() == name && labelled
        };
        let keys: Vec<&Key> = notes.values.keys().filter(selected).collect();
        let [key] = keys[..] else {
            panic!("expected one series {name} {label:?}, found {keys:?}")
        };
        notes.values[key].load(Ordering::Relaxed)
    }
}

impl Recorder for TestRecorder {
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

fn telemetry() -> (Telemetry, TestRecorder) {
    let recorder = TestRecorder::default();
    let telemetry = ::metrics::with_local_recorder(&recorder, Telemetry::new);
    (telemetry, recorder)
}

/// Returns the rows of the page's table that start with a metric's name.
fn documented(page: &str) -> BTreeMap<String, Described> {
    let mut all = BTreeMap::new();
    for line in page.lines() {
        let Some(row) = line.strip_prefix("| `motet_") else {
            continue;
        };
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, kind, unit, labels, _] = cells[..] else {
            // A row in the table of buckets.
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
fn documentation_lists_exactly_the_metrics() {
    let (telemetry, recorder) = telemetry();
    // Those of restore points are registered when there is something to count.
    ::metrics::with_local_recorder(&recorder, || telemetry.cache(restored(1)));
    let page = documented(include_str!("../../docs/metrics.md"));
    let notes = recorder.0.lock().unwrap();
    for (name, described) in &notes.described {
        assert_eq!(page.get(name), Some(described), "{name} in docs/metrics.md");
    }
    for name in page.keys() {
        assert!(notes.described.contains_key(name), "{name} does not exist");
    }
}

/// Statistics of a model that cannot resume after any token.
fn restored(taken: u64) -> CacheStats {
    let mut restore = RestoreStats::default();
    (restore.taken, restore.given_up, restore.snapshots) = (taken, 2, 3);
    (restore.snapshot_bytes, restore.prompts) = (4, 5);
    (restore.resumed, restore.recomputed_tokens) = (6, 7);
    let mut stats = CacheStats::default();
    stats.restore = Some(restore);
    stats
}

#[test]
fn restore_points_are_counted_where_a_model_has_them() {
    let (telemetry, recorder) = telemetry();
    ::metrics::with_local_recorder(&recorder, || telemetry.cache(CacheStats::default()));
    let names = |recorder: &TestRecorder| -> Vec<String> {
        let notes = recorder.0.lock().unwrap();
        let names = notes.described.keys();
        let own = names.filter(|name| name.contains("restore") || name.contains("snapshot"));
        own.cloned().collect()
    };
    assert!(names(&recorder).is_empty(), "{:?}", names(&recorder));
    ::metrics::with_local_recorder(&recorder, || telemetry.cache(restored(1)));
    telemetry.cache(restored(9));
    assert_eq!(names(&recorder).len(), 4);
    let counted = [
        "motet_restore_points_total",
        "motet_restore_points_given_up_total",
        "motet_prompts_total",
        "motet_prompts_resumed_total",
        "motet_recomputed_tokens_total",
    ];
    assert_eq!(
        counted.map(|name| recorder.value(name, None)),
        [9, 2, 5, 6, 7]
    );
    let levels = ["motet_snapshots", "motet_snapshot_bytes"];
    let levels = levels.map(|name| f64::from_bits(recorder.value(name, None)));
    assert_eq!(levels, [3.0, 4.0]);
}

#[test]
fn no_event_is_created_without_a_listener() {
    let (telemetry, _) = telemetry();
    telemetry.emit(|| unreachable!("no listener"));
    let mut events = telemetry.events();
    telemetry.preempted(SequenceId(1));
    assert!(events.try_next().is_some(), "a listener gets it");
    drop(events);
    telemetry.emit(|| unreachable!("the listener is gone"));
}

#[test]
fn each_event_is_counted_once_by_its_reason() {
    let (telemetry, recorder) = telemetry();
    let second = Duration::from_secs(1);
    for reason in FinishReason::ALL {
        telemetry.finished(SequenceId(1), reason, 2, second, Some(second));
        let counted = recorder.value("motet_request_success_total", Some(reason.label()));
        assert_eq!(counted, 1, "{reason:?}");
    }
    let errors = [
        GenerateError::OutOfMemory,
        GenerateError::Lost,
        GenerateError::Grammar(Withheld::default()),
    ];
    for error in errors {
        telemetry.failed(SequenceId(1), &error);
        let counted = recorder.value("motet_request_failed_total", Some(error.label()));
        assert_eq!(counted, 1, "{error}");
    }
    telemetry.rejected(&SubmitError::Draining);
    let rejected = |reason| recorder.value("motet_request_rejected_total", Some(reason));
    assert_eq!((rejected("draining"), rejected("invalid")), (1, 0));
    telemetry.preempted(SequenceId(1));
    telemetry.preempted(SequenceId(2));
    assert_eq!(recorder.value("motet_num_preemptions_total", None), 2);
    let mut stats = SchedulerStats::default();
    stats.paused = 3;
    telemetry.scheduler(stats);
    let paused = f64::from_bits(recorder.value("motet_num_requests_paused", None));
    assert_eq!((paused, telemetry.sequences().2), (3.0, 3));
    telemetry.device_idle(second);
    assert_eq!(recorder.value("motet_device_idle_seconds", None), 1);
    telemetry.sampled(5);
    assert_eq!(recorder.value("motet_generation_tokens_total", None), 5);
    let stats = telemetry.stats();
    assert_eq!((stats.finished, stats.failed, stats.rejected), (6, 3, 1));
    assert_eq!((stats.preempted, stats.output_tokens), (2, 5));
    assert_eq!(stats.device_idle_share(), 1.0);
    telemetry.device_alive(false);
    assert!(!telemetry.stats().device_alive);
    telemetry.rebuilt(Fault::Cache);
    let rebuilt = |reason| recorder.value("motet_rebuilds_total", Some(reason));
    assert_eq!((rebuilt("cache"), rebuilt("scheduler")), (1, 0));
    assert_eq!(telemetry.stats().rebuilds, 1);
}
