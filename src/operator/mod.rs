//! The operator: watches in, decisions, requests out. The only place that talks to the API server.
//!
//! [`replica`] decides and does no I/O; [`run`] is the shell around it. Between them, [`watches`] of our resources and of
//! the [`kinds`] that can be attached bring observations, [`server`] carries [requests](request) and answers,
//! [`hearing`] keeps lease time, [`recorder`] tells people, and [`metrics`] count.

pub mod admin;
pub mod arbitration;
pub mod attached;
pub mod budget;
pub mod deed;
pub mod figures;
pub mod follow;
mod guard;
pub mod hearing;
pub mod held;
pub mod kinds;
pub mod leases;
pub mod members;
pub mod metrics;
pub mod names;
pub mod notice;
pub mod published;
pub mod record;
pub mod recorder;
pub mod recovery;
pub mod replica;
pub mod request;
pub mod run;
pub mod seldom;
pub mod server;
pub mod settings;
pub mod shown;
pub mod sight;
pub mod step;
pub mod timers;
pub mod watch;
pub mod watches;
