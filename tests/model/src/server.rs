//! The API server: of what the real one does, all that a replica relies on.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta, Time},
    jiff::Timestamp,
};
use lessor_api::{
    Lease, LeaseSpec, LeaseStatus, Lessor, LessorStatus, RenewFrom, lease::SourceName, lessor::LessorSpec,
    recorded::GRANT_MANAGER,
};
use lessor_core::{
    decide::removal::Removal,
    index::sources::{SourceState, SourceStatus},
    lease_object::NamespacedName,
    listed_keys::ListedKeys,
    request::{FIELD_MANAGER, Request, RequestError, Response},
};
use serde_json::{Value, json};

/// Where everything lies.
pub const NAMESPACE: &str = "shop";
/// The name of the heartbeat that a lease may follow.
pub const HEART: &str = "heart";
/// The name of the `Lessor`.
pub const LESSOR: &str = "default";
/// Whoever renews.
const HOLDER: &str = "holder";

/// What the server checks; the real one checks all of it. A model with a rule less shows that the rule is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rules {
    /// A write that names a `resourceVersion` is done to that version only.
    pub versions: bool,
    /// `status.term` never decreases.
    pub terms: bool,
    /// The spec of a lease that has ended never changes.
    pub freeze: bool,
    /// What is read is what there is, and not what a cache had before.
    pub fresh: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { versions: true, terms: true, freeze: true, fresh: true }
    }
}

/// An object and the hash of what it looks like.
#[derive(Debug)]
pub struct Stored<T> {
    /// The object.
    pub object: T,
    hash: u64,
}

impl<T> Hash for Stored<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// What a watch shows.
#[derive(Clone, Debug, Hash)]
pub enum News {
    /// Our `Lessor`, and whether it is still there.
    Lessor(Arc<Stored<Lessor>>, bool),
    /// A lease, and whether it is still there.
    Lease(Arc<Stored<Lease>>, bool),
    /// A ConfigMap's metadata, and whether it is still there.
    Map(Arc<Stored<ObjectMeta>>, bool),
    /// The heartbeat, and whether it is still there.
    Heart(Arc<Stored<SourceState>>, bool),
    /// Everything has been shown: these.
    All(Box<[&'static str]>),
    /// The watch goes on where it broke.
    Resumed,
    /// The watch has broken.
    Broken,
}

/// The watches of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Of our `Lessor`.
    Lessor,
    /// Of leases.
    LeaseIndex,
    /// Of ConfigMaps.
    Maps,
    /// Of the heartbeat, if a lease follows it.
    Heart,
}

impl Stream {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Lessor, Self::LeaseIndex, Self::Maps, Self::Heart];
}

/// The state of the server. Keys are the names of objects.
#[derive(Clone, Debug, Default)]
pub struct Server {
    rules: Rules,
    version: u64,
    uids: u64,
    /// Our `Lessor`.
    pub lessor: Option<Arc<Stored<Lessor>>>,
    /// Leases.
    pub leases: BTreeMap<&'static str, Arc<Stored<Lease>>>,
    /// ConfigMaps.
    pub maps: BTreeMap<&'static str, Arc<Stored<ObjectMeta>>>,
    /// The heartbeat.
    pub heart: Option<Arc<Stored<SourceState>>>,
    /// How it was first, for a server that reads from a cache.
    first_heart: Option<Arc<Stored<SourceState>>>,
}

impl Hash for Server {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.version, self.uids, &self.lessor, &self.leases, &self.maps, &self.heart).hash(state);
    }
}

/// What came of a request: the answer, and what changed.
#[derive(Debug)]
pub struct Done {
    /// For whoever asked.
    pub answer: Response,
    /// For those who watch.
    pub news: Option<News>,
}

impl From<Response> for Done {
    fn from(answer: Response) -> Self {
        Self { answer, news: None }
    }
}

impl From<RequestError> for Done {
    fn from(refusal: RequestError) -> Self {
        Response::Refused(refusal).into()
    }
}

impl Server {
    /// An empty one.
    pub fn new(rules: Rules) -> Self {
        Self { rules, version: 100, ..Self::default() }
    }

