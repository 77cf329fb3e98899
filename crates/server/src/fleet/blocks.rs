//! The device's cache as routers count it.

use motet::Engine;

/// The device's cache, in blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheBlocks {
    /// Tokens of a block.
    pub tokens: usize,
    block_bytes: usize,
    device_bytes: usize,
    used_bytes: usize,
}

impl CacheBlocks {
    /// The engine's cache at this moment.
    #[must_use]
    pub fn of(engine: &Engine) -> Self {
        let (config, cache) = (&engine.config().cache, engine.stats().cache);
        let block_bytes = config
            .block_tokens
            .saturating_mul(engine.model().token_bytes());
        Self {
            tokens: config.block_tokens,
            block_bytes: block_bytes.max(1),
            device_bytes: config.device_bytes_max,
            used_bytes: cache.protected_bytes + cache.reserved_bytes,
        }
    }

    /// The blocks that the device has memory for.
    #[must_use]
    pub fn total(&self) -> usize {
        self.device_bytes / self.block_bytes
    }

    /// The part of them that live sequences and pins take.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used_bytes.div_ceil(self.block_bytes)
    }

    /// That part as a share.
    #[must_use]
    pub fn used_share(&self) -> f64 {
        self.used_bytes as f64 / self.device_bytes as f64
    }
}
