//! How many tokens two lists have in common.

use crate::TokenId;

/// Length of the longest common prefix.
#[must_use]
pub fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    let most = a.len().min(b.len());
    let (a, b) = (&a[..most], &b[..most]);
    // Large chunks are compared as memory, then small ones; only the last chunk is compared
    // token by token.
    let same = equal_wholes::<512>(a, b);
    let same = same + equal_wholes::<32>(&a[same..], &b[same..]);
    let rest = a[same..].iter().zip(&b[same..]);
    same + rest.take_while(|(x, y)| x == y).count()
}

/// Number of tokens in the leading chunks of `N` tokens that are equal in both lists.
fn equal_wholes<const N: usize>(a: &[TokenId], b: &[TokenId]) -> usize {
    let parts = a.chunks_exact(N).zip(b.chunks_exact(N));
    N * parts.take_while(|(x, y)| x == y).count()
}
