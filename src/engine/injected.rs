//! Engines in which a test interferes.

use super::builder::EngineBuilder;
use crate::runtime::injected::failpoint::Failpoints;
use crate::runtime::injected::simulation::Simulation;

impl EngineBuilder {
    /// Starts tasks instead of threads: see [`simulation`](crate::simulation).
    #[must_use]
    pub fn simulated(mut self, simulation: Simulation) -> Self {
        self.runtime.simulation = Some(simulation);
        self
    }

    /// Sets failpoints, with which a test makes the actors and the device threads panic.
    #[must_use]
    pub fn failpoints(mut self, failpoints: Failpoints) -> Self {
        self.runtime.failpoints = failpoints;
        self
    }

    /// Turns off the records that an actor keeps to rebuild a panicked core; a panic then ends
    /// the actor. Used to measure the cost of the records.
    #[must_use]
    pub fn without_recovery(mut self) -> Self {
        self.runtime.has_no_recovery = true;
        self
    }
}
