//! The hottest copies, for monitoring.

use std::sync::Arc;

use super::PagerCore;
use super::catalog::Presence;
use crate::snapshot::CopyView;

/// Upper bound on the copies in host memory that are shown, and on those only on the disk. Many
/// duplicate segments on the device, which only the cache knows.
const SHOWN_MAX: usize = 256;

impl PagerCore {
    /// Returns a bounded number of copies, the hottest first within each tier. Copies in use
    /// are left out.
    #[must_use]
    pub fn hottest(&self) -> Vec<CopyView> {
        let host = self.catalog.hottest_in_host().take(SHOWN_MAX);
        // Most copies on the disk may be in host memory as well, so only a few are examined.
        let disk = self.catalog.hottest_on_disk().take(2 * SHOWN_MAX);
        let disk = disk.filter(|copy| self.catalog.is_readable(*copy));
        let disk = disk.take(SHOWN_MAX);
        let shown = host.chain(disk).filter_map(|name| {
            let copy = self.catalog.get(name)?;
            Some(CopyView {
                copy: name,
                label: Arc::clone(copy.label()),
                in_host: copy.host() != Presence::Absent,
                last_use: copy.last_use(),
            })
        });
        shown.collect()
    }
}
