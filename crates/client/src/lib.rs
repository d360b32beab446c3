#![doc = include_str!("../README.md")]

mod annotate;
mod attach;
mod boot_instant;
mod client;
pub mod concurrency;
mod error;
mod grant;
mod http;
mod informer;
mod keep_alive;
mod lease;
mod snapshot;
mod validity;
mod watch;

pub use self::{
    attach::{AttachOutcome, AttachTarget, AttachedObject},
    boot_instant::BootInstant,
    client::{FIELD_MANAGER, LeaseClient, REQUEST_TIMEOUT},
    error::Error,
    grant::Grant,
    keep_alive::{KeepAlive, KeepAliveEvent, KeepAliveOptions, LossReason},
    lease::HeldLease,
    snapshot::{LeaseListing, LeaseSnapshot, SnapshotState},
};
