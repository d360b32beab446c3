//! The audit log: what the API server was asked, by whom, and what it answered.
//!
//! ```no_run
//! # async fn example() -> Result<(), lessor_cluster::Error> {
//! # let cluster = lessor_cluster::Cluster::start().await?;
//! let audit = cluster.audit()?;
//! let mark = audit.mark()?;
//! // … let the operator do something …
//! let writes = audit.since(mark)?.by("system:serviceaccount:lessor:lessor").writes();
//! assert_eq!(writes.requests(), 0, "at rest no replica writes: {writes}");
//! # Ok(()) }
//! ```

use std::{
    collections::HashSet,
    fmt,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
    ops::Deref,
    path::{Path, PathBuf},
};

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{Doing, Error};

/// The audit log of one cluster, to be read while the API server writes it.
///
/// An entry is written before the end of its answer is sent; the beginning of an answer of more than some KB can
/// reach its client earlier.
#[derive(Debug, Clone)]
pub struct AuditLog {
    path: PathBuf,
}

/// A place in an [`AuditLog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The file, one JSON object a line.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The present end of the log.
    pub fn mark(&self) -> Result<Mark, Error> {
        match fs::metadata(&self.path) {
            Ok(file) => Ok(Mark(file.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Mark(0)),
            Err(error) => Err(error).doing(READING),
        }
    }

    /// All entries, oldest first.
    pub fn entries(&self) -> Result<Entries, Error> {
        self.since(Mark(0))
    }

    /// The entries that were written after `mark`, oldest first.
    pub fn since(&self, mark: Mark) -> Result<Entries, Error> {
        self.parse(mark, |_| true)
    }

    /// The entries that have `text` anywhere, bodies included, oldest first. In a long log a few are found much faster
    /// so than by filters on all.
    pub fn with(&self, text: &str) -> Result<Entries, Error> {
        self.parse(Mark(0), |line| line.contains(text))
    }

    fn parse(&self, mark: Mark, keep: impl Fn(&str) -> bool) -> Result<Entries, Error> {
        let text = self.read(mark.0).doing(READING)?;
        let lines = text.lines().filter(|line| keep(line));
        let entries: serde_json::Result<Vec<Raw>> = lines.map(serde_json::from_str).collect();
        let entries = entries.map_err(io::Error::from).doing(|| "parsing the audit log")?;
        Ok(Entries(entries.into_iter().map(Entry::from).collect()))
    }

    /// The lines that begin and end after `start`: any other is half written now, or was then.
    fn read(&self, start: u64) -> io::Result<String> {
        let mut file = match File::open(&self.path) {
            // Made by the API server with its first entry.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
            file => BufReader::new(file?),
        };
        if let Some(before) = start.checked_sub(1) {
            file.seek(SeekFrom::Start(before))?;
            file.skip_until(b'\n')?;
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        bytes.truncate(bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1));
        String::from_utf8(bytes).map_err(io::Error::other)
    }
}

const READING: fn() -> &'static str = || "reading the audit log";

/// One entry: a request that was answered, or a watch that began or ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// The same for the entries of one request.
    pub audit_id: String,
    /// `ResponseStarted` (watches only), `ResponseComplete`, or `Panic`.
    pub stage: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: String,
    /// Path and query as requested.
    pub uri: String,
    /// On whose behalf: the impersonated user where there is one.
    pub user: String,
    /// What the client calls itself.
    pub user_agent: String,
    /// API group; empty for core, and for what is no resource.
    pub group: String,
    /// Plural; empty for what is no resource.
    pub resource: String,
    /// `status`, for example, or empty.
    pub subresource: String,
    /// Empty for what is cluster-scoped, or in all namespaces.
    pub namespace: String,
    /// Empty for lists, and often for creations.
    pub name: String,
    /// The HTTP status of the answer; 0 if there was none.
    pub code: u16,
    /// When the request came.
    pub received: Timestamp,
    /// When this stage was reached: for `ResponseComplete`, when the answer was ready.
    pub at: Timestamp,
    /// The body of the request, at level `Request` and above.
    pub request_object: Option<Value>,
    /// The body of the answer, at level `RequestResponse`.
    pub response_object: Option<Value>,
}

impl Entry {
    /// Whether it asks for a change, accepted or not.
    pub fn is_write(&self) -> bool {
        !matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether the answer was a success.
    pub fn is_accepted(&self) -> bool {
        (200..300).contains(&self.code)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, user, user_agent, verb, uri, code, stage, .. } = self;
        write!(f, "{at} {user} ({user_agent}): {verb} {uri}: {code} {stage}")
    }
}

/// Entries, oldest first; each filter keeps those that it names.
#[derive(Debug, Clone, Default)]
pub struct Entries(Vec<Entry>);

