//! A model of everything that three replicas, an API server, holders and others can do to one another, for a model
//! checker to explore.
//!
//! The replicas in it are real: [`lessor_core::replica`], with the engine and the writer lease that the operator uses.
//! The [API server](server) is a model, and so is the [network](world) between the two.

pub mod explore;
pub mod history;
pub mod seat;
pub mod server;
pub mod world;
