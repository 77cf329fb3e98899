//! The figures: as a table, and as JSON.

use std::fmt;

use serde::Serialize;

/// All traces.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) traces: Vec<TraceReport>,
}

/// One trace.
#[derive(Debug, Serialize)]
pub(crate) struct TraceReport {
    pub(crate) name: String,
    pub(crate) requests: usize,
    pub(crate) asked_tokens: usize,
    pub(crate) distinct_tokens: usize,
    pub(crate) unbounded_hit_percent: f64,
    pub(crate) rows: Vec<Row>,
}

/// One policy at one capacity.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) policy: &'static str,
    pub(crate) capacity_percent: f64,
    pub(crate) capacity_tokens: usize,
    pub(crate) hit_percent: f64,
    pub(crate) request_micros: f64,
}

impl TraceReport {
    /// The policies, in the order in which they ran.
    pub(crate) fn policies(&self) -> Vec<&'static str> {
        let mut policies = Vec::new();
        for row in &self.rows {
            if !policies.contains(&row.policy) {
                policies.push(row.policy);
            }
        }
        policies
    }

    /// Capacities, in the order in which they ran.
    fn capacities(&self) -> Vec<(f64, usize)> {
        let mut capacities = Vec::new();
        for row in &self.rows {
            let capacity = (row.capacity_percent, row.capacity_tokens);
            if !capacities.contains(&capacity) {
                capacities.push(capacity);
            }
        }
        capacities
    }

    fn row(&self, policy: &str, capacity_tokens: usize) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.policy == policy && row.capacity_tokens == capacity_tokens)
    }

    /// Hit rate of foresight minus that of LRU, in percentage points, at each capacity.
    pub(crate) fn gains(&self) -> Vec<f64> {
        let capacities = self.capacities().into_iter();
        let gains = capacities.filter_map(|(_, tokens)| {
            let ours = self.row("foresight", tokens)?;
            Some(ours.hit_percent - self.row("lru", tokens)?.hit_percent)
        });
        gains.collect()
    }
}

impl Report {
    /// The smallest gain of foresight over LRU, in percentage points, and its trace.
    pub(crate) fn worst_gain(&self) -> Option<(f64, &str)> {
        let traces = self.traces.iter();
        let gains = traces.flat_map(|trace| {
            trace
                .gains()
                .into_iter()
                .map(|gain| (gain, trace.name.as_str()))
        });
        gains.min_by(|(a, _), (b, _)| a.total_cmp(b))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for trace in &self.traces {
            writeln!(
                f,
                "{}: {} requests, {} tokens asked for, {} distinct; an unbounded cache finds {:.1} %",
                trace.name,
                trace.requests,
                trace.asked_tokens,
                trace.distinct_tokens,
                trace.unbounded_hit_percent
            )?;
            write!(f, "  {:>8} {:>9}", "capacity", "tokens")?;
            for policy in trace.policies() {
                write!(f, "  {policy:>11} {:>11}", "per request")?;
            }
            writeln!(f)?;
            for (percent, tokens) in trace.capacities() {
                write!(f, "  {percent:>6.1} % {tokens:>9}")?;
                for policy in trace.policies() {
                    let row = trace.row(policy, tokens).expect("every policy ran");
                    let micros = row.request_micros;
                    write!(f, "  {:>9.2} % {micros:>8.1} µs", row.hit_percent)?;
                }
                writeln!(f)?;
            }
            writeln!(f)?;
        }
        match self.worst_gain() {
            Some((gain, name)) => writeln!(
                f,
                "foresight against lru, in points of hit rate: at worst {gain:+.2} ({name})"
            ),
            None => Ok(()),
        }
    }
}
