//! A model of everything that three replicas, an API server, holders and others can do to one another, for a model
//! checker to explore.
//!
//! What a replica decides is no model: it is [`operator::replica`], [`lessor`] and [`writer_lease`], the very sources of the
//! operator, compiled into this crate once more because here they are optimised: they run millions of times.
//! The [API server](server) is a model, and so is the [network](world) between the two.

#[path = "../../../src/api/mod.rs"]
pub mod api;
#[path = "../../../src/lessor/mod.rs"]
pub mod lessor;
#[path = "../../../src/operator/mod.rs"]
pub mod operator;
#[path = "../../../src/writer_lease/mod.rs"]
pub mod writer_lease;

pub mod explore;
pub mod history;
pub mod seat;
pub mod server;
pub mod world;
