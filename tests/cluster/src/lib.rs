//! A real Kubernetes API server and etcd for tests, without containers.
//!
//! ```no_run
//! # async fn example() -> Result<(), lessor_cluster::Error> {
//! let cluster = lessor_cluster::Cluster::start().await?;
//! let client = cluster.client()?;
//! # Ok(()) }
//! ```
//!
//! The binaries are found or built, see [`Tool`]. Servers listen on 127.0.0.1 only, and none outlives the process
//! that started it, however that ends.

mod access;
pub mod audit;
mod certs;
mod cluster;
mod error;
mod keeper;
mod ports;
mod process;
pub mod proxy;
mod server;
mod tools;

pub use cluster::{Builder, Cluster};
pub use error::{Error, LogTail};
pub use process::Process;
pub use server::Server;
pub use tools::Tool;