    /// Everything that a watch shows at its beginning.
    pub fn list(&self, stream: Stream) -> Vec<News> {
        let mut news: Vec<News> = match stream {
            Stream::Lessor => {
                self.lessor.iter().map(|lessor| News::Lessor(Arc::clone(lessor), true)).collect()
            }
            Stream::LeaseIndex => {
                self.leases.values().map(|lease| News::Lease(Arc::clone(lease), true)).collect()
            }
            Stream::Maps => self.maps.values().map(|map| News::Map(Arc::clone(map), true)).collect(),
            Stream::Heart => self.heart.iter().map(|heart| News::Heart(Arc::clone(heart), true)).collect(),
        };
        news.push(News::All(match stream {
            Stream::Lessor => self.lessor.iter().map(|_| LESSOR).collect(),
            Stream::LeaseIndex => self.leases.keys().copied().collect(),
            Stream::Maps => self.maps.keys().copied().collect(),
            Stream::Heart => self.heart.iter().map(|_| HEART).collect(),
        }));
        news
    }

    /// Does what a replica asks.
    pub fn handle(&mut self, request: &Request, now: Timestamp) -> Done {
        match request {
            Request::ReadLessor => match &self.lessor {
                Some(lessor) => Response::Lessor(Box::new(lessor.object.clone())).into(),
                None => Response::Gone.into(),
            },
            Request::CreateLessor if self.lessor.is_some() => RequestError::Conflict.into(),
            Request::CreateLessor => {
                let mut lessor = Lessor::new(LESSOR, LessorSpec::default());
                lessor.metadata.uid = Some(self.next_uid());
                self.store_lessor(lessor)
            }
            Request::WriteLessor { version, status } => self.write_lessor(*version, status),
            Request::ReadLease { lease } => match self.leases.get(&*lease.name) {
                Some(lease) => Response::Lease(Box::new(lease.object.clone())).into(),
                None => Response::Gone.into(),
            },
            Request::SetFinalizers { lease, uid, version, finalizers } => {
                let (name, mut lease) = match self.lease(lease, &uid.to_string(), Some(*version)) {
                    Ok(found) => found,
                    Err(refused) => return refused.into(),
                };
                lease.metadata.finalizers = Some(finalizers.clone());
                if lease.metadata.deletion_timestamp.is_some() && finalizers.is_empty() {
                    return self.remove_lease(name, lease);
                }
                self.store_lease(name, lease)
            }
            Request::WriteStatus { lease, uid, version, status, grants } => {
                let (name, mut lease) = match self.lease(lease, &uid.to_string(), Some(*version)) {
                    Ok(found) => found,
                    Err(refused) => return refused.into(),
                };
                let Ok(status) = serde_json::from_value::<LeaseStatus>(status.clone()) else {
                    return RequestError::Invalid("no status".to_owned()).into();
                };
                let before = lease.status.take().unwrap_or_default();
                if self.rules.terms && status.term < before.term {
                    return RequestError::LowerTerm.into();
                }
                if self.rules.freeze && before.end_time.is_some() && status.end_time != before.end_time {
                    return RequestError::Invalid("endTime never changes".to_owned()).into();
                }
                lease.status = Some(status);
                let manager = if *grants { GRANT_MANAGER } else { FIELD_MANAGER };
                note_manager(&mut lease.metadata, manager, now);
                self.store_lease(name, lease)
            }
            Request::DeleteLease { lease, uid } => match self.lease(lease, &uid.to_string(), None) {
                Ok((name, lease)) => self.delete_lease(name, lease, now),
                Err(refused) => refused.into(),
            },
            Request::ReadObject { object } => match self.maps.get(&*object.name.name) {
                Some(map) => Response::Object(Box::new(map.object.clone())).into(),
                None => Response::Gone.into(),
            },
            Request::ReadSource { .. } => {
                match if self.rules.fresh { &self.heart } else { &self.first_heart } {
                    Some(heart) => Response::Source(Box::new(heart.object.clone())).into(),
                    None => Response::Gone.into(),
                }
            }
            Request::Remove { object, removal } => self.remove_from_map(&object.name.name, removal),
        }
    }

    fn write_lessor(&mut self, version: u64, status: &Value) -> Done {
        let Some(old) = &self.lessor else { return Response::Gone.into() };
        if self.rules.versions && version_of(&old.object.metadata) != version {
            return RequestError::Conflict.into();
        }
        let mut lessor = old.object.clone();
        let before = lessor.status.take().unwrap_or_default();
        if let Some(conditions) = status.get("conditions") {
            let conditions = serde_json::from_value(conditions.clone()).unwrap_or_default();
            lessor.status = Some(LessorStatus { conditions, ..before });
            return self.store_lessor(lessor);
        }
        let Ok(mut after) = serde_json::from_value::<LessorStatus>(status.clone()) else {
            return RequestError::Invalid("no status".to_owned()).into();
        };
        if self.rules.terms && after.term < before.term {
            return RequestError::LowerTerm.into();
        }
        after.conditions = before.conditions;
        lessor.status = Some(after);
        self.store_lessor(lessor)
    }

