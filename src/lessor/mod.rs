//! Leases in memory.

pub mod clock;
mod config;
mod ends;
mod error;
mod index;
mod items;
mod leases;
mod load;
pub mod queue;
mod rate;
mod slots;
mod table;
mod time;
mod wheel;

pub use self::{
    config::{AboveMax, Backoff, Config, Stretch},
    error::Error,
    leases::{Counts, Granted, Lease, Lessor, State},
    rate::Rate,
    time::{LeaseTime, Ttl},
};
