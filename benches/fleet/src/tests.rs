//! Simulations whose every token can be counted by hand.

use std::path::Path;
use std::time::Duration;

use crate::fleet::{self, Outcome};
use crate::setting::{Losses, RouterSettings, Routing, Setting, Tells, Writes};
use crate::trace::{Request, Trace};

/// Five requests far apart: two blocks; the same and 276 tokens; the first and 188 others; the first
/// request again; 1,200 tokens of the second.
fn tiny() -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tiny.jsonl");
    Trace::read(&path).expect("the trace is well formed")
}

fn request(
    at_seconds: u64,
    blocks: impl IntoIterator<Item = u32>,
    output_tokens: usize,
) -> Request {
    let blocks: Vec<u32> = blocks.into_iter().collect();
    Request {
        at: Duration::from_secs(at_seconds),
        prompt_tokens: blocks.len() * 512,
        blocks,
        output_tokens,
    }
}

fn in_turn(workers: usize) -> Setting {
    Setting {
        routing: Routing::RoundRobin,
        ..Setting::of_fleet(workers, 1.0)
    }
}

fn run(trace: &Trace, setting: Setting) -> Outcome {
    let outcome = fleet::run(trace, &setting).expect("the router accepts all events");
    assert_eq!(outcome.prompt_tokens, trace.prompt_tokens());
    assert_eq!(outcome.first_token_seconds.len(), trace.requests.len());
    outcome
}

#[test]
fn every_reused_token_is_counted() {
    let trace = tiny();
    assert_eq!(trace.prompt_tokens(), 1_024 + 1_300 + 700 + 1_024 + 1_200);
    // The last token of a prompt is computed in any case.
    let bound = 1_024 + 512 + 1_023 + 1_199;
    assert_eq!(trace.bound(), bound);
    let check = |setting, reused| {
        let outcome = run(&trace, setting);
        assert_eq!(outcome.reused_tokens, reused, "{setting:?}");
    };
    check(in_turn(1), bound);
    // The second worker has the second and the fourth request.
    check(in_turn(2), 512 + 1_023 + 1_024);
    check(in_turn(5), 0);
    check(Setting::of_fleet(5, 1.0), bound);
    let defaults = Routing::Kv(RouterSettings::DEFAULT);
    check(
        Setting {
            routing: defaults,
            ..Setting::of_fleet(5, 1.0)
        },
        bound,
    );
}

#[test]
fn what_is_written_can_be_loaded_anywhere() {
    let trace = tiny();
    let check = |workers, writes, reused, loaded, written| {
        let outcome = run(&trace, in_turn(workers).writing(writes));
        let found = (
            outcome.reused_tokens,
            outcome.loaded_tokens,
            outcome.written_tokens,
        );
        assert_eq!(
            found,
            (reused, loaded, written),
            "{workers} workers, {writes:?}"
        );
    };
    // By keys of 256 tokens: all but the last of the fourth request's are three keys.
    let loaded = 1_024 + 512 + 768 + 1_024;
    check(5, Writes::AfterPrompt, loaded, loaded, 1_280);
    check(5, Writes::AtEnd, loaded, loaded, 1_280);
    check(5, Writes::UsedTwice, 0, 0, 0);
    // The third request finds a block on its worker, the fourth 1,023 tokens, the last 1,024.
    check(2, Writes::UsedTwice, 512 + 1_023 + 1_024, 0, 1_024);
    check(
        2,
        Writes::AfterPrompt,
        1_024 + 512 + 1_023 + 1_024,
        1_024,
        1_280,
    );
}

#[test]
fn memory_of_one_sequence_serves_one_after_the_other() {
    let requests = vec![request(0, 0..3, 20), request(0, 3..6, 20)];
    let small = Setting {
        worker_blocks: 4,
        ..in_turn(1)
    };
    let waits = run(
        &Trace {
            requests: requests.clone(),
        },
        small,
    )
    .first_token_seconds;
    let beside = run(&Trace { requests }, in_turn(1)).first_token_seconds;
    assert!(beside[1] < waits[1], "{beside:?}, {waits:?}");
}

#[test]
fn equal_prompts_are_computed_once() {
    let requests = vec![request(0, 0..40, 5), request(0, 0..40, 5)];
    let outcome = run(&Trace { requests }, in_turn(1));
    assert_eq!(outcome.reused_tokens, 40 * 512 - 1);
}

#[test]
fn router_knows_a_running_prompt_by_events_or_prediction() {
    // The second request shares 15 of 20 blocks, while the first one still runs.
    let requests = vec![
        request(0, 0..20, 1_000),
        request(2, (0..15).chain(20..25), 5),
    ];
    let trace = Trace { requests };
    let check = |settings, tells, reused| {
        let routing = Routing::Kv(settings);
        let setting = Setting {
            routing,
            tells,
            ..Setting::of_fleet(8, 1.0)
        };
        assert_eq!(run(&trace, setting).reused_tokens, reused, "{setting:?}");
    };
    check(RouterSettings::DEFAULT, Tells::AtEnd, 0);
    check(RouterSettings::DEFAULT, Tells::AsComputed, 15 * 512);
    check(RouterSettings::FOR_MOTET, Tells::AtEnd, 15 * 512);
    // Not any more when the prediction has expired.
    let predicted = Some(Duration::from_secs(1));
    let short = RouterSettings {
        predicted,
        ..RouterSettings::FOR_MOTET
    };
    check(short, Tells::AtEnd, 0);
}

#[test]
fn lost_tokens_are_computed_again_as_far_as_they_are_stored_nowhere() {
    // The first request decodes when its worker is lost, half-way to the second.
    let requests = vec![request(0, 0..2, 2_000), request(10, 5..6, 1)];
    let trace = Trace { requests };
    let again = |setting: Setting, hand_over| {
        let losses = Some(Losses {
            moments: 1,
            workers: 1,
            hand_over,
        });
        run(&trace, Setting { losses, ..setting }).again_tokens
    };
    let none = again(in_turn(2), false);
    assert!((1_024 + 100..1_024 + 2_000).contains(&none), "{none}");
    assert_eq!(
        again(in_turn(2), true),
        none,
        "there is no tier to hand over to"
    );
    let stored = in_turn(2).writing(Writes::AfterPrompt);
    assert_eq!(again(stored, false), none - 1_024);
    assert_eq!(again(stored, true), none % 256);
    let by_router = Setting {
        routing: Routing::Kv(RouterSettings::FOR_MOTET),
        ..in_turn(2)
    };
    assert!(again(by_router, false) >= 1_024);
}
