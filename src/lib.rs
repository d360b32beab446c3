//! The operator of [Lessor](https://github.com/lessor-dev/lessor): leases for Kubernetes, as etcd has them.
//!
//! This crate is the operator's I/O around [`lessor_core`], which decides everything and does no I/O:
//!
//! ```text
//!   API server ──► watch ──► Observation ──► Replica ──► Output ──► runtime ──► API server
//!        │                                      ▲                     │
//!        └────────► connectivity ──► Now ───────┘                     └──► Events, metrics
//! ```
//!
//! - [`watch`] keeps all watches open, and turns what they bring into observations.
//! - [`connectivity`] is a layer under kube's client. It keeps the clocks: lease time stands still while the API server is
//!   unreachable.
//! - [`runtime`] is the loop that feeds the replica, and does what it decides: it sends requests, writes Events and serves the
//!   admin port.
//!
//! `main.rs` and its module `cli` are the `lessor` command. Programs that hold leases use the crate `lessor-client`.
//!
//! To run a replica inside of another program:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use lessor_core::settings::Settings;
//!
//! let settings = Settings { identity: "replica-1".to_owned(), ..Settings::default() };
//! let config = kube::Config::infer().await?;
//! lessor::runtime::run(config, settings, async {
//!     let _ = tokio::signal::ctrl_c().await;
//! })
//! .await?;
//! # Ok(())
//! # }
//! ```

pub mod connectivity;
pub mod runtime;
pub mod watch;

/// The Rust examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
