//! Leases that follow something: heartbeats, Pods and other leases. They are in this program only because it waits for the
//! longest of all: beside it they take no time.

mod heartbeats;
mod leases;
mod outage;
mod pods;
mod sources;
mod takeover;
mod unseen;
