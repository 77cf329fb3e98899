//! The copies that count, for those who watch.

use std::sync::Arc;

use super::PagerCore;
use super::catalog::Presence;
use crate::CopyId;
use crate::pager::Label;

/// Copies in host memory that are shown, and as many of those on the disk only. Many are of
/// what is on the device still, which only the cache knows.
const SHOWN_MAX: usize = 256;

/// A copy, as one who watches is told of it.
#[derive(Clone, Debug)]
pub struct CopyView {
    /// The copy.
    pub copy: CopyId,
    /// What it is the state of.
    pub label: Arc<Label>,
    /// Whether it is in host memory; else it is on the disk only.
    pub in_host: bool,
    /// When it was used last, as the pager counts uses: the higher the later.
    pub last_use: u64,
}

impl PagerCore {
    /// The copies that are kept longest: a bounded number, of those that nothing happens to
    /// just now.
    #[must_use]
    pub fn hottest(&self) -> Vec<CopyView> {
        let on_disk_only = |copy: &CopyId| {
            let copy = self.copies.get(*copy);
            copy.is_some_and(|copy| copy.host == Presence::Absent)
        };
        let host = self.copies.host.hottest().take(SHOWN_MAX);
        // Most of what is on the disk may be in host memory as well: few are looked at.
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
