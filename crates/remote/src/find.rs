//! Finds the longest prefix of a sequence that the store has a mark of.
//!
//! The store has marks of all shorter prefixes of a path, unless it has dropped some. The longest is
//! searched for as in a sorted list, with a few questions at the same time in each round. Only this
//! one is read.

use motet_protocol::pager::Ask;
use motet_protocol::remote::{RemoteError, RemoteModel};
use motet_protocol::{KeyDigest, Label, PrefixDigest, PrefixHasher, TokenId};

use crate::seal::Sealer;
use crate::store::{CALLS_MAX, Store, all};
use crate::stored::{Link, MarkEntry};

/// Most marks that are read for one question.
const MARKS_MAX: usize = 64;

/// A path that leads into the tokens of a sequence.
struct FoundPath {
    links: Vec<Link>,
    /// Number of the sequence's first tokens that its copies hold.
    shared: usize,
}

impl Store {
    pub(crate) async fn find_copies(
        &self,
        model: &RemoteModel,
        ask: &Ask,
    ) -> Result<Vec<Label>, RemoteError> {
        let sealer = self.sealer(model, ask.key.salt);
        let digests = digests(ask.key, &ask.tokens, model.grid_tokens);
        let Some(longest) = self.longest_mark(model, &digests, ask.from).await? else {
            return Ok(Vec::new());
        };
        // Where copies serve only as a whole, one that ends sooner may reach further than those of the
        // longest mark, which part within.
        let least = if model.whole {
            (ask.from / model.grid_tokens).max(longest.saturating_sub(MARKS_MAX - 1))
        } else {
            longest
        };
        let mut best: Option<FoundPath> = None;
        for number in (least..=longest).rev() {
            let at = (number + 1) * model.grid_tokens;
            // A mark leads up to the next one.
            let most = at + model.grid_tokens - 1;
            if best.as_ref().is_some_and(|best| best.shared >= most) {
                break;
            }
            let name = self.names.mark(model, &digests[number], at);
            let Some(mark) = self.mark(&sealer, &name).await? else {
                continue;
            };
            // The newest of equals wins.
            let paths = mark.into_entries().rev();
            let paths = paths.map(|entry| path(entry, at, &ask.tokens, model.whole));
            let paths = best.into_iter().chain(paths);
            best = paths.max_by_key(|path| path.shared);
        }
        let Some(path) = best.filter(|path| path.shared > ask.from) else {
            return Ok(Vec::new());
        };
        self.labels(&sealer, model, ask, &path).await
    }

    /// Returns the number of the longest of these prefixes past `from` tokens that has a mark.
    async fn longest_mark(
        &self,
        model: &RemoteModel,
        digests: &[PrefixDigest],
        from: usize,
    ) -> Result<Option<usize>, RemoteError> {
        let grid = model.grid_tokens;
        // All below `low` are shorter than one that was found, and none from `high` on is there.
        let (mut low, mut high) = (from / grid, digests.len());
        let mut longest = None;
        while low < high {
            let asked = spread(low, high);
            let calls = asked.iter().map(|&number| {
                let at = (number + 1) * grid;
                let name = self.names.mark(model, &digests[number], at);
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
        Ok(longest)
    }

    /// Returns the labels of a path's copies that hold tokens past `ask.from`.
    async fn labels(
        &self,
        sealer: &Sealer,
        model: &RemoteModel,
        ask: &Ask,
        path: &FoundPath,
    ) -> Result<Vec<Label>, RemoteError> {
        // Copies that the next one makes useless here are skipped.
        let needless = path.links.windows(2);
        let needless = needless.take_while(|links| links[1].start <= ask.from);
        let links = &path.links[needless.count()..];
        let starts = links.iter().map(|link| link.start);
        let before = prefix_digests(ask.key, &ask.tokens, starts);
        let links = links.iter().zip(before);
        let labels =
            links.map(|(link, before)| self.label(sealer, model, ask, path.shared, link, before));
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
        before: PrefixDigest,
    ) -> Result<Option<Label>, RemoteError> {
        let known = ask.tokens.get(link.start..link.end);
        let tokens = match known.filter(|_| link.end <= shared) {
            Some(own) => own.into(),
            // The copy's head has the tokens that follow the shared ones.
            None => match self.head(sealer, &link.name).await {
                Ok(Some(head)) => head.tokens.iter().collect(),
                Ok(None) => return Ok(None),
                Err(error) if error.is_lost() => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let label = Label {
            key: ask.key.at(link.start + 1),
            before,
            start: link.start,
            tokens,
            state_lag: link.state_lag,
            precision: link.precision(),
            bytes: link.bytes,
        };
        Ok((self.names.copy(model, &label) == link.name).then_some(label))
    }
}

/// Returns how far an entry of the mark at offset `at` leads into these tokens.
fn path(entry: MarkEntry, at: usize, tokens: &[TokenId], whole: bool) -> FoundPath {
    let next = entry.next_tokens.iter().zip(&tokens[at..]);
    let shared = at + next.take_while(|(next, own)| next == *own).count();
    let mut links = entry.links;
    if whole {
        links.truncate(links.partition_point(|link| link.end <= shared));
    }
    let end = links.last().map_or(0, |last| last.end);
    FoundPath {
        links,
        shared: shared.min(end),
    }
}

/// Returns the digests of the prefixes that end on the grid, from short to long.
pub(crate) fn digests(key: KeyDigest, tokens: &[TokenId], grid: usize) -> Vec<PrefixDigest> {
    prefix_digests(key, tokens, (grid..=tokens.len()).step_by(grid))
}

/// Returns the digests of the prefixes with these lengths. Each token is hashed once where the lengths
/// do not decrease.
fn prefix_digests(
    key: KeyDigest,
    tokens: &[TokenId],
    lengths: impl Iterator<Item = usize>,
) -> Vec<PrefixDigest> {
    let mut hasher = PrefixHasher::new(key);
    let mut hashed = 0;
    let digests = lengths.map(|length| {
        if length < hashed {
            return PrefixDigest::of(key, &tokens[..length]);
        }
        hasher.update(&tokens[hashed..length]);
        hashed = length;
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
