//! A segment is copied out under the pager's lease, while a newcomer leases it as well and
//! another needs its room.

use super::cache_owner::pager_config;
use super::paged::run;
use crate::world::model;

#[test]
#[cfg_attr(motet_planted_bug, should_panic)]
fn what_is_copied_out_stays_until_its_bytes_are_out() {
    model("page-out against new leases", || {
        run(pager_config());
    });
}
