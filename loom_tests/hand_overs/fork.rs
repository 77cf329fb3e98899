//! A prefix that is forked while its last user gives it back and somebody large has it
//! evicted.
//!
//! The pager was offered it and has no room: its lease ends on the pager's own thread, at
//! any moment. Whoever begins holds it by the cache's lease, on the cache's thread.

use motet::config::PagerConfig;

use super::cache_owner::{Ask, DEVICE_TOKENS, Prompt, pager_config};
use super::paged::run;
use crate::world::model;

static PREFIX: Prompt = Prompt {
    name: 1,
    first: 1,
    tokens: 16,
    granted: 16,
};
/// Continues the prefix.
static FORK: Prompt = Prompt {
    name: 2,
    first: 1,
    tokens: 20,
    granted: 20,
};
/// Needs all that there is.
static LARGE: Prompt = Prompt {
    name: 3,
    first: 500,
    tokens: 8,
    granted: DEVICE_TOKENS,
};

static ASKS: [Ask; 2] = [Ask::Begin(&FORK), Ask::Close(&FORK)];

#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn a_prefix_is_evicted_once_and_by_nobody_who_uses_it() {
    model("fork, last drop, eviction of a cached prefix", || {
        let no_room = PagerConfig {
            host_bytes_max: 1,
            ..pager_config()
        };
        run(no_room, &PREFIX, &ASKS, &LARGE);
    });
}
