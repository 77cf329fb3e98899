//! Bounds of the store of responses.

use std::time::Duration;

/// Responses stored by default.
const RESPONSES_MAX: usize = 1024;
/// Bytes of stored responses by default.
const BYTES_MAX: usize = 64 << 20;
/// Time in which the events of a background response can be read, by default.
const BACKGROUND_SECONDS: u64 = 300;
/// A year.
const BACKGROUND_SECONDS_MAX: u64 = 365 * 24 * 3600;

/// Bounds of the store of responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Store of responses")]
pub struct StoreSettings {
    /// Responses that can be continued and read; 0 keeps none
    ///
    /// Further ones displace the oldest of the key that has the most. A restart forgets all but
    /// responses in the background, on a server with --disk.
    #[arg(long, value_name = "N", default_value_t = RESPONSES_MAX)]
    pub stored_responses_max: usize,

    /// Memory for stored responses and their conversations, in bytes; 0 keeps none
    ///
    /// A conversation that is longer by itself cannot be continued by its id.
    #[arg(long, value_name = "BYTES", default_value_t = BYTES_MAX)]
    pub stored_bytes_max: usize,

    /// Time after the end of a background response in which its events can be read
    ///
    /// Until then they count in --results-mib. A key has 32 such responses, and an eighth of that
    /// memory for them: older ones are then read whole only.
    #[arg(long, value_name = "SECONDS", default_value_t = BACKGROUND_SECONDS)]
    pub background_seconds: u64,
}

impl StoreSettings {
    /// Time after its end in which a background response's events can be read.
    pub(crate) fn background_time(&self) -> Duration {
        Duration::from_secs(self.background_seconds.min(BACKGROUND_SECONDS_MAX))
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self {
            stored_responses_max: RESPONSES_MAX,
            stored_bytes_max: BYTES_MAX,
            background_seconds: BACKGROUND_SECONDS,
        }
    }
}
