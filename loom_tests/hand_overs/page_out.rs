//! A segment is copied out under the pager's lease, while a newcomer leases it as well and
//! another needs its room.

use super::cache_owner::{Ask, DEVICE_TOKENS, Prompt, pager_config};
use super::paged::run;
use crate::world::model;

static COLD: Prompt = Prompt {
    name: 1,
    first: 1,
    tokens: 16,
    granted: 16,
};
/// Continues it.
static AGAIN: Prompt = Prompt {
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

static ASKS: [Ask; 2] = [Ask::Begin(&AGAIN), Ask::Close(&AGAIN)];

#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn what_is_copied_out_stays_until_its_bytes_are_out() {
    model("page-out against new leases", || {
        run(pager_config(), &COLD, &ASKS, &LARGE);
    });
}