    fn remove_from_map(&mut self, name: &str, removal: &Removal) -> Done {
        let Some((&name, old)) = self.maps.get_key_value(name) else { return Response::Gone.into() };
        let mut map = old.object.clone();
        let is_other = |member: &str, is: Option<&String>| {
            let Removal::Keys { patch, .. } = removal else { return false };
            let wanted = patch.pointer(&format!("/metadata/{member}")).and_then(Value::as_str);
            wanted.is_some_and(|wanted| is.is_none_or(|is| is != wanted))
        };
        match removal {
            Removal::Delete { uid, version, .. } => {
                let other = map.uid.as_deref() != Some(&*uid.to_string());
                if other || self.rules.versions && version_of(&map) != *version {
                    return RequestError::Conflict.into();
                }
                self.remove_map(name);
                let mut gone = map;
                gone.resource_version = Some(self.version.to_string());
                Done { answer: Response::Deleted, news: Some(News::Map(stored_map(gone), false)) }
            }
            Removal::Keys { patch, .. } => {
                let other = is_other("uid", map.uid.as_ref());
                if other || self.rules.versions && is_other("resourceVersion", map.resource_version.as_ref())
                {
                    return RequestError::Conflict.into();
                }
                let annotations = map.annotations.get_or_insert_default();
                for (name, value) in patch["metadata"]["annotations"].as_object().into_iter().flatten() {
                    match value.as_str() {
                        Some(value) => drop(annotations.insert(name.clone(), value.to_owned())),
                        None => drop(annotations.remove(name)),
                    }
                }
                self.store_map(name, map)
            }
            Removal::Members { .. } => RequestError::Invalid("a ConfigMap has no members".to_owned()).into(),
        }
    }

    /// The lease that a write is for, if the write's conditions hold.
    fn lease(
        &self,
        place: &NamespacedName,
        uid: &str,
        version: Option<u64>,
    ) -> Result<(&'static str, Lease), Response> {
        let Some((&name, lease)) = self.leases.get_key_value(&*place.name) else {
            return Err(Response::Gone);
        };
        let meta = &lease.object.metadata;
        let differs = version.is_some_and(|version| self.rules.versions && version_of(meta) != version);
        if differs || meta.uid.as_deref() != Some(uid) {
            return Err(Response::Refused(RequestError::Conflict));
        }
        Ok((name, lease.object.clone()))
    }

    // --- Holders and others ------------------------------------------------------------------------------------

    /// Somebody makes a lease, perhaps one that follows the heartbeat.
    pub fn create_lease(
        &mut self,
        name: &'static str,
        ttl: i64,
        follows: bool,
        now: Timestamp,
    ) -> Option<News> {
        let heart = RenewFrom {
            coordination_lease: Some(SourceName { name: HEART.to_owned() }),
            ..RenewFrom::default()
        };
        let renew_from = follows.then_some(heart);
        let mut lease = Lease::new(name, LeaseSpec { ttl_seconds: ttl, renew_from, ..LeaseSpec::default() });
        lease.metadata.namespace = Some(NAMESPACE.to_owned());
        lease.metadata.uid = Some(self.next_uid());
        lease.metadata.generation = Some(1);
        note_manager(&mut lease.metadata, HOLDER, now);
        self.store_lease(name, lease).news
    }

    /// The holder renews a lease; `None` if the server refuses.
    pub fn renew(&mut self, name: &'static str, now: Timestamp) -> Option<News> {
        let mut lease = self.leases.get(name)?.object.clone();
        if self.rules.freeze && lease.is_ended() {
            return None;
        }
        self.version += 1;
        lease.spec.renew_time = Some(format!("the {}th", self.version));
        lease.metadata.generation = lease.metadata.generation.map(|generation| generation + 1);
        note_manager(&mut lease.metadata, HOLDER, now);
        self.store_lease(name, lease).news
    }

