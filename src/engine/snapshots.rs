//! Events and snapshots, for those who watch.

use super::Engine;
use crate::monitor::{Events, Snapshots};

impl Engine {
    /// What happens in the engine from now on: its steps, and who starts and ends. Bounded:
    /// whoever is slow misses the oldest. See [`monitor`](crate::monitor) for what is not told.
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
        self.telemetry.events()
    }

    /// How the engine looks, twice a second from now on: who is inside, what is cached
    /// where, and the sums of [`stats`](Engine::stats). However many watch, it is looked at
    /// once. See [`monitor`](crate::monitor) for what is not told.
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
    /// let seen = snapshots.next().await.expect("the engine is there");
    /// assert_eq!(seen.trie.nodes[0].tokens, 3);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn snapshots(&self) -> Snapshots {
        self.snapshots.subscribe()
    }
}
