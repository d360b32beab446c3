//! What the operator decides, without I/O.

pub mod attachable;
pub mod budget;
pub mod clocks;
pub mod decide;
pub mod index;
mod interner;
pub mod kind;
pub mod leadership;
pub mod lease_object;
pub mod lease_status;
pub mod listed_keys;
pub mod liveness;
pub mod metadata;
pub mod metric_event;
pub mod metrics_snapshot;
pub mod observation;
pub mod replica;
pub mod request;
pub mod settings;
pub mod sparse;
pub mod timers;
mod unix_millis;
pub mod user_event;
pub mod watch_health;
