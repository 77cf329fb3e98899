//! The frames for watchers: shapes, counts, bytes and times. Users have names that reveal
//! nothing.

use std::sync::Arc;

use axum::body::Bytes;
use motet::UserId;
use motet::monitor::{
    EngineEvent, SequenceView, Snapshot, Stage, StepView, Tier, TrieNode, UserView,
};
use serde::Serialize;
use serde_json::{Value, json};

use super::Page;
use super::latency::Quantiles;
use crate::activity::{AnswerView, Part};
use crate::app::App;
use crate::state::StateName;

/// One frame before it is encoded.
#[derive(Debug, Serialize)]
pub(super) struct Frame {
    #[serde(flatten)]
    picture: Value,
    nodes: Vec<Row>,
    /// The last steps, oldest first.
    steps: Vec<Step>,
    /// Number of earlier steps since the last frame that are left out.
    steps_before: usize,
    first_token: Quantiles,
    each_token: Quantiles,
}

/// A node's id, its parent's index, and its numbers.
type Row = (String, Option<usize>, [u64; 11]);

#[derive(Debug, Serialize)]
struct Step {
    number: u64,
    seconds: f64,
    decode: usize,
    prefill: usize,
    /// Draft tokens, and how many of them were right.
    drafted: usize,
    accepted: usize,
    failed: bool,
    /// Sequences, their tokens, and the draft tokens among these.
    spans: Vec<(u64, usize, usize)>,
    left_out: usize,
}

impl Frame {
    pub(super) fn new(page: &Page, snapshot: &Snapshot, missed: u64) -> Self {
        let app = &*page.app;
        let name = |user: UserId| match page.names.get(&user) {
            Some(name) => name.to_string(),
            None if user == UserId::default() => "no name".to_owned(),
            None => page.watchers.alias(user),
        };
        let scheduler = &snapshot.scheduler;
        let sequences = scheduler.sequences.iter();
        let users = scheduler.users.iter();
        let trie = &snapshot.trie;
        let picture = json!({
            "at": snapshot.at.as_secs_f64(),
            "model": app.model,
            "state": StateName::from(&app.engine.health().state),
            "stats": stats(snapshot),
            "sequences": sequences
                .map(|one| sequence(one, name(one.user), app.activity.answer(one.sequence)))
                .collect::<Vec<_>>(),
            "parts": parts(app),
            "part_sums": app.activity.sums(),
            "sequences_left_out": scheduler.sequences_left_out,
            "users": users.map(|one| user(one, name(one.user))).collect::<Vec<_>>(),
            "users_left_out": scheduler.users_left_out,
            "nodes_left_out": trie.nodes_left_out,
            "bytes_left_out": trie.bytes_left_out,
            "copies_left_out": trie.copies_left_out,
            "salts": trie.salts,
            "events_missed": missed,
        });
        Self {
            picture,
            nodes: trie.nodes.iter().map(row).collect(),
            steps: Vec::new(),
            steps_before: 0,
            first_token: Quantiles::default(),
            each_token: Quantiles::default(),
        }
    }

    pub(super) fn on_event(&mut self, event: EngineEvent, steps_max: usize) {
        if let EngineEvent::Step(step) = event {
            if self.steps.len() == steps_max {
                self.steps.remove(0);
                self.steps_before += 1;
            }
            self.steps.push(Step::new(&step));
        }
    }

    pub(super) fn set_latencies(&mut self, [first, each]: [Quantiles; 2]) {
        (self.first_token, self.each_token) = (first, each);
    }

    /// Encodes the frame as a server-sent event.
    pub(super) fn event(&self) -> Bytes {
        let text = serde_json::to_string(self).expect("keys are text");
        format!("data: {text}\n\n").into()
    }
}

impl Step {
    fn new(step: &Arc<StepView>) -> Self {
        let spans = step.spans.iter();
        Self {
            number: step.number,
            seconds: step.busy.as_secs_f64(),
            decode: step.decode_tokens,
            prefill: step.prefill_tokens,
            drafted: step.draft_tokens,
            accepted: step.accepted_tokens,
            failed: step.failed,
            spans: spans
                .map(|span| (span.sequence.0, span.tokens, span.draft_tokens))
                .collect(),
            left_out: step.spans_left_out,
        }
    }
}

