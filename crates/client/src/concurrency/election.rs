//! One of many sessions leads, with a value that all can read.

use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::{sync::mpsc, time::sleep};

use super::{
    acquisition::{self, Lock},
    error::LockError,
    object::{LockObject, LockObjects, object_name},
    session::Session,
};
use crate::error::Error;

/// How long one watch lasts.
const WATCH: Duration = Duration::from_secs(290);
/// The pause between two watches.
const PAUSE: Duration = Duration::from_millis(250);

/// An election in the namespace of its client.
#[derive(Clone, Debug)]
pub struct Election {
    session: Session,
    name: String,
}

/// The leader of an election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// The value of its campaign, or its last proclamation.
    pub value: String,
    /// Its fencing token.
    pub token: i64,
    /// The holder of its session.
    pub holder: String,
}

/// This session leads, as long as [`Leadership::is_held`]. Dropping it resigns in the background.
#[derive(Debug)]
#[must_use = "dropping the leadership resigns"]
pub struct Leadership(Lock);

impl Election {
    /// The election `name`. Any text is a name. A [`Mutex`](super::Mutex) of the same name is the same lock.
    pub fn new(session: &Session, name: impl Into<String>) -> Self {
        Self { session: session.clone(), name: name.into() }
    }

    /// Waits until this session leads, and publishes `value`. Cancel-safe.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](super::Mutex::lock).
    pub async fn campaign(&self, value: &str) -> Result<Leadership, LockError> {
        acquisition::acquire(self.session.state(), &self.name, value, false).await.map(Leadership)
    }

    /// The present leader; `None` if there is none.
    ///
    /// # Errors
    /// The errors of any request.
    pub async fn leader(&self) -> Result<Option<Leader>, LockError> {
        let objects = self.objects();
        match objects.get().await? {
            Some(found) if !found.data("leaseUID").is_empty() && !objects.is_dead(&found).await? => {
                Ok(Some(leader(&found)))
            }
            _ => Ok(None),
        }
    }

    /// Each leader and each of its values from now on, until the session is lost.
    ///
    /// Errors that pass are skipped; after any other the stream ends.
    pub fn observe(&self) -> impl Stream<Item = Result<Leader, LockError>> + Send + Unpin + use<> {
        let (sender, receiver) = mpsc::channel(16);
        let (session, objects) = (self.session.clone(), self.objects());
        tokio::spawn(async move {
            let result = tokio::select! {
                result = session.state().guard(report_leaders(&objects, &sender)) => result,
                () = sender.closed() => return,
            };
            if let Err(error) = result {
                // An observer that is gone misses nothing.
                let _ = sender.send(Err(error)).await;
            }
        });
        futures::stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)))
            .boxed()
    }

    /// The name of the lock's ConfigMap.
    pub fn key(&self) -> String {
        object_name(&self.name)
    }

    fn objects(&self) -> LockObjects {
        LockObjects::new(&self.session.state().client, &self.name)
    }
}

impl Leadership {
    /// Publishes another value.
    ///
    /// # Errors
    /// [`LockError::NotLeader`] if this session doesn't lead any more, and the errors of any request.
    pub async fn proclaim(&self, value: &str) -> Result<(), LockError> {
        if !self.0.is_held() {
            return Err(LockError::NotLeader);
        }
        self.0.session().guard(self.0.objects().proclaim(self.0.uid(), self.token(), value)).await
    }

    /// Leads no more.
    ///
    /// # Errors
    /// Those of [`Lock::unlock`].
    pub async fn resign(self) -> Result<(), LockError> {
        self.0.unlock().await
    }

    /// Whether this session certainly leads. Call it directly before an action that requires that.
    pub fn is_held(&self) -> bool {
        self.0.is_held()
    }

    /// The fencing token: greater than that of every earlier leader. Give it along with each protected write.
    pub fn token(&self) -> i64 {
        self.0.token()
    }

    /// The name of the lock's ConfigMap.
    pub fn key(&self) -> &str {
        self.0.key()
    }
}

async fn report_leaders(
    objects: &LockObjects,
    sender: &mpsc::Sender<Result<Leader, LockError>>,
) -> Result<(), LockError> {
    let mut last = String::new();
    loop {
        match report_from_list(objects, sender, &mut last).await {
            // 410: the version is too old, and the next list has a newer one.
            Ok(()) | Err(LockError::Request(Error::Invalid(_))) => {}
            Err(error) if error.passes() => {}
            Err(error) => return Err(error),
        }
        sleep(PAUSE).await;
    }
}

async fn report_from_list(
    objects: &LockObjects,
    sender: &mpsc::Sender<Result<Leader, LockError>>,
    last: &mut String,
) -> Result<(), LockError> {
    let (found, version) = objects.list().await?;
    if let Some(found) = found
        && found.version() != last
        && !found.data("leaseUID").is_empty()
        && !objects.is_dead(&found).await?
    {
        found.version().clone_into(last);
        let _ = sender.send(Ok(leader(&found))).await;
    }
    let mut changes = objects.changes(&version, WATCH).await?;
    while let Some(change) = changes.next().await {
        if let Some(found) = change?.filter(|found| !found.data("leaseUID").is_empty()) {
            found.version().clone_into(last);
            let _ = sender.send(Ok(leader(&found))).await;
        }
    }
    Ok(())
}

fn leader(found: &LockObject) -> Leader {
    Leader {
        value: found.data("value").to_owned(),
        token: found.token(),
        holder: found.data("holder").to_owned(),
    }
}
