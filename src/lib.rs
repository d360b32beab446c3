//! etcd's leases for Kubernetes: things that vanish when their holder stops renewing.
//!
//! [`api`] holds the custom resources and the grammar of the annotations that attach objects to leases,
//! [`lessor`] keeps leases in memory, [`writer_lease`] chooses which of several replicas acts, and [`operator`] is the
//! thin shell around them that talks to the API server. [`client`] is for programs that hold leases.

pub mod api;
pub mod client;
pub mod lessor;
pub mod operator;
pub mod writer_lease;

/// What the README shows in Rust has to compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
