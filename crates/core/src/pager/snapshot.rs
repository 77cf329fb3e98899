//! The hottest copies, for monitoring.

use std::sync::Arc;

use super::PagerCore;
use super::catalog::Presence;
use crate::CopyId;
use crate::snapshot::CopyView;

/// Upper bound on the copies in host memory that are shown, and on those only on the disk. Many
/// duplicate segments on the device, which only the cache knows.
const SHOWN_MAX: usize = 256;

impl PagerCore {
    /// Returns a bounded number of copies, the hottest first within each tier. Copies in use
    /// are left out.
    #[must_use]
    pub fn hottest(&self) -> Vec<CopyView> {
        let on_disk_only = |copy: &CopyId| {
            let copy = self.copies.get(*copy);
            copy.is_some_and(|copy| copy.host == Presence::Absent)
        };
        let host = self.copies.host.hottest().take(SHOWN_MAX);
        // Most copies on the disk may be in host memory as well, so only a few are examined.
        let disk = self.copies.disk.hottest().take(2 * SHOWN_MAX);
        let disk = disk.filter(on_disk_only).take(SHOWN_MAX);
        let shown = host.chain(disk).filter_map(|name| {
            let copy = self.copies.get(name)?;
            Some(CopyView {
                copy: name,
                label: Arc::clone(&copy.label),
                in_host: copy.host != Presence::Absent,
                last_use: copy.last_use,
            })
        });
        shown.collect()
    }
}
