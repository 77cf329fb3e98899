//! A prefix is forked while its last user releases it and a large sequence has it evicted.
//!
//! The prefix is an offload candidate, but the pager lacks memory: its lease ends on the
//! pager's own thread, at any moment. A sequence that opens its slot holds the prefix by the
//! cache's lease, on the cache's thread.

use motet::config::PagerConfig;
use motet_sync::primitives::inject::InjectedBug;

use super::cache_owner::pager_config;
use super::paged::run;
use crate::world::model;

#[test]
fn prefix_is_evicted_once_and_never_while_in_use() {
    let finds = [InjectedBug::LeaseDropInTwoSteps];
    model(
        "fork, last drop, eviction of a cached prefix",
        &finds,
        || {
            let one_host_byte = PagerConfig {
                host_bytes_max: 1,
                ..pager_config()
            };
            run(one_host_byte);
        },
    );
}
