//! What the checker found.

use std::{fmt, time::Duration};

use crate::Request;

/// A promise of the operator; the numbers are those of its documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Promise {
    /// P1: never early.
    NeverEarly,
    /// P2: a renewal has one outcome.
    OneOutcome,
    /// P3: nothing unattached is touched.
    NothingUnattached,
    /// P4: ends are complete.
    Complete,
    /// P5: deposed primaries are harmless.
    Harmless,
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NeverEarly => "P1 (never early)",
            Self::OneOutcome => "P2 (a renewal has one outcome)",
            Self::NothingUnattached => "P3 (nothing unattached is touched)",
            Self::Complete => "P4 (ends are complete)",
            Self::Harmless => "P5 (deposed primaries are harmless)",
        })
    }
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    /// Which.
    pub promise: Promise,
    /// On which object: resource, namespace and name.
    pub object: String,
    /// What happened.
    pub what: String,
    /// The requests that show it.
    pub requests: Vec<Request>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.promise, self.object, self.what)?;
        self.requests.iter().try_for_each(|request| write!(f, "\n    {request}"))
    }
}

/// What was counted on the way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Leases granted.
    pub granted: usize,
    /// Renewals accepted.
    pub renewed: usize,
    /// Ends by time.
    pub expired: usize,
    /// Ends by deletion.
    pub revoked: usize,
    /// Ends that are seen by later writes only, since the API server died before it could log the write of the end.
    pub unlogged: usize,
    /// Leases whose finalizer went after their end.
    pub released: usize,
    /// Objects deleted by the operator.
    pub objects: usize,
    /// Keys removed by the operator.
    pub keys: usize,
    /// Writes of the operator that the API server refused, since the object had changed or carried a higher term.
    pub refused: usize,
    /// Who was primary, by term, in the order of the claims.
    pub primaries: Vec<(i64, String)>,
    /// For each expiry, how long after the deadline (counted from the API server's receipt of the last renewal) the API
    /// server received the end, and of which lease, as `NAMESPACE/NAME`; in order.
    pub lateness: Vec<(Duration, String)>,
}

impl Figures {
    /// This share (0 … 1) of expiries was at most so late; zero if there were none.
    pub fn late(&self, share: f64) -> Duration {
        let last = self.lateness.len().saturating_sub(1);
        self.lateness.get((last as f64 * share).round() as usize).map(|(late, _)| *late).unwrap_or_default()
    }

    /// How late a lease of this namespace expired at most.
    pub fn late_in(&self, namespace: &str) -> Duration {
        let is_it = |lease: &str| lease.split_once('/').is_some_and(|(of, _)| of == namespace);
        let last = self.lateness.iter().rev().find(|(_, lease)| is_it(lease));
        last.map(|(late, _)| *late).unwrap_or_default()
    }

    /// How late the lease of this name (whatever its namespace) expired, the latest if there were several.
    pub fn late_of(&self, name: &str) -> Option<Duration> {
        let is_it = |lease: &str| lease.rsplit('/').next() == Some(name);
        self.lateness.iter().rev().find(|(_, lease)| is_it(lease)).map(|(late, _)| *late)
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} granted, {} renewals, {} expired (late: median {:?}, p99 {:?}, most {:?}), {} revoked, {} released, \
             {} objects and {} keys removed, {} writes refused, {} primaries",
            self.granted,
            self.renewed,
            self.expired,
            self.late(0.5),
            self.late(0.99),
            self.late(1.0),
            self.revoked,
            self.released,
            self.objects,
            self.keys,
            self.refused,
            self.primaries.len(),
        )?;
        if self.unlogged > 0 {
            write!(f, ", {} ends not logged", self.unlogged)?;
        }
        Ok(())
    }
}

/// Everything that the checker found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Broken promises; empty is what everybody hopes for.
    pub violations: Vec<Violation>,
    /// What was counted on the way.
    pub figures: Figures,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}; violations: {}", self.figures, self.violations.len())?;
        self.violations.iter().try_for_each(|violation| writeln!(f, "{violation}"))
    }
}
