//! Events and snapshots, for monitoring.

use super::Engine;
use crate::monitor::{Events, Snapshots};

impl Engine {
    /// Subscribes to the engine's events from now on: its steps, and the starts and ends of
    /// sequences. Bounded: a slow subscriber misses the oldest events. See
    /// [`monitor`](crate::monitor) for what events leave out.
    ///
    /// ```
    /// # use motet::model::oracle::{Oracle, OracleConfig};
    /// use motet::monitor::EngineEvent;
    /// # use motet::{Engine, Request};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let oracle = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
    /// # let engine = Engine::builder(oracle).start().await?;
    /// let mut events = engine.events();
    /// engine.submit(Request::tokens([1, 2, 3])).await?.collect().await?;
    /// while let Some(event) = events.try_next() {
    ///     if let EngineEvent::Step(step) = event {
    ///         println!("step {} took {:?}", step.number, step.busy);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn events(&self) -> Events {
        self.inner.telemetry.events()
    }

    /// Subscribes to snapshots, twice a second from now on: the sequences in the engine, the
    /// cached segments with their tiers, and the sums of [`stats`](Engine::stats). All
    /// subscribers share one snapshot. See [`monitor`](crate::monitor) for what snapshots leave
    /// out.
    ///
    /// ```
    /// # use motet::model::oracle::{Oracle, OracleConfig};
    /// # use motet::{Engine, Request};
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let oracle = || Ok(Oracle::new(OracleConfig::default()).expect("a valid oracle"));
    /// # let engine = Engine::builder(oracle).start().await?;
    /// engine.warm(Request::tokens([1, 2, 3])).await?;
    /// let mut snapshots = engine.snapshots();
    /// let seen = snapshots.next().await.expect("the engine is running");
    /// assert_eq!(seen.trie.nodes[0].tokens, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        self.inner.snapshots.subscribe()
    }
}
