//! Requests and answers that are held on their way.

use std::{fmt, sync::Arc};

use tokio::sync::watch;

use super::{Matching, Seen};

/// Holds what it was made for until it is released, discarded or dropped (which releases).
#[derive(Debug)]
pub struct Hold(Arc<HoldState>);

impl Hold {
    /// Waits until the first request has come to the hold.
    pub async fn reached(&self) -> Seen {
        let mut held = self.0.held.subscribe();
        let first = held.wait_for(|held| !held.is_empty()).await.ok().and_then(|held| held.first().cloned());
        match first {
            Some(seen) => seen,
            // The sender is a field of what `self` points to, so it's never gone.
            None => std::future::pending().await,
        }
    }

    /// Every request that has come to the hold, in the order in which they came.
    pub fn held(&self) -> Vec<Seen> {
        self.0.held.borrow().clone()
    }

    /// Lets what is held go on, and holds nothing more.
    pub fn release(self) {}

    /// Loses what is held, as if the network had, by closing the connections; holds nothing more.
    pub fn discard(self) {
        self.0.verdict.send_replace(Some(Verdict::Discard));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.verdict.send_if_modified(|verdict| {
            let undecided = verdict.is_none();
            verdict.get_or_insert(Verdict::Release);
            undecided
        });
    }
}

/// Where on its way something is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeldAt {
    Request,
    Answer,
}

/// What becomes of what was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Release,
    Discard,
}

struct HoldState {
    at: HeldAt,
    matching: Matching,
    held: watch::Sender<Vec<Seen>>,
    verdict: watch::Sender<Option<Verdict>>,
}

impl fmt::Debug for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, held, verdict, .. } = self;
        f.debug_struct("HoldState").field("at", at).field("held", held).field("verdict", verdict).finish()
    }
}

/// The holds of one proxy.
#[derive(Debug, Default)]
pub(super) struct Holds(Vec<Arc<HoldState>>);

impl Holds {
    pub(super) fn add(&mut self, at: HeldAt, matching: Matching) -> Hold {
        self.0.retain(|hold| hold.verdict.borrow().is_none());
        let (held, verdict) = (watch::Sender::default(), watch::Sender::default());
        let state = Arc::new(HoldState { at, matching, held, verdict });
        self.0.push(Arc::clone(&state));
        Hold(state)
    }

    /// The future that is done when `seen` may go on; it owns what it needs, so that no lock is held meanwhile.
    pub(super) fn pass(&self, at: HeldAt, seen: &Seen) -> impl Future<Output = Verdict> + Send + use<> {
        let holds: Vec<_> =
            self.0.iter().filter(|hold| hold.at == at && (hold.matching)(seen)).cloned().collect();
        let seen = seen.clone();
        async move {
            for hold in holds {
                let mut verdict = hold.verdict.subscribe();
                if verdict.borrow().is_none() {
                    hold.held.send_modify(|held| held.push(seen.clone()));
                }
                if let Ok(verdict) = verdict.wait_for(Option::is_some).await
                    && *verdict == Some(Verdict::Discard)
                {
                    return Verdict::Discard;
                }
            }
            Verdict::Release
        }
    }
}
