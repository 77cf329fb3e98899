//! Finds the longest prefix of a sequence that the store has a mark of.
//!
//! The store has marks of all shorter prefixes of a path, unless it has dropped some. The longest is
//! searched for as in a sorted list, with a few questions at the same time in each round. Only this
//! one is read.

use motet_protocol::pager::Ask;
use motet_protocol::remote::{RemoteError, RemoteModel};
use motet_protocol::{Label, PrefixDigest, PrefixHasher, SaltDigest, TokenId};

use crate::seal::Sealer;
use crate::store::{CALLS_MAX, Store, all};
use crate::stored::{Link, Mark, MarkEntry};

/// A path that leads into the tokens of a sequence.
struct Path<'a> {
    links: &'a [Link],
    /// Number of the sequence's first tokens that its copies hold.
    shared: usize,
}

impl Store {
    pub(crate) async fn find_copies(
        &self,
        model: &RemoteModel,
        ask: &Ask,
    ) -> Result<Vec<Label>, RemoteError> {
        let sealer = self.sealer(model, ask.salt);
        let Some((at, mark)) = self.longest_mark(&sealer, model, ask).await? else {
            return Ok(Vec::new());
        };
        let paths = mark.entries().iter().map(|entry| {
            let tokens = &ask.tokens;
            path(entry, at, tokens, model.whole)
        });
        // The newest of equals wins.
        let best = paths.rev().max_by_key(|path| path.shared);
        let Some(path) = best.filter(|path| path.shared > ask.from) else {
            return Ok(Vec::new());
        };
        self.labels(&sealer, model, ask, &path).await
    }

    /// Returns the longest prefix past `ask.from` with a mark, and the mark.
    async fn longest_mark(
        &self,
        sealer: &Sealer,
        model: &RemoteModel,
        ask: &Ask,
    ) -> Result<Option<(usize, Mark)>, RemoteError> {
        let grid = model.grid_tokens;
        let digests = digests(ask.salt, &ask.tokens, grid);
        // Numbers of marks: all below `low` are shorter than one that was found, and none from
        // `high` on is there.
        let (mut low, mut high) = (ask.from / grid, digests.len());
        let name = |number: usize| {
            self.names
                .mark(model, &digests[number], (number + 1) * grid)
        };
        let mut longest = None;
        while low < high {
            let asked = spread(low, high);
            let calls = asked.iter().map(|&number| {
                let name = name(number);
                async move { self.exists(&name).await }
            });
            let are_there = all(calls.collect()).await?;
            let last = are_there.iter().rposition(|is_there| *is_there);
            let next = last.map_or(0, |last| last + 1);
            high = asked.get(next).copied().unwrap_or(high);
            if let Some(last) = last {
                longest = Some(asked[last]);
                low = asked[last] + 1;
            }
        }
        let Some(number) = longest else {
            return Ok(None);
        };
        let mark = self.mark(sealer, &name(number)).await?;
        Ok(mark.map(|mark| ((number + 1) * grid, mark)))
    }

    /// Returns the labels of a path's copies that hold tokens past `ask.from`.
    async fn labels(
        &self,
        sealer: &Sealer,
        model: &RemoteModel,
        ask: &Ask,
        path: &Path<'_>,
    ) -> Result<Vec<Label>, RemoteError> {
        // Copies that the next one makes useless here are skipped.
        let needless = path.links.windows(2);
        let needless = needless.take_while(|links| links[1].start <= ask.from);
        let links = path.links[needless.count()..].iter();
        let labels = links.map(|link| self.label(sealer, model, ask, path.shared, link));
        let labels = all(labels.collect()).await?;
        // Copies after one that is gone are of no use.
        Ok(labels.into_iter().map_while(|label| label).collect())
    }

    async fn label(
        &self,
        sealer: &Sealer,
        model: &RemoteModel,
        ask: &Ask,
        shared: usize,
        link: &Link,
    ) -> Result<Option<Label>, RemoteError> {
        let known = ask.tokens.get(link.start..link.end);
        let mut tokens: Vec<TokenId> = ask.tokens[..link.start].to_vec();
        match known.filter(|_| link.end <= shared) {
            Some(own) => tokens.extend(own),
            // What follows the shared tokens in the copy is in its head.
            None => match self.head(sealer, &link.name).await {
                Ok(Some(head)) => tokens.extend(head.tokens.iter()),
                Ok(None) => return Ok(None),
                Err(error) if error.is_lost() => return Ok(None),
                Err(error) => return Err(error),
            },
        }
        let label = Label::new(
            ask.salt,
            &tokens,
            link.start,
            link.state_lag,
            link.precision(),
            link.bytes,
        );
        Ok((self.names.copy(model, &label) == link.name).then_some(label))
    }
}

/// Returns how far an entry of the mark at offset `at` leads into these tokens.
fn path<'a>(entry: &'a MarkEntry, at: usize, tokens: &[TokenId], whole: bool) -> Path<'a> {
    let next = entry.next_tokens.iter().zip(&tokens[at..]);
    let shared = at + next.take_while(|(next, own)| next == *own).count();
    let mut links = &entry.links[..];
    if whole {
        while let Some((last, before)) = links.split_last()
            && last.end > shared
        {
            links = before;
        }
    }
    let end = links.last().map_or(0, |last| last.end);
    Path {
        links,
        shared: shared.min(end),
    }
}

/// Returns the digests of the prefixes that end on the grid, from short to long.
pub(crate) fn digests(salt: SaltDigest, tokens: &[TokenId], grid: usize) -> Vec<PrefixDigest> {
    let mut hasher = PrefixHasher::new(salt);
    let parts = tokens.chunks_exact(grid);
    let digests = parts.map(|part| {
        hasher.update(part);
        hasher.digest()
    });
    digests.collect()
}

/// Returns up to [`CALLS_MAX`] numbers of a range, the last one included, at equal distances.
fn spread(low: usize, high: usize) -> Vec<usize> {
    let count = (high - low).min(CALLS_MAX);
    let numbers = 1..=count;
    numbers
        .map(|number| low + (high - low) * number / count - 1)
        .collect()
}
