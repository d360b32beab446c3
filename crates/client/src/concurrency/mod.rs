//! Mutex and Election, with the names and semantics of etcd's `clientv3/concurrency`, and fencing tokens.
//!
//! They follow the protocol in `clients/MUTEX.md`, and exclude the mutexes and elections of Lessor's other clients, too.
//!
//! ```no_run
//! # use lessor_client::{LeaseClient, concurrency::{Mutex, Session, SessionOptions}};
//! # async fn write_report(token: i64) {}
//! # async fn example(leases: LeaseClient) -> Result<(), Box<dyn std::error::Error>> {
//! let session = Session::new(&leases, SessionOptions::default().with_holder("web-1")).await?;
//! let lock = Mutex::new(&session, "reports").lock().await?;
//! write_report(lock.token()).await;
//! lock.unlock().await?;
//! session.close().await?;
//! # Ok(())
//! # }
//! ```

mod acquisition;
mod courtesy;
mod election;
mod error;
mod mutex;
mod object;
mod session;
#[cfg(test)]
mod tests;

pub use self::{
    acquisition::Lock,
    election::{Election, Leader, Leadership},
    error::LockError,
    mutex::Mutex,
    session::{Session, SessionOptions},
};
