//! A segment is copied out under the pager's lease, while a new sequence leases it as well and
//! another needs its memory.

use motet_sync::primitives::inject::InjectedBug;

use super::cache_owner::pager_config;
use super::paged::run;
use crate::world::model;

#[test]
fn exported_segment_stays_until_its_bytes_are_copied() {
    let finds = [InjectedBug::LeaseDropInTwoSteps];
    model("offload against new leases", &finds, || {
        run(pager_config());
    });
}