impl Entries {
    /// Keeps what `keep` says.
    pub fn filter(mut self, keep: impl FnMut(&Entry) -> bool) -> Self {
        self.0.retain(keep);
        self
    }

    /// Those of one user; a service account is `system:serviceaccount:NAMESPACE:NAME`.
    pub fn by(self, user: &str) -> Self {
        self.filter(|entry| entry.user == user)
    }

    /// Those whose user agent begins with `prefix`.
    pub fn agent(self, prefix: &str) -> Self {
        self.filter(|entry| entry.user_agent.starts_with(prefix))
    }

    /// Those with this verb.
    pub fn verb(self, verb: &str) -> Self {
        self.filter(|entry| entry.verb == verb)
    }

    /// Those for a resource (plural), its subresources included.
    pub fn resource(self, group: &str, resource: &str) -> Self {
        self.filter(|entry| entry.group == group && entry.resource == resource)
    }

    /// Those that ask for a change.
    pub fn writes(self) -> Self {
        self.filter(Entry::is_write)
    }

    /// Those that were answered with success.
    pub fn accepted(self) -> Self {
        self.filter(Entry::is_accepted)
    }

    /// How many requests these are: a watch has two entries, and counts once.
    pub fn requests(&self) -> usize {
        self.0.iter().map(|entry| entry.audit_id.as_str()).collect::<HashSet<_>>().len()
    }
}

impl Deref for Entries {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        &self.0
    }
}

impl IntoIterator for Entries {
    type Item = Entry;
    type IntoIter = std::vec::IntoIter<Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// One line for each entry.
impl fmt::Display for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

/// An entry as `audit.k8s.io/v1` has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Raw {
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: RawUser,
    impersonated_user: Option<RawUser>,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: RawObject,
    #[serde(default)]
    response_status: RawStatus,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
    request_object: Option<Value>,
    response_object: Option<Value>,
}

#[derive(Deserialize)]
struct RawUser {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawObject {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Deserialize, Default)]
struct RawStatus {
    #[serde(default)]
    code: u16,
}

impl From<Raw> for Entry {
    fn from(raw: Raw) -> Self {
        Self {
            audit_id: raw.audit_id,
            stage: raw.stage,
            verb: raw.verb,
            uri: raw.request_uri,
            user: raw.impersonated_user.unwrap_or(raw.user).username,
            user_agent: raw.user_agent,
            group: raw.object_ref.api_group,
            resource: raw.object_ref.resource,
            subresource: raw.object_ref.subresource,
            namespace: raw.object_ref.namespace,
            name: raw.object_ref.name,
            code: raw.response_status.code,
            received: raw.request_received_timestamp,
            at: raw.stage_timestamp,
            request_object: raw.request_object,
            response_object: raw.response_object,
        }
    }
}

/// How much of a request the audit log keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    None,
    /// Who asked what, when, and the code of the answer.
    Metadata,
    /// Also the body of the request.
    Request,
    /// Also the body of the answer.
    RequestResponse,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Metadata => "Metadata",
            Self::Request => "Request",
            Self::RequestResponse => "RequestResponse",
        }
    }
}

/// Which requests are kept at which level.
#[derive(Debug, Clone)]
pub(crate) struct Policy(Vec<Value>);

impl Policy {
    /// Puts a rule for `resource` (a plural, `*` for all) of an API group before all that were added earlier.
    pub(crate) fn add(&mut self, group: &str, resource: &str, level: Level) {
        // A status is written through a subresource, which is a resource of its own here.
        let resources = [resource.to_owned(), format!("{resource}/*")];
        let rule =
            json!({ "level": level.name(), "resources": [{ "group": group, "resources": resources }] });
        self.0.insert(0, rule);
    }

    /// The file that the API server reads, as JSON, which is YAML too.
    pub(crate) fn file(&self) -> String {
        // The API server's own caches list and watch everything; that is no request of anybody.
        let own = json!({
            "level": "None", "users": ["system:apiserver"], "verbs": ["get", "list", "watch"],
        });
        let rest = json!({ "level": "Metadata" });
        let rules: Vec<_> = std::iter::once(&own).chain(&self.0).chain([&rest]).collect();
        json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            // Half of most bodies, and nothing that a test reads.
            "omitManagedFields": true,
            "rules": rules,
        })
        .to_string()
    }
}

impl Default for Policy {
    fn default() -> Self {
        let mut policy = Self(Vec::new());
        policy.add("lessor.dev", "*", Level::RequestResponse);
        policy
    }
}

/// The API server's arguments for an audit log.
pub(crate) fn arguments(policy: &Path, log: &Path) -> Vec<String> {
    vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        // An answer is not sent before its entry is written.
        "--audit-log-mode=blocking".to_owned(),
        // In MB: never rotated, so that readers need to follow one file only.
        "--audit-log-maxsize=1000000".to_owned(),
    ]
}
