//! The lines between suite and adapter: PROTOCOL.md.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::Moment;

/// What the suite asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Command {
    /// Grant a lease.
    Grant {
        /// Its name.
        lease: String,
        /// In seconds.
        ttl: u64,
    },
    /// Renew it from now on.
    KeepAlive {
        /// Its name.
        lease: String,
    },
    /// End the renewals.
    Stop {
        /// Its name.
        lease: String,
        /// Whether to end the lease, too.
        revoke: bool,
    },
    /// Attach an object, or keys of it.
    Attach(Attachment),
    /// Detach them.
    Detach(Attachment),
    /// What the client believes.
    Status(Subject),
    /// Acquire a mutex.
    Lock {
        /// Its name.
        mutex: String,
        /// Of the session, in seconds.
        ttl: u64,
        /// In seconds; for ever if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait: Option<u64>,
    },
    /// Acquire it if it's free.
    TryLock {
        /// Its name.
        mutex: String,
        /// Of the session, in seconds.
        ttl: u64,
    },
    /// Release it.
    Unlock {
        /// Its name.
        mutex: String,
    },
    /// Become the leader.
    Campaign {
        /// The election.
        election: String,
        /// Of the session, in seconds.
        ttl: u64,
        /// The value of the leader.
        value: String,
        /// In seconds; for ever if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait: Option<u64>,
    },
    /// Who leads.
    Leader {
        /// The election.
        election: String,
    },
    /// Lead no more.
    Resign {
        /// The election.
        election: String,
    },
}

/// What to attach to a lease.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attachment {
    /// The lease.
    pub lease: String,
    /// The kind, `ConfigMap`.
    pub kind: String,
    /// The object's name.
    pub name: String,
    /// Keys of it; the whole object if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<String>>,
}

/// What a status or an event is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A lease.
    Lease(String),
    /// A mutex.
    Mutex(String),
    /// An election.
    Election(String),
}

/// A command with its number.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Numbered {
    /// Its number.
    pub id: u64,
    /// What is asked for.
    #[serde(flatten)]
    pub command: Command,
}

/// A line of an adapter.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// It has done it.
    Ok {
        /// The number of the command.
        id: u64,
        /// What came of it.
        ok: Value,
    },
    /// It has failed.
    Error {
        /// The number of the command.
        id: u64,
        /// Why.
        error: ClientError,
    },
    /// It reports something by itself.
    Event(Event),
    /// What later versions may add.
    Unknown(Value),
}

/// What an adapter reports by itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// It takes commands.
    Ready {
        /// The version of the protocol.
        protocol: u32,
        /// The library and its version.
        client: String,
        /// The groups of commands that it has.
        can: Vec<Group>,
    },
    /// Something is lost.
    Lost(Lost),
}

/// A loss.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Lost {
    /// Of what.
    #[serde(flatten)]
    pub subject: Subject,
    /// Why, in one word.
    pub reason: String,
    /// Why, for users.
    pub message: String,
    /// When it was reported.
    pub at: Moment,
}

/// A group of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// Grant, keep alive, stop.
    Lease,
    /// Attach, detach.
    Attach,
    /// Lock, unlock.
    Mutex,
    /// Campaign, resign.
    Election,
    /// What a later version adds.
    #[serde(other)]
    Other,
}

/// The answer to a grant, a lock or a campaign.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Acquired {
    /// The uid of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// As granted, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<f64>,
    /// The fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<i64>,
    /// Until when the client believes.
    #[serde(default)]
    pub until: Option<Moment>,
    /// When the adapter read its clock.
    pub now: Moment,
}

/// The answer to a status.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Belief {
    /// Whether the client believes that it holds the subject.
    pub held: bool,
    /// Until when, without another renewal.
    #[serde(default)]
    pub until: Option<Moment>,
    /// When it believed so.
    pub now: Moment,
    /// The fencing token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<i64>,
}

/// Why a command failed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ClientError {
    /// In one word.
    pub code: String,
    /// For users.
    pub message: String,
}

impl ClientError {
    /// An error with this code and message.
    pub fn new(code: &str, message: impl ToString) -> Self {
        Self { code: code.to_owned(), message: message.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lines_are_as_the_document_has_them() {
        let numbered = Numbered { id: 1, command: Command::Grant { lease: "web-1".into(), ttl: 8 } };
        assert_eq!(
            serde_json::to_value(&numbered).unwrap(),
            json!({"id": 1, "do": "grant", "lease": "web-1", "ttl": 8})
        );
        let status = Numbered { id: 2, command: Command::Status(Subject::Mutex("m".into())) };
        assert_eq!(serde_json::to_value(&status).unwrap(), json!({"id": 2, "do": "status", "mutex": "m"}));
        let lost: Line = serde_json::from_value(json!({
            "event": "lost", "lease": "web-1", "reason": "revoked", "message": "…", "at": 5, "more": 1,
        }))
        .unwrap();
        assert!(
            matches!(&lost, Line::Event(Event::Lost(lost)) if lost.subject == Subject::Lease("web-1".into())),
            "{lost:?}"
        );
        let error: Line =
            serde_json::from_value(json!({"id": 2, "error": {"code": "exists", "message": "…"}})).unwrap();
        assert!(matches!(error, Line::Error { id: 2, .. }));
        let unknown: Line = serde_json::from_value(json!({"event": "renewed", "lease": "a"})).unwrap();
        assert!(matches!(unknown, Line::Unknown(_)));
    }
}