    /// Somebody changes something of a lease that means nothing.
    pub fn enqueue_lease(&mut self, name: &'static str) -> Option<News> {
        let mut lease = self.leases.get(name)?.object.clone();
        lease.metadata.labels.get_or_insert_default().insert("v".to_owned(), self.version.to_string());
        self.store_lease(name, lease).news
    }

    /// Somebody deletes a lease.
    pub fn revoke(&mut self, name: &'static str, now: Timestamp) -> Option<News> {
        let lease = self.leases.get(name)?.object.clone();
        self.delete_lease(name, lease, now).news
    }

    /// The heart beats; if it isn't there it is made.
    pub fn beat(&mut self, now: Timestamp) -> News {
        let known = self.heart.as_ref().and_then(|heart| match heart.object.status {
            SourceStatus::Heartbeat { uid, .. } => Some(uid),
            SourceStatus::Pod { .. } => None,
        });
        let uid = known.unwrap_or_else(|| self.next_uid().parse().unwrap_or_default());
        self.version += 1;
        let renew_time = Some(format!("the {}th", self.version).into());
        let status = SourceStatus::Heartbeat { uid, renew_time, recorded: Some(now) };
        let heart = stored_heart(SourceState {
            name: NamespacedName::new(NAMESPACE, HEART),
            version: self.version,
            status,
        });
        self.heart = Some(Arc::clone(&heart));
        self.first_heart.get_or_insert_with(|| Arc::clone(&heart));
        News::Heart(heart, true)
    }

    /// Somebody deletes the heartbeat.
    pub fn drop_heart(&mut self) -> Option<News> {
        let mut heart = self.heart.take()?.object.clone();
        self.version += 1;
        heart.version = self.version;
        Some(News::Heart(stored_heart(heart), false))
    }

    /// Somebody makes a ConfigMap, or another of that name in its place, with these annotations.
    pub fn create_map(&mut self, name: &'static str, annotations: BTreeMap<String, String>) -> Vec<News> {
        let mut news: Vec<News> = Vec::new();
        if let Some(mut old) = self.maps.get(name).map(|old| old.object.clone()) {
            self.remove_map(name);
            old.resource_version = Some(self.version.to_string());
            news.push(News::Map(stored_map(old), false));
        }
        let map = ObjectMeta {
            namespace: Some(NAMESPACE.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(self.next_uid()),
            annotations: Some(annotations),
            ..ObjectMeta::default()
        };
        news.extend(self.store_map(name, map).news);
        news
    }

    /// Somebody gives a ConfigMap these annotations, or changes only its data.
    pub fn edit_map(
        &mut self,
        name: &'static str,
        annotations: Option<BTreeMap<String, String>>,
    ) -> Option<News> {
        let mut map = self.maps.get(name)?.object.clone();
        if annotations.is_some() {
            map.annotations = annotations;
        }
        self.store_map(name, map).news
    }

    /// Somebody deletes our `Lessor`.
    pub fn drop_lessor(&mut self) -> Option<News> {
        let mut lessor = self.lessor.take()?.object.clone();
        self.version += 1;
        lessor.metadata.resource_version = Some(self.version.to_string());
        Some(News::Lessor(stored_lessor(lessor), false))
    }

    // --- Storage -----------------------------------------------------------------------------------------------

    fn next_uid(&mut self) -> String {
        self.uids += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.uids)
    }

    fn store_lessor(&mut self, mut lessor: Lessor) -> Done {
        self.version += 1;
        lessor.metadata.resource_version = Some(self.version.to_string());
        let answer = Response::Lessor(Box::new(lessor.clone()));
        let stored = stored_lessor(lessor);
        self.lessor = Some(Arc::clone(&stored));
        Done { answer, news: Some(News::Lessor(stored, true)) }
    }

    fn store_lease(&mut self, name: &'static str, mut lease: Lease) -> Done {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        let answer = Response::Lease(Box::new(lease.clone()));
        let stored = stored_lease(lease);
        self.leases.insert(name, Arc::clone(&stored));
        Done { answer, news: Some(News::Lease(stored, true)) }
    }

    fn delete_lease(&mut self, name: &'static str, mut lease: Lease, now: Timestamp) -> Done {
        if lease.metadata.finalizers.as_ref().is_none_or(Vec::is_empty) {
            return Done { answer: Response::Deleted, ..self.remove_lease(name, lease) };
        }
        if lease.metadata.deletion_timestamp.is_some() {
            return Response::Lease(Box::new(lease)).into();
        }
        lease.metadata.deletion_timestamp = Some(Time(now));
        self.store_lease(name, lease)
    }

