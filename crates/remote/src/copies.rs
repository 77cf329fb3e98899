//! Copies: stored in parts, with a head, and with the marks that lead to them.

use std::sync::Arc;

use motet_protocol::Label;
use motet_protocol::remote::{RemoteError, RemoteModel};

use crate::find;
use crate::names::Name;
use crate::seal::{Sealer, Version};
use crate::store::{Store, all};
use crate::stored::{self, Head, Link, Mark, MarkEntry, Tokens};

/// Bytes of a part of a copy, before it is sealed; the last part may have fewer.
pub const PART_BYTES: usize = 4 << 20;

impl Store {
    pub(crate) async fn load_copy(
        &self,
        model: &RemoteModel,
        label: &Label,
        into: &mut [u8],
    ) -> Result<(), RemoteError> {
        let name = self.names.copy(model, label);
        let sealer = self.sealer(model, label.key.salt);
        let head = self.head(&sealer, &name).await?;
        let head = head.ok_or(RemoteError::Missing)?;
        let loaded = self.load_parts(&sealer, &name, head.version, into).await;
        if loaded.as_ref().is_err_and(RemoteError::is_lost) {
            // The next process that has the state stores it again.
            self.remove(&name.head()).await;
        }
        loaded
    }

    async fn load_parts(
        &self,
        sealer: &Sealer,
        name: &Name,
        version: Version,
        into: &mut [u8],
    ) -> Result<(), RemoteError> {
        let parts = into.chunks_mut(PART_BYTES).enumerate();
        let loads = parts.map(|(number, into)| async move {
            let part = name.part(version, number);
            let sealed = self
                .read_part(&part, Sealer::sealed_bytes(into.len()))
                .await?;
            sealer.open_into(&part, &sealed, into)
        });
        all(loads.collect()).await.map(drop)
    }

    pub(crate) async fn store_copy(
        &self,
        model: &RemoteModel,
        path: &[Arc<Label>],
        label: &Label,
        bytes: &[u8],
    ) -> Result<(), RemoteError> {
        let sealer = self.sealer(model, label.key.salt);
        let name = self.names.copy(model, label);
        self.check_path(model, path).await?;
        if !self.exists(&name.head()).await? {
            let version = Version::random()?;
            let parts = bytes.chunks(PART_BYTES).enumerate();
            let sealer = &sealer;
            let stores = parts.map(|(number, bytes)| async move {
                let part = name.part(version, number);
                let sealed = sealer.seal(&part, bytes)?;
                self.write(&part, sealed).await
            });
            all(stores.collect()).await?;
            let head = Head {
                version,
                tokens: Tokens::of(&label.tokens),
            };
            self.write_sealed(sealer, &name.head(), &head).await?;
        }
        self.store_marks(&sealer, model, path, label).await
    }

    /// Fails if the store has dropped a copy of this path: a mark must lead to copies that are there.
    async fn check_path(
        &self,
        model: &RemoteModel,
        path: &[Arc<Label>],
    ) -> Result<(), RemoteError> {
        let heads = path
            .iter()
            .map(|label| self.names.copy(model, label).head());
        let calls = heads.map(|head| async move { self.exists(&head).await });
        let are_there = all(calls.collect()).await?;
        if are_there.contains(&false) {
            return Err(RemoteError::Missing);
        }
        Ok(())
    }

    /// Leads from each prefix that ends within the copy's tokens, on the grid, to the copy.
    async fn store_marks(
        &self,
        sealer: &Sealer,
        model: &RemoteModel,
        path: &[Arc<Label>],
        label: &Label,
    ) -> Result<(), RemoteError> {
        let links = path.iter().map(|label| &**label).chain([label]);
        let links = links.map(|label| Link::new(label, self.names.copy(model, label)));
        let links: Vec<Link> = links.collect();
        if links.len() > Mark::LINKS_MAX {
            return Ok(());
        }
        let tokens = stored::path_tokens(path, label)?;
        let grid = model.grid_tokens;
        let (first, last) = (label.start / grid + 1, label.end() / grid);
        let digests = find::digests(label.key, &tokens, grid);
        let marks = (first..=last).map(|number| {
            let at = number * grid;
            let entry = MarkEntry {
                links: links.clone(),
                next_tokens: Tokens::of(&tokens[at..tokens.len().min(at + grid - 1)]),
            };
            let mark = self.names.mark(model, &digests[number - 1], at);
            self.store_mark(sealer, mark, entry)
        });
        all(marks.collect()).await.map(drop)
    }

    async fn store_mark(
        &self,
        sealer: &Sealer,
        name: String,
        entry: MarkEntry,
    ) -> Result<(), RemoteError> {
        let mut mark = self.mark(sealer, &name).await?.unwrap_or_default();
        if mark.insert(entry) {
            self.write_sealed(sealer, &name, &mark).await?;
        }
        Ok(())
    }
}
