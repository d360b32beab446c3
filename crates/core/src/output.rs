//! What the runtime is to do after a [poll](crate::replica::Replica::poll).

use std::{collections::BTreeSet, time::Duration};

use crate::{
    index::sources::SourceWatch,
    metric_event::MetricEvent,
    request::{Request, Ticket},
    user_event::UserEvent,
};

/// What the runtime is to do now.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Send these requests. Each fails unless it is answered by its time, on the replica's clock.
    pub requests: Vec<(Ticket, Request, Duration)>,
    /// Cancel these requests: this replica isn't primary any more.
    pub cancelled: Vec<Ticket>,
    /// Write these as Events and log lines.
    pub user_events: Vec<UserEvent>,
    /// Count these.
    pub metric_events: Vec<MetricEvent>,
    /// Open all watches anew, with whole lists: namespaces are served again that had been left to another installation.
    pub relist: bool,
    /// Watch these for sources from now on, and no others; `None`: the set hasn't changed.
    pub source_watches: Option<BTreeSet<SourceWatch>>,
}