    /// The lease goes; the answer shows it in the version that it had before.
    fn remove_lease(&mut self, name: &'static str, mut lease: Lease) -> Done {
        let answer = Response::Lease(Box::new(lease.clone()));
        self.leases.remove(name);
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        Done { answer, news: Some(News::Lease(stored_lease(lease), false)) }
    }

    fn store_map(&mut self, name: &'static str, mut map: ObjectMeta) -> Done {
        self.version += 1;
        map.resource_version = Some(self.version.to_string());
        let answer = Response::Object(Box::new(map.clone()));
        let stored = stored_map(map);
        self.maps.insert(name, Arc::clone(&stored));
        Done { answer, news: Some(News::Map(stored, true)) }
    }

    fn remove_map(&mut self, name: &'static str) {
        self.maps.remove(name);
        self.version += 1;
    }
}

/// The names of what was listed, as places.
pub fn places(names: &[&'static str], namespace: &str) -> ListedKeys {
    names.iter().map(|name| NamespacedName::new(namespace, *name)).collect()
}

/// The names of the leases that a ConfigMap with these annotations is attached to, wholly or by a key.
pub fn attached_to(map: &ObjectMeta) -> BTreeSet<&str> {
    map.annotations.iter().flatten().map(|(_, lease)| lease.as_str()).collect()
}

/// `resourceVersion` as a number.
pub fn version_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// Records who wrote what when, as `managedFields` do: the operator its status, the holder the spec.
fn note_manager(meta: &mut ObjectMeta, manager: &str, now: Timestamp) {
    let entries = meta.managed_fields.get_or_insert_default();
    let time = Some(Time(now));
    if let Some(entry) = entries.iter_mut().find(|entry| entry.manager.as_deref() == Some(manager)) {
        entry.time = time;
        return;
    }
    let status = manager != HOLDER;
    let fields = if status { json!({"f:status": {}}) } else { json!({"f:spec": {"f:renewTime": {}}}) };
    entries.push(ManagedFieldsEntry {
        manager: Some(manager.to_owned()),
        subresource: status.then(|| "status".to_owned()),
        time,
        fields_v1: Some(FieldsV1(fields)),
        ..ManagedFieldsEntry::default()
    });
}

fn stored_lessor(lessor: Lessor) -> Arc<Stored<Lessor>> {
    let mut state = DefaultHasher::new();
    let status = lessor.status.as_ref();
    hash_meta(&lessor.metadata, &mut state);
    status.map(|status| (&status.primary, status.term)).hash(&mut state);
    Arc::new(Stored { hash: state.finish(), object: lessor })
}

fn stored_lease(lease: Lease) -> Arc<Stored<Lease>> {
    let mut state = DefaultHasher::new();
    hash_meta(&lease.metadata, &mut state);
    lease.spec.renew_time.hash(&mut state);
    if let Some(status) = &lease.status {
        (&status.primary, status.term, status.fencing_token, status.spec_generation).hash(&mut state);
        let times = [&status.grant_time, &status.expiry_time, &status.end_time];
        times.map(|time| time.as_ref().map(|time| time.0.as_millisecond())).hash(&mut state);
        let reasons: Vec<_> =
            status.conditions.iter().map(|condition| (&condition.type_, &condition.reason)).collect();
        (reasons, status.attached).hash(&mut state);
    }
    Arc::new(Stored { hash: state.finish(), object: lease })
}

fn stored_heart(heart: SourceState) -> Arc<Stored<SourceState>> {
    let mut state = DefaultHasher::new();
    heart.hash(&mut state);
    Arc::new(Stored { hash: state.finish(), object: heart })
}

fn stored_map(map: ObjectMeta) -> Arc<Stored<ObjectMeta>> {
    let mut state = DefaultHasher::new();
    hash_meta(&map, &mut state);
    Arc::new(Stored { hash: state.finish(), object: map })
}

fn hash_meta(meta: &ObjectMeta, state: &mut DefaultHasher) {
    (&meta.uid, &meta.resource_version, &meta.annotations, &meta.finalizers).hash(state);
    meta.deletion_timestamp.is_some().hash(state);
    let written = meta.managed_fields.iter().flatten();
    written.map(|entry| entry.time.as_ref().map(|time| time.0.as_second())).collect::<Vec<_>>().hash(state);
}
