//! Mutexes and elections, with one session for all of them.

use std::{collections::HashMap, time::Duration};

use lessor_client::{
    LeaseClient,
    concurrency::{Election, Leadership, Lock, LockError, Mutex, Session, SessionOptions},
};
use lessor_conformance::{
    clock::Moment,
    protocol::{Acquired, Belief, ClientError, Subject},
    serve::{Output, answer, done},
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{Reporter, error, moment, not_held};

pub(crate) struct Locks {
    client: LeaseClient,
    holder: String,
    session: tokio::sync::Mutex<Option<Session>>,
    held: parking_lot::Mutex<HashMap<Subject, Held>>,
    output: Output,
}

/// A lock, its session, and what reports the loss of that.
struct Held {
    lock: Locked,
    session: Session,
    reporter: Reporter,
}

enum Locked {
    Mutex(Lock),
    Election(Leadership),
}

impl Locked {
    fn is_held(&self) -> bool {
        match self {
            Self::Mutex(lock) => lock.is_held(),
            Self::Election(leadership) => leadership.is_held(),
        }
    }

    fn token(&self) -> i64 {
        match self {
            Self::Mutex(lock) => lock.token(),
            Self::Election(leadership) => leadership.token(),
        }
    }
}

impl Locks {
    pub(crate) fn new(client: LeaseClient, holder: String, output: Output) -> Self {
        Self { client, holder, session: Default::default(), held: Default::default(), output }
    }

    pub(crate) async fn lock(&self, name: String, ttl: u64, wait: Option<u64>) -> Result<Value, ClientError> {
        let session = self.session(Some(ttl)).await?;
        let mutex = Mutex::new(&session, &name);
        let lock = within(wait, mutex.lock()).await?;
        self.acquired(Subject::Mutex(name), Locked::Mutex(lock), session)
    }

    pub(crate) async fn try_lock(&self, name: String, ttl: u64) -> Result<Value, ClientError> {
        let session = self.session(Some(ttl)).await?;
        let lock = Mutex::new(&session, &name).try_lock().await.map_err(lock_error)?;
        self.acquired(Subject::Mutex(name), Locked::Mutex(lock), session)
    }

    pub(crate) async fn campaign(
        &self,
        name: String,
        ttl: u64,
        value: &str,
        wait: Option<u64>,
    ) -> Result<Value, ClientError> {
        let session = self.session(Some(ttl)).await?;
        let election = Election::new(&session, &name);
        let leadership = within(wait, election.campaign(value)).await?;
        self.acquired(Subject::Election(name), Locked::Election(leadership), session)
    }

    pub(crate) async fn leader(&self, name: String) -> Result<Value, ClientError> {
        let election = Election::new(&self.session(None).await?, name);
        let leader = election.leader().await.map_err(lock_error)?;
        let leader = leader.ok_or_else(|| ClientError::new("gone", "the election has no leader"))?;
        answer(json!({"value": leader.value, "token": leader.token}))
    }

    pub(crate) async fn release(&self, subject: &Subject) -> Result<Value, ClientError> {
        let Held { lock, reporter, .. } = self.held.lock().remove(subject).ok_or_else(not_held)?;
        reporter.stop().await;
        match lock {
            Locked::Mutex(lock) => lock.unlock().await,
            Locked::Election(leadership) => leadership.resign().await,
        }
        .map_err(lock_error)?;
        done()
    }

    pub(crate) fn status(&self, subject: &Subject) -> Result<Value, ClientError> {
        let held = self.held.lock();
        let Held { lock, session, .. } = held.get(subject).ok_or_else(not_held)?;
        let (is_held, until) = (lock.is_held(), Some(moment(session.valid_until())));
        answer(Belief { held: is_held, until, now: Moment::now(), token: Some(lock.token()) })
    }

    pub(crate) fn has_lost(&self) -> bool {
        self.held.lock().values().any(|held| !held.session.is_valid())
    }

    pub(crate) async fn release_all(&self) {
        if let Some(session) = self.session.lock().await.take()
            && let Err(error) = session.close().await
        {
            crate::report(format_args!("the session can't be closed: {error}"));
        }
    }

    fn acquired(&self, subject: Subject, lock: Locked, session: Session) -> Result<Value, ClientError> {
        let (token, until) = (Some(lock.token()), Some(moment(session.valid_until())));
        let acquired = Acquired { uid: None, ttl: None, token, until, now: Moment::now() };
        let lost = session.clone();
        let reporter =
            Reporter::start(self.output.clone(), subject.clone(), async move { lost.lost().await });
        self.held.lock().insert(subject, Held { lock, session, reporter });
        answer(acquired)
    }

    /// The session of this process; another one if it was lost.
    async fn session(&self, ttl: Option<u64>) -> Result<Session, ClientError> {
        let mut session = self.session.lock().await;
        match session.as_ref().filter(|session| session.is_valid()) {
            Some(session) => Ok(session.clone()),
            None => {
                let mut options = SessionOptions::default().with_holder(&self.holder);
                if let Some(ttl) = ttl {
                    options = options.with_ttl(Duration::from_secs(ttl));
                }
                let new = Session::new(&self.client, options).await.map_err(error)?;
                *session = Some(new.clone());
                Ok(new)
            }
        }
    }
}

/// Gives up after so many seconds.
async fn within<T>(
    wait: Option<u64>,
    work: impl Future<Output = Result<T, LockError>>,
) -> Result<T, ClientError> {
    match wait {
        None => work.await.map_err(lock_error),
        Some(seconds) => match timeout(Duration::from_secs(seconds), work).await {
            Ok(result) => result.map_err(lock_error),
            Err(_) => Err(ClientError::new("timeout", "another session holds the lock")),
        },
    }
}

fn lock_error(problem: LockError) -> ClientError {
    let code = match problem {
        LockError::Request(request) => return error(request),
        LockError::Locked { .. } => "locked",
        LockError::SessionExpired | LockError::NotLeader => "ended",
        LockError::NotALock(_) => "invalid",
    };
    ClientError::new(code, problem)
}
