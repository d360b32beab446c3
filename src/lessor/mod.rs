//! Leases in memory.

pub mod clock;
mod config;
mod deleter;
mod ends;
mod error;
mod ids;
mod index;
mod items;
mod leases;
mod load;
#[cfg(test)]
mod model;
pub mod queue;
mod rate;
mod shared;
mod slots;
mod store;
mod table;
mod time;
mod timer;
mod wheel;

pub use self::{
    config::{AboveMax, Backoff, Config, Stretch},
    deleter::{ItemDeleter, MemoryItems},
    error::Error,
    ids::{IdGenerator, IdSource, NO_LEASE},
    leases::{Counts, Granted, Lease, Lessor, State},
    rate::Rate,
    shared::{SharedError, SharedLessor},
    store::{MemoryStore, Record, Store},
    time::{LeaseTime, Ttl},
    timer::{ManualTimer, Timer},
};