fn stats(snapshot: &Snapshot) -> Value {
    let stats = &snapshot.stats;
    let (cache, pager) = (&stats.cache, &stats.pager);
    json!({
        "running": stats.running,
        "waiting": stats.waiting,
        "awaiting_prefix": stats.awaiting_prefix,
        "paused": stats.paused,
        "preempted": stats.preempted,
        "rejected": stats.rejected,
        "finished": stats.finished,
        "failed": stats.failed,
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.cached_tokens,
        "evaluated_tokens": stats.evaluated_tokens,
        "output_tokens": stats.output_tokens,
        "steps": stats.steps,
        "busy": stats.device_busy.as_secs_f64(),
        "idle": stats.device_idle.as_secs_f64(),
        "rebuilds": stats.rebuilds,
        "active_bytes": stats.device_memory.active_bytes,
        "device": {
            "budget": snapshot.budgets.device_bytes,
            "sealed": cache.sealed_bytes,
            "held": cache.protected_bytes,
            "reserved": cache.reserved_bytes,
            "segments": cache.segments,
            "evicted": cache.evicted_segments,
            "tokens": cache.cached_tokens,
        },
        // Only of models that cannot resume after any token.
        "restore": cache.restore.map(|restore| json!({
            "taken": restore.taken,
            "given_up": restore.given_up,
            "snapshots": restore.snapshots,
            "snapshot_bytes": restore.snapshot_bytes,
            "prompts": restore.prompts,
            "resumed": restore.resumed,
            "recomputed_tokens": restore.recomputed_tokens,
        })),
        "host": {
            "budget": snapshot.budgets.host_bytes,
            "used": pager.host_bytes,
            "copies": pager.host_copies,
            "hits": pager.host_hits,
        },
        "disk": {
            "budget": snapshot.budgets.disk_bytes,
            "used": pager.disk_bytes,
            "copies": pager.disk_copies,
            "hits": pager.disk_hits,
        },
    })
}

fn sequence(one: &SequenceView, user: String, answer: AnswerView) -> Value {
    let stage = match one.stage {
        Stage::Queued => "queued",
        Stage::Starting => "starting",
        Stage::AwaitingPrefix => "awaiting prefix",
        Stage::Prefill => "prefill",
        Stage::Decode => "decode",
        Stage::Paused => "paused",
        _ => "inside",
    };
    json!({
        "id": one.sequence.0,
        "user": user,
        "stage": stage,
        "prompt": one.prompt_tokens,
        "computed": one.computed_tokens,
        "output": one.output_tokens,
        "output_max": one.output_tokens_max,
        "preempted": one.preempted,
        "waited": one.waited.as_secs_f64(),
        "answer": answer,
    })
}

/// The parts of answers that have begun since the last frame, each with its sequence.
fn parts(app: &App) -> Vec<(u64, Part)> {
    let changes = app.activity.take_changes().into_iter();
    changes.map(|(sequence, part)| (sequence.0, part)).collect()
}

fn user(one: &UserView, name: String) -> Value {
    json!({
        "name": name,
        "running": one.running,
        "waiting": one.waiting,
        "paused": one.paused,
        "waiting_tokens": one.waiting_tokens,
        "longest_wait": one.longest_wait.as_secs_f64(),
        "service": one.service,
    })
}

/// A node as a compact row, as there are many; `trie.js` names its numbers.
fn row(node: &TrieNode) -> Row {
    let tier = match node.tier {
        Tier::Device => 0,
        Tier::DeviceAndCopy => 1,
        Tier::Host => 2,
        _ => 3,
    };
    (
        // Ids exceed the integers that JavaScript represents exactly.
        format!("{:x}", node.id),
        node.parent,
        [
            node.salt as u64,
            tier,
            node.tokens_before as u64,
            node.tokens as u64,
            node.bytes as u64,
            node.ref_count as u64,
            node.hits.into(),
            node.idle_uses,
            node.children as u64,
            node.snapshot_bytes as u64,
            node.restore_point.into(),
        ],
    )
}
